"""How help is laid out: options in groups, short names for their values, examples at the end."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

VALUES = {"int": "N", "int range": "N", "float": "X", "str": "TEXT", "path": "PATH"}
_TYPE = re.compile(rf"<(list\[\w+\]|{'|'.join(VALUES)})>")


class Command(TyperCommand):
    """A command whose epilog is a list of examples, one per line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for every group of options, in the order in which they are declared."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (row := parameter.get_help_record(ctx)) is None:
                continue
            plain = "Arguments" if parameter.param_type_name == "argument" else "Options"
            group = getattr(parameter, "rich_help_panel", None) or plain
            name = _TYPE.sub(lambda found: VALUES.get(found[1], ""), row[0])
            groups.setdefault(group, []).append((name.strip(), row[1]))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they are: a command that is wrapped cannot be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for example in self.epilog.strip().splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")
