"""Texts that begin as soon as somebody asks for them, beside those that are under way, and end when they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sira_cli.models.refilling import RefilledSlots
from sira_cli.serve.jobs import Job, Row
from sira_cli.serve.prepared import Prepared


class Slots:
    """The texts under way of jobs with one key."""

    def __init__(self, prepared: Prepared, task: str) -> None:
        """Begin without texts.

        Args:
            prepared: the model under the jobs' settings.
            task: theirs.
        """
        self._prepared = prepared
        self._slots: RefilledSlots[Row] = RefilledSlots(prepared.lvlm, task, self._see)
        self._rows: list[Row] = []

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._rows)

    def join(self, jobs: Sequence[Job], inputs: Any) -> None:
        """Let the texts of some jobs begin beside the others.

        Args:
            jobs: what is asked for; from now on their texts are under way.
            inputs: from `Prepared.inputs`.
        """
        lvlm = self._prepared.lvlm
        rows = [Row(job, lvlm.parser, lvlm.ends.ids) for job in jobs]
        self._rows += rows
        lengths = [job.preset.generation.max_new_tokens for job in jobs]
        self._slots.add(rows, inputs, self._prepared.seeds(jobs), lengths)

    def advance(self, pause: Callable[[], bool]) -> None:
        """Decode until a text ends, or `pause` says so behind some token, and tell what has ended."""
        for ended in self._slots.advance(pause):
            row = ended.item
            self._rows.remove(row)
            if row.job.gone:
                continue
            try:
                self._prepared.finish(row, row.cut(ended.answer), ended.seconds)
            except Exception as error:  # of the second look: the other texts go on
                row.job.tell(error)

    def give_up(self) -> list[Job]:
        """After an error, return all jobs without an answer; there are none left here."""
        jobs = [row.job for row in self._rows]
        self._slots.clear()
        self._rows = []
        return jobs

    def _see(self, row: Row, token: int, logits: Tensor) -> bool:
        """Take the next token of a text; return whether no further one matters."""
        self._prepared.see(row, token, logits)
        return row.done
