"""The task of existing captions: it asks about their objects, and rewrites from unsupported ones on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from PIL import Image

from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.models.look.rewriting import Rewriter
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.sentences import without_sentences
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.preset import Preset
from sira_cli.models.processors import check_pictures
from sira_cli.models.records import Answer, Result
from sira_cli.pictures.captioned import CaptionedPicture
from sira_cli.pictures.picture import Picture
from sira_cli.runs.item import Item
from sira_cli.runs.picture_task import PictureTask
from sira_cli.runs.request import Request
from sira_cli.runs.slots import Batch

TASK = "check"
TOGETHER = 8  # pictures, as an automatic batch size
EMPTY = "the caption is empty"
NOT_RECOGNISED = "names nothing that the list of words has"
STILL = "objects that could not be removed"
TOO_LONG = "the unsupported objects come after `max_new_tokens=`: nothing is removed"
NOTHING_LEFT = "every sentence names something that is not supported: nothing is left of it"


@dataclass(frozen=True)
class CheckRequest(Request):
    """A second look at a caption of each picture. `CheckRequest.under` makes it."""

    @classmethod
    def under(cls, preset: Preset, method: Method, verify: Verify | None) -> tuple[Self, Preset, Method]:
        """Return the request, and the preset and the method that take part.

        Args:
            preset, method: the usual ones. Without rewriting, the method is greedy.
            verify: how to look; None: as in the preset.
        """
        verify = verify or Verify()
        # Nothing is sampled, reasoned or changed.
        preset = preset.with_settings(temperature=0.0, num_beams=1, think=False).without_text()
        # For keys: all that decides the answers besides picture and caption.
        how = verify.settings(preset) | ({"prompt": preset.prompts.caption} if verify.rewrites else {})
        request = cls(TASK, json.dumps(how, sort_keys=True), verify=verify)
        return request, preset, method if verify.rewrites else find("greedy")

    def check(self, preset: Preset, method: Method, *, compiled: bool = False) -> None:
        """Check that a method can continue a part of a caption, if it has to.

        Raises:
            SettingsError: it cannot.
        """
        self.how.check(method, 1, words=False, choices=False, compiled=compiled)

    def settings(self, preset: Preset, method: Method, quantization: str | None) -> dict[str, Any]:
        """Return all settings that decide the records of a run, as in its report."""
        how = self.how.settings(preset)
        return self._deciding(how["question"], preset, method, quantization) | {"verify": how}

    @property
    def how(self) -> Verify:
        """How to look."""
        return self.verify or Verify()


class CheckTask(PictureTask):
    """The task of each caption: ask about the objects that it names. Pictures are `CaptionedPicture`s.

    Records have the caption as `text`, and the caption without unsupported objects as `fixed`: without the sentences
    that name them, or, where the request rewrites, decoded again from there on.
    """

    def __init__(self, lvlm: Lvlm, request: CheckRequest, done: Callable[[str], str]) -> None:
        """Prepare the task.

        Args:
            lvlm: under the preset and the method of `CheckRequest.under`.
            request, done: as for `PictureTask`.
        """
        super().__init__(lvlm, request, done)
        self.streams = False
        self._how = request.how.settings(lvlm.preset)
        self._look = SecondLook(lvlm, request.how.words)
        self._mender = Rewriter(lvlm, request.how) if request.how.rewrites else None

    def _answering_twice(self) -> None:
        """Return None: the captions are there already."""

    def blank(self) -> Result:
        """Return a result without a picture: the fields that are equal in all results of this task."""
        return self._checked(super().blank(), "")

    def complete(self, item: Item[Result]) -> None:
        """Leave the prompt: the model is asked about objects, and never given the caption as a prompt."""

    def slots(self, rows: int) -> None:
        """Return None: captions are checked one by one."""

    def largest_batch(self, inputs: Any, groups: int) -> int:
        """Return the number of pictures opened ahead: they are checked one by one, whatever the memory."""
        return TOGETHER

    def inputs(self, items: Sequence[Item[Result]], images: Sequence[Image.Image]) -> Any:
        """Return that there is something to ask about: questions are prepared when the objects are known."""
        check_pictures(self.lvlm.processor, images)
        return True

    def _answers(self, batch: Batch[Result], on_text: Callable[[Picture, str], None] | None) -> list[Answer]:
        return [self._answer(image, _text(item)) for image, item in zip(batch.images, batch.items, strict=True)]

    def _answer(self, image: Image.Image, text: str) -> Answer:
        """Return the check of a caption, with the new caption if it is rewritten."""
        line, lvlm = self._how["min_support"], self.lvlm
        check = self._look.check(image, text)
        answer = check.beside(Answer(text, "stop"), self._how)
        starts = [claim.spans[0][0] for claim in check.below(line)]
        if self._mender is None or not starts:
            return answer
        if len(lvlm.vocabulary.encode(text[: min(starts)])) > lvlm.preset.generation.max_new_tokens:
            return replace(answer, warnings=(TOO_LONG,))
        new = self._mender.rewrite(image, text)
        left = ", ".join(claim.thing for claim in new.check.below(line))
        return replace(
            answer,
            text=new.text,
            removed=[{"thing": claim.thing, "support": claim.support} for claim in new.removed],
            warnings=(f"{STILL}: {left}",) if left else (),
        )

    def settle(self, item: Item[Result], answer: Answer, milliseconds: float = 0.0) -> None:
        """Give an item its record, with the rest of the caption."""
        super().settle(item, answer, milliseconds)
        assert item.result is not None
        item.result = self._checked(item.result, _text(item))

    def _checked(self, result: Result, text: str) -> Result:
        ok, objects, line = result.status == "ok", result.objects or [], self._how["min_support"]
        fixed: str
        dropped: list[str] | None
        if self._mender is None:
            unsupported = [span for claim in objects if claim["support"] < line for span in claim["spans"]]
            fixed, dropped = without_sentences(text, unsupported)
        else:
            fixed, dropped = result.text if ok else text, None
        support = min((claim["support"] for claim in objects), default=1.0)
        remarks = [*(result.warnings or []), *(_remarks(text, objects, fixed) if ok else [])]
        return replace(
            result,
            text=text,
            prompt=self._how["question"],
            warnings=remarks or None,
            support=support if ok else 0.0,
            fixed=fixed,
            dropped=dropped,
            removed=None if self._mender is None else result.removed or [],
        )


def _remarks(text: str, objects: Sequence[dict[str, Any]], fixed: str) -> list[str]:
    """Return why to look at a caption again."""
    if not text.strip():
        return [EMPTY]
    return [NOT_RECOGNISED] if not objects else [] if fixed else [NOTHING_LEFT]


def _text(item: Item[Result]) -> str:
    return cast(CaptionedPicture, item.picture).text
