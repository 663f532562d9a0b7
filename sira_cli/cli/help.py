"""Parsing and help of commands: options in groups, examples at the end."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from sira_cli.cli.options.setting import OPTIONS, spelled
from sira_cli.cli.terminal.console import set_verbosity
from sira_cli.errors import SettingsError
from sira_cli.methods.settings import FORK_SETTINGS, Setting

# Options and arguments that are texts and may name files.
MAY_BE_PATHS = ("answers", "file", "files_from", "model", "name", "objects", "paths", "preset")
_SUFFIX = "-" * 20  # room for names of files next to it, such as `.records.jsonl`
VALUES = {"int": "N", "int range": "N", "float": "X", "str": "TEXT", "path": "PATH"}
COLUMN = 25  # width of the names of options; longer ones have a line of their own
NOTES = {  # below the titles of groups
    **dict.fromkeys(("Decoding", "Second look"), "What is not given is the preset's."),
    "Answers and figures": "--method takes several methods; greedy and greedy+apc are added as controls.",
}
_PRESETS = "sira presets list shows their names"
# Commands of Ollama, and of programs like it.
_OTHERS_COMMANDS = re.compile("No such command '(?:list|pull|run)'")
_FETCHED = f"A preset's model is fetched when it is first used, as by: sira caption PATH -p NAME ({_PRESETS})"
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")
_CHOICES = re.compile(r"<(\w+(?:\|\w+)+)>")
_TYPE = re.compile(rf"<(list\[\w+\]|{'|'.join(VALUES)})>")


def in_one_line(error: TyperException) -> str:
    """Return a usage error in our words: the option, what was given, what was expected."""
    kind = type(error).__name__  # Typer has no public names for the errors of its parser
    fields = vars(error)
    if kind == "NoSuchOption":
        nearest = f"; did you mean {fields['possibilities'][0]}?" if fields["possibilities"] else ""
        return f"no such option: {fields['option_name']}{nearest}"
    if kind == "BadOptionUsage":
        return f"{fields['option_name']}: {'takes no value' if 'not take' in error.message else 'expected a value'}"
    parameter = fields.get("param")
    if parameter is None:
        return _of_words(error.format_message(), fields.get("ctx"))
    name = _named(parameter)
    cause = error.__cause__
    if kind == "MissingParameter":
        return f"Missing argument {name}: {parameter.help}"
    from pydantic import ValidationError

    if not isinstance(cause, ValidationError):  # a parser of our own
        return f"{name} {error.message}"
    (problem,) = cause.errors()[:1]
    return f"{name} {problem['input']}: {_expected(parameter, problem)}"


def _of_words(message: str, ctx: Any) -> str:
    """Return the error of a word that is no command or one argument too many; where presets are named, as a hint."""
    if _OTHERS_COMMANDS.match(message):
        return f"{message} {_FETCHED}"
    extra = _EXTRA.match(message)
    if extra is None or not any("--preset" in option.opts for option in ctx.command.params):
        return message
    first = extra[1].split()[0]
    return f"{message}: a preset is named by -p, as in: {ctx.command_path} -p {first} ({_PRESETS})"


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _expected(parameter: Any, problem: Any) -> str:
    """Return the values of an option in words."""
    if parameter.name in FORK_SETTINGS:
        return f"expected {FORK_SETTINGS[parameter.name].values}"
    if parameter.name in OPTIONS and problem["type"] != "value_error":
        from sira_cli.models.preset import full_key, values_of

        words = values_of(full_key(parameter.name)).removesuffix(", or none")
        own = getattr(parameter, "max", None)  # an option of that name may take less than the key of a preset
        if own is None or f" {own}" in words:
            return f"expected {words}"
    if problem["type"] == "value_error":
        choices = tuple(re.findall("'([^']*)'", problem["msg"])[1:])
        return f"expected {Setting(str, '', choices=choices).values}"
    ends = {"low": parameter.min, "high": parameter.max}
    limits = {name: limit for name, limit in ends.items() if limit is not None}
    real = problem["type"].startswith("float") or any(isinstance(limit, float) for limit in limits.values())
    return f"expected {Setting(float if real else int, '', **limits).values}"


def _check_path(ctx: Any, parameter: Any, value: str | Path) -> None:
    """Check that a path can be looked up; whether it exists is checked when it is opened."""
    from sira_cli.files import from_home, too_long

    text = str(value)
    if "://" in text:
        return
    fails = functools.partial(typer.BadParameter, ctx=ctx, param=parameter)
    is_new = parameter.name != "paths" and not os.path.lexists(text)
    if too_long(Path(text)) or (is_new and too_long(Path(text + _SUFFIX))):
        raise fails(f"{text[:40]}...: is too long for a file's name ({len(os.fsencode(text))} bytes)")
    try:
        from_home(text)
    except SettingsError as error:
        raise fails(str(error)) from None


class Command(TyperCommand):
    """A command whose epilog is a list of examples, one per line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, set the verbosity, and check all paths."""
        try:
            rest: list[str] = super().parse_args(ctx, self._repeated(args))
        except TyperException as error:
            name = vars(error).get("option_name", "")
            takes = type(error).__name__ == "NoSuchOption" and any("--set" in option.opts for option in self.params)
            instead = spelled(name) if takes else None
            if instead is not None:
                raise SettingsError(f"no such option: {name}; use {instead}") from None
            raise
        if ctx.resilient_parsing:  # for the completion of a shell
            return rest
        set_verbosity(ctx.params.get("quiet", False), ctx.params.get("verbose", 0))
        for parameter in self.params:
            given = ctx.params.get(parameter.name)
            for value in given if isinstance(given, list | tuple) else [given]:
                if isinstance(value, Path) or (isinstance(value, str) and parameter.name in MAY_BE_PATHS):
                    _check_path(ctx, parameter, value)
        return rest

    def _repeated(self, args: list[str]) -> list[str]:
        """Put an option whose metavar is like `FILE...` before each of its values: `--answers a.jsonl b.jsonl`."""
        options = [each for each in self.params if getattr(each, "multiple", False)]
        names = {name for each in options if str(each.metavar).endswith("...") for name in each.opts}
        current = ""  # the option whose values are read
        expanded: list[str] = []
        for before, arg in zip(["", *args], args, strict=False):
            if arg.startswith("-") and arg != "-":
                name = arg.partition("=")[0]
                current = name if name in names else ""
            elif current and before != current:
                expanded.append(current)
            expanded.append(arg)
        return expanded

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return the rows of every group of options, `(names and value, help)`, in the order of their declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            if is_argument:
                row = _named(parameter), getattr(parameter, "help", "")
            group = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            name = _CHOICES.sub(r"\1", _TYPE.sub(lambda found: VALUES.get(found[1], ""), row[0]))
            groups.setdefault(group, []).append((name.strip(), row[1]))
        if groups.keys() - {"Arguments", "Options"} and len(groups.get("Options", ())) == 1:
            alone = groups.pop("Options")  # --help: no section of its own
            groups[next(reversed(groups))] += alone
        return groups

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments of a command line: `NAME`, `[NAME]` if it may be missing, `...` after what repeats."""
        pieces = [self.options_metavar or ""]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = _named(parameter)
                if not parameter.required:
                    name = f"[{name}]"
                pieces.append(f"{name}..." if parameter.nargs == -1 else name)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for every group of options."""
        for title, rows in self.sections(ctx).items():
            with formatter.section(title):
                if title in NOTES:
                    formatter.write_text(NOTES[title])
                formatter.write_dl(rows, COLUMN)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples without wrapping: a wrapped command cannot be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for example in self.epilog.strip().splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class Groups(TyperGroup):
    """Commands whose help lists them by group (`rich_help_panel`), in the order of their groups' first commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for every group of commands."""
        groups: dict[str, list[tuple[str, str]]] = {}
        room = formatter.width - 6 - max(map(len, self.commands))
        for name, command in self.commands.items():
            group = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(group, []).append((name, command.get_short_help_str(room)))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def register(app: typer.Typer, command: Any, line: str | None = None, group: str | None = None) -> None:
    """Add a command that `with_options` made, named by the first word of its function, with its line in the list."""
    name = command.__name__.partition("_")[0]
    app.command(name, cls=Command, epilog=command.examples, short_help=line, rich_help_panel=group)(command)
