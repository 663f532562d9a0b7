"""Pictures in slots: the next ones take the places of those whose texts have ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from sira_cli.data.records.record import Answer
from sira_cli.models.answering.refilling import RefilledSlots
from sira_cli.models.many.item import Item
from sira_cli.models.recording import RecordingModel
from sira_cli.models.schemas.schema import Schema

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

R = TypeVar("R")

GROUPS = 4  # groups of pictures that fill the slots; each begins as soon as it fits


@dataclass
class Batch(Generic[R]):
    """Pictures that are prepared together.

    Attributes:
        items: the pictures.
        images: their samples, if needed again.
        inputs: inputs of the model; None: not made, or not needed.
        seconds: time of the preparation.
        failure: the error that prevented the inputs.
    """

    items: list[Item[R]]
    images: list[Shown] = field(default_factory=list)
    inputs: Any = None
    seconds: float = 0.0
    failure: Exception | None = None


class _UnderWay(NamedTuple, Generic[R]):
    """A picture in a slot, with the seconds of its preparation."""

    item: Item[R]
    seconds: float


class PictureSlots(Generic[R]):
    """The pictures whose texts are under way."""

    def __init__(self, lvlm: RecordingModel, task: str, rows: int = 0, schema: Schema | None = None) -> None:
        """Begin without pictures.

        Args:
            lvlm: the model.
            task: `caption` or `ask`.
            rows: as for `RefilledSlots`.
            schema: each text follows it.
        """
        self._lvlm, self._schema = lvlm, schema
        self._slots: RefilledSlots[_UnderWay[R]] = RefilledSlots(lvlm, task, rows=rows)
        self._pictures: list[_UnderWay[R]] = []

    def expect(self, rows: int) -> None:
        """Before the first picture: reserve room for `rows` texts at once."""
        self._slots.rows = rows
        self._slots.clear()

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._pictures)

    def add(self, batch: Batch[R]) -> None:
        """Let a batch begin next to the others."""
        each = batch.seconds / len(batch.items)
        new = [_UnderWay(item, each) for item in batch.items]
        self._pictures += new
        prompts = [item.prompt for item in batch.items]
        seeds = self._lvlm.text_seeds([item.sha256 for item in batch.items], prompts)
        self._slots.add(new, batch.inputs, seeds, schemas=[self._schema] * len(new))

    def advance(self) -> Iterator[tuple[Item[R], Answer, float]]:
        """Decode until a text has ended, and yield ended pictures with their answers and milliseconds."""
        for ended in self._slots.advance():
            answer = self._lvlm.preset.text.finished(ended.answer)
            yield ended.item.item, answer, 1000 * (ended.item.seconds + ended.seconds)
            self._pictures = [each for each in self._pictures if each is not ended.item]

    def give_up(self) -> Batch[R]:
        """After an error, remove and return all pictures without an answer."""
        items = [each.item for each in self._pictures]
        seconds = sum(each.seconds for each in self._pictures)
        self._slots.rows = len(items) // 2  # the run tries again in halves
        self._slots.clear()
        self._pictures = []
        return Batch(items, seconds=seconds)
