"""The options of every command for docs/cli.md; an option that several commands have is written once."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

import typer

from sira_cli.cli import app
from sira_cli.cli.help import NOTES, Command

WIDTH = 120
OWN = ("Arguments", "Options")  # the sections of a command's own arguments and options
_MARKUP = re.compile(r"(`[^`]*`)|\*|<(?=\w)")  # what Markdown would read as its own, where text is not code
_AT_LEAST_ONE = re.compile(r"; x>=1(?=])|  \[x>=1]")
COMMON, MANY = "Common", 2  # the group of those own options that more commands have
Rows = list[tuple[str, str]]


def command_line() -> str:
    """Return the page: shared options by group, then each command with its own options."""
    commands = dict(_commands(typer.main.get_command(app), "sira"))
    sections = {name: _sections(command, name) for name, command in commands.items()}
    _parted(sections)
    counted = Counter((title, row) for groups in sections.values() for title, rows in groups.items() for row in rows)
    shared: dict[str, Rows] = {}
    for title, row in counted:
        if title not in OWN and counted[title, row] > 1:
            shared.setdefault(title, []).append(row)
    parts = ["## Shared options"]
    parts += ["\n\n".join([f"### {title}", *_note(title), _block(rows)]) for title, rows in shared.items()]
    parts.append("## Commands")
    for name, command in commands.items():
        parts.append(f"### {name}\n\n{_own(command, sections[name], shared)}")
        if taken := _taken(sections[name], shared):
            parts.append(taken)
    return "\n\n".join(parts)


def _commands(group: Any, path: str) -> Iterator[tuple[str, Command]]:
    """Yield every command with its full name; groups of commands are opened."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _sections(command: Command, name: str) -> dict[str, Rows]:
    """Return a command's options by section; `--help` is left out, as every command has it."""
    sections = command.sections(_context(command, name))
    return {title: [row for row in rows if not row[0].endswith("--help")] for title, rows in sections.items()}


def _parted(sections: dict[str, dict[str, Rows]]) -> None:
    """Move the own options that many commands have into a group of their own."""
    counted = Counter(row for groups in sections.values() for row in groups.get("Options", ()))
    for groups in sections.values():
        own = groups.get("Options", [])
        if common := [row for row in own if counted[row] > MANY]:
            groups[COMMON] = common
            groups["Options"] = [row for row in own if counted[row] <= MANY]


def _note(title: str) -> list[str]:
    return [NOTES[title]] if title in NOTES else []


def _context(command: Any, name: str) -> Any:
    return command.make_context(name, [], resilient_parsing=True)


def _block(rows: Rows) -> str:
    """Return options as a list, one per line; a table would be wider than a screen."""
    return "\n".join(f"- `{names}` {_text(_AT_LEAST_ONE.sub('', text))}" for names, text in rows)


def _text(text: str) -> str:
    """Return a text without meaning for Markdown."""
    return _MARKUP.sub(lambda found: found[0] if found[1] else f"\\{found[0]}", text)


def _own(command: Command, sections: dict[str, Rows], shared: dict[str, Rows]) -> str:
    """Return a command's description (its first paragraph) and its own arguments and options."""
    parts = [_text(textwrap.fill(inspect.cleandoc(command.help or "").split("\n\n")[0], WIDTH, break_on_hyphens=False))]
    if own := [row for title, rows in sections.items() for row in rows if row not in shared.get(title, ())]:
        parts.append(_block(own))
    return "\n\n".join(parts)


def _taken(sections: dict[str, Rows], shared: dict[str, Rows]) -> str:
    """Return the line that names the shared options of a command: whole groups, or single options.

    A group counts as a whole if the command has its own form of some options, which stands with the command.
    """
    parts = []
    for title, rows in shared.items():
        taken = [row for row in rows if row in sections.get(title, ())]
        link = f"[{title}](#{title.lower().replace(' ', '-')})"
        if {_long(names) for names, _ in rows} <= {_long(names) for names, _ in sections.get(title, ())}:
            parts.append(link)
        elif taken:
            parts.append(f"{link}: {', '.join(f'`{_long(names)}`' for names, _ in taken)}")
    return f"Also: {'; '.join(parts)}." if parts else ""


def _long(names: str) -> str:
    """Return the long name of an option: `--quiet` of `-q, --quiet`."""
    return next((word.rstrip(",") for word in names.split() if word.startswith("--")), names.split()[0])
