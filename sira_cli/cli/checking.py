"""The output of `sira check`: a table of the worst captions, totals, changed captions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.options.verifying import MORE_WORDS
from sira_cli.cli.terminal.console import note, say
from sira_cli.cli.terminal.progress import Progress, run_records

if TYPE_CHECKING:
    from sira_cli.data.captions.find import Captions
    from sira_cli.runs.events import Event
    from sira_cli.runs.run import Job, PictureRun

WORST = 20  # rows of the table, unless --below asks for all


class CheckTerminal:
    """Listens to a run of checks.

    Attributes:
        fixed: the new captions, by identity of the picture, if they are to be kept.
    """

    def __init__(self, job: Job, *, below: float | None, as_json: bool, keep: bool) -> None:
        """Prepare to listen.

        Args:
            job: the run.
            below: show captions with an object below it; None: the worst below the threshold.
            as_json: print records instead of a table.
            keep: whether new captions are wanted.
        """
        from sira_cli.analysis.check.summary import Summary

        self._targets, self._below = job.targets, below
        self._verify = job.settings["verify"]
        self._json, self._keep = as_json, keep
        self._summary, self._shown = Summary(), Summary(below)
        self.fixed: dict[str, str] = {}
        self._changed = 0

    def say_found(self, captions: Captions) -> None:
        """Report pictures and records without a caption, and files that are not read."""
        if captions.unread:
            from sira_cli.pictures.left_out import message

            note(message(captions.unread))
        if captions.without:
            note(f"left out: {_number(captions.without, 'picture')} without a caption")
        if captions.failed:
            note(f"left out: {_number(captions.failed, 'record')} of pictures that failed")

    def listen(self, events: Iterable[Event], total: int) -> None:
        """Consume the events to the end."""
        with Progress.shown("captions", total) as progress:
            for event, record in run_records(events, self._targets, progress):
                self._add(event.picture.identity, record)

    def _add(self, identity: str, record: dict[str, Any]) -> None:
        self._summary.add(record)
        self._shown.add(record)
        if self._json and (self._below is None or (record["status"] == "ok" and record["support"] < self._below)):
            print(json.dumps(record, ensure_ascii=False), flush=True)
        if self._keep:
            self.fixed[identity] = record["fixed"]
            self._changed += record["fixed"] != record["text"]

    def sum_up(self, run: PictureRun) -> None:
        """Print the table and the totals; with JSON on stdout, the totals go to stderr."""
        if self._json:
            note("; ".join(self._sums()))
        else:
            self._print_table()
            print("\n".join(self._sums()))
        if run.counts.failed:
            again = " (--retry-errors tries them again)" if self._targets.any else ""
            say(f"{run.counts.failed} of {run.counts.total} failed{again}")
        if self._targets.output is not None:
            before = f", {run.counts.ok_before} of them before" if run.counts.ok_before else ""
            note(f"{run.counts.ok + run.counts.ok_before} checked{before}: {self._targets.output}")

    def _print_table(self) -> None:
        from rich.text import Text

        from sira_cli.cli.terminal.output import new_list, table_console

        worst = self._shown.worst()
        shown = worst if self._below is not None else worst[:WORST]
        if not shown:
            return
        table = new_list("picture", "support", "not supported")
        for doubted in shown:
            things = ", ".join(f"{thing} {support:.2f}" for thing, support in doubted.things)
            table.add_row(Text(doubted.name), f"{doubted.support:.2f}", Text(things))
        table_console().print(table)
        if len(shown) < len(worst):
            highest = max(self._thresholds().values())
            print(f"... and {len(worst) - len(shown)} more (--below {highest:g} shows all)")
        print()

    def _sums(self) -> list[str]:
        sums = self._summary
        if not sums.captions:
            return ["no caption was checked"]
        parts = []
        for kind, threshold in self._thresholds().items():
            tally = sums.kinds[kind]
            below = f"{tally.below} of them, in {_number(tally.captions, 'caption')}, below {threshold:g}"
            claims = _number(tally.claims, kind.removesuffix("s"))
            parts.append(f"{_number(sums.captions, 'caption')}, {claims}: {below}")
        if sums.unrecognised:
            parts.append(f"{_number(sums.unrecognised, 'caption')} with nothing recognised ({MORE_WORDS})")
        if sums.foreign:
            language = self._verify.get("language", "en")
            parts.append(f"{_number(sums.foreign, 'caption')} not in {language} (--language; see their warnings)")
        if sums.without_probabilities:
            parts.append("the server tells no probabilities: support is 1 for yes and 0 for no")
        return parts

    def _thresholds(self) -> dict[str, float]:
        """Return the threshold of each kind of claim that was asked about."""
        kinds = self._verify.get("claims", {"objects": self._verify})
        return {kind: float(each["min_support"]) for kind, each in kinds.items()}

    def say_fixed(self, target: Path, captions: Captions) -> None:
        """Report the number of changed captions, and the rows that are not in the new file."""
        empty = f", {self._summary.emptied} of them empty now" if self._summary.emptied else ""
        note(f"{self._changed} of {len(self.fixed)} captions changed{empty}: {target}")
        if captions.left_out:
            rows, every = captions.rows, captions.rows + captions.left_out
            note(f"{target} has {rows} of {every} rows: --limit or --shard leaves out the others")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
