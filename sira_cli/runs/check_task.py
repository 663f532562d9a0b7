"""The task of existing captions: ask about their objects, and rewrite from the first unsupported one on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from sira_cli.data.captions.captioned import CaptionedPicture
from sira_cli.data.records.record import Answer, Result
from sira_cli.models.final_answers import FinalAnswers
from sira_cli.models.inputs.processors import check_pictures
from sira_cli.models.look.rewriting import Rewriter
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.many.item import Batch, Item
from sira_cli.models.many.picture_task import PictureTask
from sira_cli.pictures.picture import Picture
from sira_cli.runs.check_request import CheckRequest, checked

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

TOGETHER = 8  # pictures, as an automatic batch size
STILL = "objects that could not be removed"
TOO_LONG = "the unsupported objects come after max_new_tokens: nothing is removed"


class CheckTask(PictureTask):
    """The task of each caption: ask about the objects that it names. Pictures are `CaptionedPicture`s.

    Records have the caption as `text`, and as `fixed` the caption without unsupported objects: without their sentences,
    or, if the request rewrites, decoded again from the first one on.
    """

    def __init__(self, lvlm: Lvlm, request: CheckRequest, done: Callable[[str], str]) -> None:
        """Prepare the task.

        Args:
            lvlm: under the preset and the method of `CheckRequest.under`.
            request, done: as for `PictureTask`.
        """
        super().__init__(lvlm, request, done)
        self.streams = False
        self._how, self._thresholds = request.how.settings(lvlm.preset), request.how.thresholds(lvlm.preset)
        self._look = SecondLook(lvlm, request.how)
        self._mender = Rewriter(lvlm, request.how) if request.how.rewrites else None

    def _final_answers(self) -> FinalAnswers:
        return FinalAnswers(self.lvlm)  # the captions exist already

    def blank(self) -> Result:
        """Return a result without a picture: the fields that are equal in all results of this task."""
        return checked(super().blank(), None, self._how)

    def complete(self, item: Item[Result]) -> None:
        """Leave the prompt: the model is asked about objects, and never given the caption as a prompt."""

    def largest_batch(self, inputs: Any) -> int:
        """Return the number of pictures opened ahead: they are checked one by one, whatever the memory."""
        return TOGETHER

    def inputs(self, items: Sequence[Item[Result]], images: Sequence[Shown]) -> Any:
        """Return True: questions are prepared when the objects are known."""
        check_pictures(self.lvlm.processor, images)
        return True

    def _answers(self, batch: Batch[Result], on_text: Callable[[Picture, str], None] | None) -> list[Answer]:
        return [self._answer(image, _caption(item)) for image, item in zip(batch.images, batch.items, strict=True)]

    def _answer(self, image: Shown, caption: CaptionedPicture) -> Answer:
        """Return the check of a caption, with the new caption if it is rewritten."""
        thresholds, lvlm, text = self._thresholds, self.lvlm, caption.text
        check = self._look.check(image, text)
        answer = check.added_to(Answer(text, "stop"), self._how)
        starts = [claim.spans[0][0] for claim in check.below(thresholds) if claim.spans]
        if self._mender is None or not starts or not caption.is_prose:
            return answer
        if len(lvlm.vocabulary.encode(text[: min(starts)])) > lvlm.preset.generation.max_new_tokens:
            return replace(answer, warnings=(TOO_LONG,))
        new = self._mender.rewrite(image, text)
        left = ", ".join(claim.shown for claim in new.check.below(thresholds))
        return replace(
            answer,
            text=new.text,
            removed=[claim.removed() for claim in new.removed],
            warnings=(f"{STILL}: {left}",) if left else (),
        )

    def settle(self, item: Item[Result], answer: Answer, milliseconds: float = 0.0) -> None:
        """Give an item its record, with the rest of the caption."""
        super().settle(item, answer, milliseconds)
        assert item.result is not None
        item.result = checked(item.result, _caption(item), self._how)


def _caption(item: Item[Result]) -> CaptionedPicture:
    return cast(CaptionedPicture, item.picture)
