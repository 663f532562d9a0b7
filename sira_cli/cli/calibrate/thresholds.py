"""The table of several thresholds of support, by labels or controls."""

from __future__ import annotations

from collections.abc import Mapping

from sira_cli.cli.terminal.output import new_table, table_console


def print_thresholds(heads: tuple[str, str], below: Mapping[float, tuple[str, str]], found: float) -> None:
    """Print the shares of two kinds of objects below several thresholds, and mark the threshold that was found.

    Args:
        heads: names of the two kinds.
        below: the shares by threshold, as shown.
        found: one of these thresholds.
    """
    table = new_table(figures=("threshold", *heads))
    table.add_column("")
    for threshold, shares in below.items():
        table.add_row(f"{threshold:g}", *shares, "found" if threshold == found else "")
    table_console().print(table)
