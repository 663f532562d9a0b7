"""The table of several lines of support, from labels and from controls."""

from __future__ import annotations

from collections.abc import Mapping

from sira_cli.cli.terminal.output import new_table, table_console


def print_lines(heads: tuple[str, str], below: Mapping[float, tuple[str, str]], found: float) -> None:
    """Print the shares of two kinds of objects below several lines, and mark the line that was found.

    Args:
        heads: names of the two kinds.
        below: the shares by line, as they are shown.
        found: one of these lines.
    """
    table = new_table(None, "threshold", *heads)
    table.add_column("")
    for line, shares in below.items():
        table.add_row(f"{line:g}", *shares, "found" if line == found else "")
    table_console().print(table)
