"""`sira compare`."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sira_cli.analysis.compare import Comparison, Pair

WORDS = 12  # words that are listed


EXAMPLES = """
sira compare captions-greedy.jsonl captions-sira.jsonl
sira compare monday.jsonl tuesday.jsonl --json
"""


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.jsonl", help="Records of a run.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B.jsonl", help="Records of another run.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print the whole comparison as JSON.")] = False,
) -> None:
    """Show what differs between two runs over the same pictures, per picture and in total."""
    from sira_cli.analysis import compare as comparing

    comparison = comparing.compare(a, b)
    if json:
        print(dumps(comparison.to_record(), ensure_ascii=False))
        return
    for pair in comparison.changed:
        _print_pair(pair)
    _print_sums(comparison)


def _print_pair(pair: Pair) -> None:
    """Print a picture's name, and both texts as one with marked differences: by colour, else as in git."""
    from rich.text import Text

    from sira_cli.analysis.compare import differences
    from sira_cli.cli.terminal.output import table_console

    console = table_console()
    print(pair.name)
    if not pair.ok:
        for name, record in (("A", pair.a), ("B", pair.b)):
            print(f"  {name}: {record['text'] or record['error']}")
    elif console.color_system is None:
        print(f"  {pair.marked()}")
    else:
        line = Text("  ")
        for equal, a, b in differences(pair.a["text"], pair.b["text"]):
            if equal:
                line.append(b)
            else:
                line.append(a, "red strike").append(b, "green bold")
        console.print(line)
    print()


def _print_sums(comparison: Comparison) -> None:
    from sira_cli.cli.terminal.output import new_list, table_console

    a, b = (file.path.stem for file in comparison.files)
    if a == b:
        a, b = (str(file.path) for file in comparison.files)
    only_a, only_b = len(comparison.only_a), len(comparison.only_b)
    rows: dict[str, tuple[Any, Any]] = {
        **comparison.settings,
        "pictures": (comparison.both + only_a, comparison.both + only_b),
        "only in this run": (only_a, only_b),
        **{f"ended by {reason}": counts for reason, counts in comparison.finish_reasons.items()},
        **{name: (f"{first:.1f}", f"{second:.1f}") for name, (first, second) in comparison.figures.items()},
    }
    table = new_list("", a, b)
    for name, values in rows.items():
        shown = ("" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        table.add_row(name, *shown)
    table_console().print(table)
    print(f"\n{comparison.equal} of {comparison.both} texts are equal")
    words = list(comparison.words.items())[:WORDS]
    for title, number in ((f"words of {a} that are not in {b}", 0), (f"words of {b} that are not in {a}", 1)):
        listed = [f"{word} {counts[number]}" for word, counts in words if counts[number] > counts[1 - number]]
        if listed:
            print(f"{title}, with the number of texts: {', '.join(listed)}")
