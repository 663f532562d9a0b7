"""Texts that join those under way as soon as they are requested, and end independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sira_cli.models.answering.refilling import RefilledSlots
from sira_cli.serve.jobs import Job, JobText
from sira_cli.serve.prepared import Prepared


class JobSlots:
    """The texts under way of jobs with one key."""

    def __init__(self, prepared: Prepared, task: str) -> None:
        """Start without texts.

        Args:
            prepared: the model under the jobs' settings.
            task: the jobs' task.
        """
        self._prepared = prepared
        self._slots: RefilledSlots[JobText] = RefilledSlots(prepared.lvlm, task, self._see)
        self._rows: list[JobText] = []

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._rows)

    def join(self, jobs: Sequence[Job], inputs: Any) -> None:
        """Let the texts of some jobs join the others.

        Args:
            jobs: jobs whose texts begin now.
            inputs: from `Prepared.inputs`.
        """
        lvlm = self._prepared.lvlm
        rows = [JobText(job, lvlm.parser, lvlm.ends.ids) for job in jobs]
        self._rows += rows
        lengths = [job.preset.generation.max_new_tokens for job in jobs]
        self._slots.add(rows, inputs, self._prepared.seeds(jobs), lengths, [job.schema for job in jobs])

    def advance(self, pause: Callable[[], bool]) -> None:
        """Decode until a text ends, or `pause` is true after a token; report ended texts."""
        for ended in self._slots.advance(pause):
            row = ended.item
            self._rows.remove(row)
            if row.job.gone:
                continue
            try:
                self._prepared.finish(row, ended.answer, ended.seconds)
            except Exception as error:  # of the second look: the other texts go on
                row.job.tell(error)

    def give_up(self) -> list[Job]:
        """After an error, remove and return all jobs without an answer."""
        jobs = [row.job for row in self._rows]
        self._slots.clear()
        self._rows = []
        return jobs

    def _see(self, row: JobText, token: int, logits: Tensor) -> bool:
        """Take the next token of a text; return whether no further one matters."""
        self._prepared.see(row, token, logits)
        return row.done
