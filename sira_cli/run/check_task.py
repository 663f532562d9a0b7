"""The task of existing captions: ask about the objects that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sira_cli.models.processor import check_pictures
from sira_cli.models.texts import Answer
from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import Batch, Item
from sira_cli.run.check_request import CheckRequest, checked
from sira_cli.run.final_answers import FinalAnswers
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.picture_task import PictureTask
from sira_cli.run.records import Result

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

TOGETHER = 8  # pictures, as an automatic batch size


class CheckTask(PictureTask):
    """The task of each caption: ask about the objects that it names. Each picture has a caption."""

    def __init__(self, lvlm: Lvlm, request: CheckRequest, done: Callable[[str], str]) -> None:
        """Prepare the task."""
        super().__init__(lvlm, request, done)
        self.streams = False
        self._how = request.how.settings(lvlm.preset)
        self._look = lvlm.look(request.how)

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
        found = []
        for image, item in zip(batch.images, batch.items, strict=True):
            text = item.picture.caption or ""
            found.append(self._look.check(image, text).added_to(Answer(text, "stop"), self._how))
        return found

    def settle(self, item: Item[Result], answer: Answer, milliseconds: float = 0.0) -> None:
        """Give an item its record, with the rest of the caption."""
        super().settle(item, answer, milliseconds)
        assert item.result is not None
        item.result = checked(item.result, item.picture, self._how)
