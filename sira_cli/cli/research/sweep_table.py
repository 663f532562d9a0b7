"""The table of `sira sweep`: one row per setting, and the best setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.cli.terminal.output import new_table, table_console

if TYPE_CHECKING:
    from sira_cli.analysis.sweep.outcome import SettingRow, SweepReport


def print_report(report: SweepReport) -> None:
    """Print the report to stdout; in a file, nothing is wrapped."""
    out = table_console()
    table = new_table(figures=_head(report), tight=True)
    for number, row in enumerate(report.rows):
        following = report.rows[number + 1 :][:1]
        chosen = (row.k, row.alpha) == report.best
        table.add_row(
            *_cells(report, row),
            style="bold" if chosen else None,
            end_section=any(after.k != row.k for after in following),
        )
    out.print(table)
    for line in _remarks(report):
        out.print(line, soft_wrap=True)


def _head(report: SweepReport) -> list[str]:
    captions = ["CHAIRs", "CHAIRi", "coverage"] if report.captions else []
    return ["K", "alpha", *report.splits, f"mean {report.score}", "- greedy", "mean yes", "neither", *captions]


def _cells(report: SweepReport, row: SettingRow) -> list[str]:
    figures, mean = row.figures, f"mean {report.score}"
    return [
        str(row.k or "-"),
        f"{row.alpha:g}" if row.k else "greedy",
        *(f"{figures[f'{split} {report.score}']}" for split in report.splits),
        f"{figures[mean]}",
        f"{row.differences[mean]:+}" if row.k else "",
        f"{figures['mean yes'].value:.1f}",
        str(row.neither),
        *(f"{figures[name]}" for name in ("CHAIRs", "CHAIRi", "coverage") if report.captions),
    ]


def _remarks(report: SweepReport) -> list[str]:
    from sira_cli.analysis.sweep import best

    remarks = [
        f"{report.questions:,} questions about {report.pictures:,} pictures; in percent, ± half a 95 % interval",
        "yes: answers that count as yes by POPE's rule; neither: number of answers that are neither yes nor no",
    ]
    how = "no setting fulfils the rule" if report.by_default else "picked by the rule"
    if report.best is None:
        return [*remarks, "best: none of these settings", f"{how}: {report.rule}"]
    chosen = report.row(report.best)
    figure, difference = chosen.figures[report.by], chosen.differences[report.by]
    said = f"best: {report.best.name}: {report.by} {figure}, {best.verdict(difference)}"
    return [*remarks, said, f"{how}: {report.rule}"]
