"""Tables on a terminal, of which wide ones are folded, and bars."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from sira_cli.cli.terminal import output
from sira_cli.cli.terminal.console import Progress, show_stages
from sira_cli.run.events import Advanced, StageStarted
from sira_cli.run.reports import Table

NAMES = ["greedy", "sira", "a method with a long name"]
HEADS = [f"figure {number}" for number in range(9)]
CELLS = [[f"{row}.{column} ±1" for column in range(len(HEADS))] for row in range(len(NAMES))]


def printed(table: Table, width: int, monkeypatch, capsys) -> list[list[str]]:
    """The lines of each block of a table that is printed on a terminal of this width."""
    monkeypatch.setattr(output, "table_console", lambda: Console(width=width, highlight=False, markup=False))
    output.print_tables([table])
    blocks: list[list[str]] = []
    for line in capsys.readouterr().out.splitlines():
        if line.strip().startswith("method"):
            blocks.append([])
        if line.strip():
            blocks[-1].append(line.rstrip())
    return blocks


@pytest.fixture
def table() -> Table:
    rows = [[name, *cells] for name, cells in zip(NAMES, CELLS, strict=True)]
    return Table(("method",), HEADS, [rows[:1], rows[1:]])


def words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [60, 90])
def test_no_line_of_a_folded_table_is_wider_than_the_terminal(table, width, monkeypatch, capsys):
    blocks = printed(table, width, monkeypatch, capsys)
    assert len(blocks) > 1
    assert max(len(line) for block in blocks for line in block) <= width


def test_every_block_of_a_folded_table_has_the_names(table, monkeypatch, capsys):
    for block in printed(table, 60, monkeypatch, capsys):
        for name in NAMES:
            assert sum(line.strip().startswith(f"{name} ") for line in block) == 1


def test_a_folded_table_has_every_figure_once_and_whole(table, monkeypatch, capsys):
    text = words([line for block in printed(table, 60, monkeypatch, capsys) for line in block])
    for row in [HEADS, *CELLS]:
        assert [text.count(cell) for cell in row] == [1] * len(row)


def test_a_folded_table_is_no_wider_than_it_must_be(table, monkeypatch, capsys):
    """The first block with one more figure would not fit: a name and each figure take their width and a gap of 3."""
    first, *_ = printed(table, 60, monkeypatch, capsys)
    figures = len([head for head in HEADS if head in first[0]])
    widths = [3 + max(map(len, NAMES)), *[3 + len(HEADS[0])] * len(HEADS)]
    assert sum(widths[: 1 + figures]) <= 60 < sum(widths[: 2 + figures])


def test_a_table_that_fits_is_not_folded(table, monkeypatch, capsys):
    (block,) = printed(table, 200, monkeypatch, capsys)
    assert words(block[:1]).startswith("method figure 0 figure 1")


def test_a_bar_is_closed_when_its_stage_is_done(monkeypatch):
    """Before anything else is shown, such as a spinner while the model loads."""
    shown = []

    @contextmanager
    def bar(what: str, total: int) -> Iterator[Progress]:
        shown.append(f"{what} begins")
        yield Progress(what, total, silent=True)
        shown.append(f"{what} ends")

    def events() -> Generator[StageStarted | Advanced, None, None]:
        yield StageStarted("pictures", 2)
        yield from [Advanced(1), Advanced(1, failed=True)]
        shown.append("the model loads")
        yield StageStarted("captions", 1)

    monkeypatch.setattr(Progress, "on_terminal", bar)
    show_stages(events())
    assert shown == ["pictures begins", "pictures ends", "the model loads", "captions begins", "captions ends"]


def test_what_could_not_be_fetched_counts_as_failed(monkeypatch):
    bars = []

    @contextmanager
    def bar(what: str, total: int) -> Iterator[Progress]:
        bars.append(Progress(what, total, silent=True))
        yield bars[-1]

    monkeypatch.setattr(Progress, "on_terminal", bar)
    show_stages(event for event in [StageStarted("pictures", 2), Advanced(1), Advanced(1, failed=True)])
    assert [(each.done, each.errors) for each in bars] == [(2, 1)]
