"""The engine of runs over existing captions: it asks about their objects, and rewrites from unsupported ones on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

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
from sira_cli.runs.batch import BatchRun
from sira_cli.runs.item import Item
from sira_cli.runs.picture_task import PictureTask
from sira_cli.runs.slots import Batch

TASK = "check"
TOGETHER = 8  # pictures, as an automatic batch size
EMPTY = "the caption is empty"
NOT_RECOGNISED = "names nothing that the list of words has"
STILL = "objects that could not be removed"
TOO_LONG = "the unsupported objects come after `max_new_tokens=`: nothing is removed"
NOTHING_LEFT = "every sentence names something that is not supported: nothing is left of it"


def engine_of(task: str) -> type[BatchRun]:
    """Return the engine of a task on this machine."""
    return CheckRun if task == TASK else BatchRun


def plain(preset: Preset) -> Preset:
    """Return a preset without settings that a second look does not use: nothing is sampled, reasoned or changed."""
    return preset.with_settings(temperature=0.0, num_beams=1, think=False).without_text()


def method_of(verify: Verify, usual: Method) -> Method:
    """Return the method that takes part: the usual one where captions are rewritten, else greedy."""
    return usual if verify.rewrites else find("greedy")


def prompt_of(verify: Verify, preset: Preset) -> str:
    """Return the question about every caption, for keys: all that decides the answers besides picture and caption."""
    more = {"prompt": preset.prompts.caption} if verify.rewrites else {}
    return json.dumps(verify.settings(preset) | more, sort_keys=True)


class CheckTask(PictureTask):
    """The task of each caption: ask about the objects that it names.

    Records have the caption as `text`, and the caption without unsupported objects as `fixed`: without the sentences
    that name them, or, where `verify` rewrites, decoded again from there on.
    """

    def __init__(self, lvlm: Lvlm, name: str, prompt: str, *, verify: Verify | None = None, **settings: Any) -> None:
        """Prepare the task.

        Args:
            lvlm: the model; its decoder is used for rewriting only.
            name: `check`.
            prompt: from `prompt_of`.
            verify: how to look.
            **settings: of `PictureTask`: done.

        Raises:
            SettingsError: the decoder cannot continue a part of a caption.
        """
        verify = verify or Verify()
        preset = plain(lvlm.preset)
        lvlm = lvlm.under(method_of(verify, lvlm.decoder), preset)
        verify.check(lvlm.decoder, 1, words=False, choices=False, compiled=False)
        super().__init__(lvlm, name, prompt, **settings)
        self._looked = self._how = verify.settings(preset)
        self._look = SecondLook(lvlm, verify.words)
        self._mender = Rewriter(lvlm, verify) if verify.rewrites else None

    def blank(self) -> Result:
        """Return a result without a picture: the fields that are equal in all results of this task."""
        return self._checked(super().blank(), "")

    def _complete_prompt(self, item: Item) -> None:
        """Leave it: the model is asked about things, and never given the caption as a prompt."""

    def inputs(self, pictures: Sequence[tuple[Item, Image.Image]]) -> Any:
        """Return whether there is anything to ask about: questions are prepared when the objects are known."""
        check_pictures(self.lvlm.processor, [image for _, image in pictures])
        return True if pictures else None

    def _answers(self, batch: Batch, on_text: Callable[[Picture, str], None] | None) -> list[Answer]:
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

    def settle(self, item: Item, answer: Answer, milliseconds: float = 0.0) -> None:
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


class CheckRun(BatchRun):
    """Many captions, whose pictures are `CaptionedPicture`s; with `CheckTask`'s arguments and `batch_size`."""

    task_type = CheckTask

    def _largest_batch(self, inputs: Any) -> int:
        """Return the number of pictures opened ahead: they are checked one by one, whatever the memory."""
        return TOGETHER


def _remarks(text: str, objects: Sequence[dict[str, Any]], fixed: str) -> list[str]:
    """Return why to look at a caption again."""
    if not text.strip():
        return [EMPTY]
    return [NOT_RECOGNISED] if not objects else [] if fixed else [NOTHING_LEFT]


def _text(item: Item) -> str:
    return cast(CaptionedPicture, item.picture).text
