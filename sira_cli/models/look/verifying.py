"""Answers with a second look at them, as set in `Verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sira_cli.data.records.record import Answer
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.answering.starts import Trail
from sira_cli.models.look.entries import looked
from sira_cli.models.look.rewriting import Rewriter
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.models.schemas.schema import Schema

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


class VerifiedAnswers:
    """A loaded model that looks twice.

    Attributes:
        settings: settings of the look, as in records.
    """

    def __init__(self, lvlm: AnsweringModel, verify: Verify) -> None:
        """Prepare to answer.

        Raises:
            SettingsError: the second look does not fit the method or the settings.
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        beams, compiled = lvlm.preset.generation.num_beams, lvlm.compiled is not None
        verify.check(lvlm.decoder, beams, words=False, choices=False, compiled=compiled)
        self.settings = verify.settings(lvlm.preset)
        self._lvlm = lvlm
        self._rewriter = Rewriter(lvlm, verify) if verify.rewrites else None
        self._look = SecondLook(lvlm, verify) if self._rewriter is None else self._rewriter.look

    def answer(
        self,
        images: Sequence[Shown],
        inputs: Any,
        *,
        seeds: Sequence[int],
        words: bool = False,
        task: str,
        schema: Schema | None = None,
    ) -> list[Answer]:
        """Decode, and return answers with the objects of their texts; text settings are applied.

        Args:
            images: B pictures or groups, RGB.
            inputs, seeds, words, task: as for `AnsweringModel.answer`.
            schema: all texts follow it.
        """
        lvlm, trail = self._lvlm, Trail(range(len(images)))
        inputs = lvlm.to_device(inputs)
        schemas = None if schema is None else [schema] * len(images)
        answers = lvlm.answer(inputs, seeds=seeds, words=words, task=task, trail=trail, schemas=schemas)
        if schema is not None:
            how = schema, self.settings, lvlm.preset.text
            looks = self._look.at(images, inputs, trail)
            return [looked(look, answer, *how) for look, answer in zip(looks, answers, strict=True)]
        if self._rewriter is not None:
            return self._rewriter.rewritten(images, answers, inputs, self.settings, seeds=seeds, task=task, trail=trail)
        finished = [lvlm.preset.text.finished(answer) for answer in answers]
        looks = self._look.at(images, inputs, trail)
        return [
            look.check(answer.text).added_to(answer, self.settings)
            for look, answer in zip(looks, finished, strict=True)
        ]
