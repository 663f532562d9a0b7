"""The output of `sira check`: a table of the worst captions, totals."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sira_cli.cli.options.verifying import MORE_WORDS
from sira_cli.cli.terminal.console import note, say
from sira_cli.cli.terminal.progress import Progress, run_records

if TYPE_CHECKING:
    from sira_cli.data.captions.find import Captions
    from sira_cli.run.events import Event
    from sira_cli.run.run import Job, PictureRun

WORST = 20  # rows of the table


class CheckTerminal:
    """Listens to a run of checks."""

    def __init__(self, job: Job, *, as_json: bool) -> None:
        """Prepare to listen."""
        from sira_cli.analysis.check.summary import Summary

        self._targets, self._json = job.targets, as_json
        self._threshold = float(job.settings["verify"]["min_support"])
        self._summary = Summary()

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
            for _, record in run_records(events, self._targets, progress):
                self._summary.add(record)
                if self._json:
                    print(json.dumps(record, ensure_ascii=False), flush=True)

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

        worst = self._summary.worst()
        if not worst:
            return
        table = new_list("picture", "support", "not supported")
        for doubted in worst[:WORST]:
            things = ", ".join(f"{thing} {support:.2f}" for thing, support in doubted.things)
            table.add_row(Text(doubted.name), f"{doubted.support:.2f}", Text(things))
        table_console().print(table)
        if len(worst) > WORST:
            print(f"... and {len(worst) - WORST} more")
        print()

    def _sums(self) -> list[str]:
        sums = self._summary
        if not sums.captions:
            return ["no caption was checked"]
        below = f"{sums.below} of them, in {_number(len(sums.doubted), 'caption')}, below {self._threshold:g}"
        parts = [f"{_number(sums.captions, 'caption')}, {_number(sums.objects, 'object')}: {below}"]
        if sums.unrecognised:
            parts.append(f"{_number(sums.unrecognised, 'caption')} with nothing recognised ({MORE_WORDS})")
        if sums.without_probabilities:
            parts.append("the server tells no probabilities: support is 1 for yes and 0 for no")
        return parts


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
