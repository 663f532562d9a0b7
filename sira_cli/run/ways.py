"""The ways in which a loaded model answers about pictures: a task picks one (`PictureTask.way`).

GivenAnswers    the likeliest of the answers that are given
PlainText       the text as it is decoded
CheckedText     the same text, with a second look at the objects that it names
GuidedCaptions  a text that names supported objects only (`look.guiding`)
BestCaptions    the best supported of several texts (`look.best`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sira_cli.look.second_look import SecondLook
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Trail
from sira_cli.models.schema import Schema
from sira_cli.models.texts import Answer

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


class Way(Protocol):
    """How a loaded model answers about pictures."""

    def answers(self, images: Sequence[Shown], inputs: Any, seeds: Sequence[int]) -> list[Answer]:
        """Return the final answers about B pictures.

        Args:
            images: the pictures, if a second look needs them.
            inputs: of their prompts, on the model's device.
            seeds: one per picture, from `LoadedModel.text_seeds`.
        """


@dataclass(frozen=True)
class GivenAnswers:
    """The likeliest of the given answers, instead of decoding."""

    lvlm: LoadedModel
    choices: Sequence[str]

    def answers(self, images: Sequence[Shown], inputs: Any, seeds: Sequence[int]) -> list[Answer]:
        """Return the choice about each picture; no seed has a part in it."""
        return self.lvlm.choose(inputs, self.choices)


@dataclass(frozen=True)
class PlainText:
    """A text as it is decoded; `kind` is the task's, `words` scores them, `schema` is what each text follows."""

    lvlm: LoadedModel
    kind: str
    words: bool
    schema: Schema | None
    on_text: Callable[[str], None] | None = None  # called with pieces of the text, if there is one picture

    def answers(self, images: Sequence[Shown], inputs: Any, seeds: Sequence[int]) -> list[Answer]:
        """Return the texts about pictures, which need not be there."""
        return [self.lvlm.preset.text.finished(answer) for answer in self.decoded(inputs, seeds)]

    def decoded(self, inputs: Any, seeds: Sequence[int], trail: Trail | None = None) -> list[Answer]:
        """Return the texts as they are decoded."""
        return self.lvlm.answer(
            inputs,
            self.on_text,
            words=self.words,
            seeds=seeds,
            task=self.kind,
            trail=trail,
            schemas=None if self.schema is None else [self.schema] * len(seeds),
        )


@dataclass(frozen=True)
class CheckedText:
    """A text with a second look at the objects that it names."""

    text: PlainText
    look: SecondLook

    def answers(self, images: Sequence[Shown], inputs: Any, seeds: Sequence[int]) -> list[Answer]:
        """Return the texts about pictures, with the support of their objects."""
        trail = Trail(range(len(images)))
        answers = self.text.decoded(inputs, seeds, trail)
        looks = self.look.at(images, inputs, trail)
        return [look.checked(answer, self.text.schema) for answer, look in zip(answers, looks, strict=True)]
