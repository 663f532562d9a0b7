"""A decoder that never waits: the next picture takes the row of an ended text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from sira_cli.core.refill import RowBatch
from sira_cli.core.rules import cut_offs_kept
from sira_cli.data.records.record import Answer
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.loops import LoopFinder
from sira_cli.models.loading.compiled import compiler_errors

if TYPE_CHECKING:
    from sira_cli.models.schemas.following import FollowingText
    from sira_cli.models.schemas.schema import Schema

T = TypeVar("T")


@dataclass(eq=False)
class _Row(Generic[T]):
    """A running text; `prompt` is `[1, S]`, without padding; `loops` is None if texts may loop."""

    item: T
    prompt: Tensor
    image_tokens: int
    longest: int
    processors: LogitsProcessorList
    loops: LoopFinder | None
    schema: Schema | None
    follows: FollowingText | None
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    has_ended: bool = False

    def pick(self, logits: Tensor) -> Tensor:
        """Pick the next token: `[1, V]` -> `[1]`."""
        ids: Any = torch.cat([self.prompt, self.prompt.new_tensor([self.tokens])], dim=1)
        scores: Any = logits
        token: Tensor = self.processors(ids, scores).argmax(dim=-1)
        return token


@dataclass(frozen=True)
class EndedItem(Generic[T]):
    """A text that has ended.

    Attributes:
        item: the item given with its prompt.
        answer: the text, and how it ended.
        seconds: time of its passes, divided among the rows of each.
    """

    item: T
    answer: Answer
    seconds: float


class RefilledSlots(Generic[T]):
    """Running texts, each as if decoded alone: add prompts while others are decoded, and take ended texts.

        slots = RefilledSlots(lvlm)
        slots.add(names, lvlm.prepare(images, prompts), lvlm.text_seeds(hashes, prompts))
        while slots.under_way:
            for ended in slots.advance():
                print(ended.item, ended.answer.text)

    The method's hooks are on the model only while `add` and `advance` run.

    Attributes:
        rows: as given; a new number applies after `clear`.
    """

    def __init__(
        self,
        lvlm: AnsweringModel,
        task: str = "caption",
        on_token: Callable[[T, int, Tensor], bool] | None = None,
        *,
        rows: int = 0,
    ) -> None:
        """Begin without texts.

        Args:
            lvlm: the model; `refills` must be true.
            task: `caption` or `ask`, which some methods treat differently.
            on_token: called with each new token of a text: its item, the token, and the method's logits for it, `[V]`
                float32. True ends the text with this token.
            rows: number of simultaneous texts, for compiled steps, which need a graph per number.
        """
        self._on_token = on_token
        self._lvlm, self._decoder = lvlm, lvlm.decoder.for_task(task)
        self.rows = rows
        self._batch = self._empty_batch()
        self._rows: list[_Row[T]] = []  # as in the batch
        self._ended: list[EndedItem[T]] = []

    @property
    def under_way(self) -> int:
        """Number of texts added and not yet taken."""
        return len(self._rows) + len(self._ended)

    @torch.no_grad()
    def add(
        self,
        items: Sequence[T],
        inputs: Any,
        seeds: Sequence[int],
        lengths: Sequence[int] | None = None,
        schemas: Sequence[Schema | None] | None = None,
    ) -> None:
        """Run some prompts together, and begin their texts next to the others.

        Args:
            items: their items, returned with the answers.
            inputs: from `Lvlm.prepare`.
            seeds: one per text, from `Lvlm.text_seeds`.
            lengths: maximum tokens of each text; None: from the settings in force.
            schemas: the schema that each text follows (None: none); None: none does.
        """
        started = time.perf_counter()
        lvlm, inputs = self._lvlm, self._lvlm.to_device(inputs)
        image_tokens, _ = lvlm.lengths(inputs)
        settings = lvlm.preset.generation
        lengths = [settings.max_new_tokens] * len(items) if lengths is None else lengths
        rows = []
        about = lvlm.about_pictures(schemas, inputs)
        for number, (item, seed, schema) in enumerate(zip(items, seeds, about, strict=True)):
            seen = inputs["attention_mask"][number : number + 1].bool()  # [1, S]
            prompt = inputs["input_ids"][number : number + 1][seen][None]
            processors = lvlm.processors([seed], torch.ones_like(prompt))
            loops = None if settings.on_loop is None else LoopFinder()
            follows = lvlm.following(schema, lengths[number])
            rows.append(_Row(item, prompt, image_tokens[number], lengths[number], processors, loops, schema, follows))
        with self._decoder.attach(lvlm.model, lvlm.sira, inputs["input_ids"], {}), cut_offs_kept():
            room = 0 if lvlm.compiled is None else max(settings.max_new_tokens, *lengths)
            logits = self._batch.join(inputs, room)
            self._rows += rows
            self._take(rows, logits, started)

    @torch.no_grad()
    def advance(self, pause: Callable[[], bool] | None = None) -> list[EndedItem[T]]:
        """Decode until a text ends, and return the ended texts; empty if no text is running.

        Args:
            pause: called after every token of the texts; true: return, even if no text has ended.
        """
        if self.under_way and not self._ended:
            with self._decoder.attach(self._lvlm.model, self._lvlm.sira, torch.empty(0), {}), cut_offs_kept():
                while not self._ended:
                    started = time.perf_counter()
                    newest = torch.tensor([row.tokens[-1] for row in self._rows], device=self._rows[0].prompt.device)
                    self._take(self._rows, self._step(newest), started)
                    if pause is not None and pause():
                        break
        ended, self._ended = self._ended, []
        return ended

    def clear(self) -> None:
        """Drop all running texts, as is necessary after an error."""
        self._rows, self._ended, self._batch = [], [], self._empty_batch()

    def _empty_batch(self) -> RowBatch:
        compiled = self._lvlm.compiled
        return RowBatch(self._lvlm.model, rows=self.rows, compile_config=None if compiled is None else compiled.config)

    def _step(self, newest: Tensor) -> Tensor:
        if self._lvlm.compiled is None:
            return self._batch.step(newest)
        with compiler_errors():
            return self._batch.step(newest)

    def _take(self, rows: Sequence[_Row[T]], logits: Tensor, started: float) -> None:
        """Pick a token for each of some rows, and record which texts have ended."""
        scores = self._followed(rows, logits)
        picked = scores.argmax(dim=-1)
        if rows[0].processors:
            picked = torch.cat([row.pick(z[None]) for row, z in zip(rows, scores, strict=True)])
        each = (time.perf_counter() - started) / len(rows)
        for row, token, z in zip(rows, picked.tolist(), logits, strict=True):
            row.tokens.append(token)
            if row.follows is not None:
                row.follows.add(token)
            row.seconds += each
            if self._ends(row, z):
                row.has_ended = True
                answer = self._lvlm.answer_of(row.tokens, row.image_tokens, row.prompt.shape[1], row.schema)
                self._ended.append(EndedItem(row.item, answer, row.seconds))
        self._drop_ended()

    def _followed(self, rows: Sequence[_Row[T]], logits: Tensor) -> Tensor:
        """Rule out tokens that break the texts' schemas."""
        if all(row.follows is None for row in rows):
            return logits
        from sira_cli.models.schemas.following import masked

        return masked([row.follows for row in rows], logits)

    def _drop_ended(self) -> None:
        """Remove rows whose texts have ended; the last rows take their places, so that few are copied."""
        going = [number for number, row in enumerate(self._rows) if not row.has_ended]
        if len(going) == len(self._rows):
            return
        last = [number for number in going if number >= len(going)]
        stay = [last.pop() if row.has_ended else number for number, row in enumerate(self._rows[: len(going)])]
        self._rows = [self._rows[number] for number in stay]
        self._batch.keep(stay)

    def _ends(self, row: _Row[T], logits: Tensor) -> bool:
        newest = row.tokens[-1]
        looped = row.loops is not None and row.loops.add(newest) is not None
        stopped = self._on_token is not None and self._on_token(row.item, newest, logits)
        return stopped or looped or newest in self._lvlm.ends.ids or len(row.tokens) >= row.longest
