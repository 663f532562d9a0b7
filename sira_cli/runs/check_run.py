"""Captions that exist already, each with its picture: the engine of a run that decodes nothing and only looks again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from PIL import Image

from sira_cli.models.lvlm import Lvlm
from sira_cli.models.preset import Preset
from sira_cli.models.records import Answer, Result
from sira_cli.models.second_look import Verify
from sira_cli.models.sentences import without_sentences
from sira_cli.pictures.captioned import CaptionedPicture
from sira_cli.runs.batch import Batch, BatchRun
from sira_cli.runs.item import Item

TASK = "check"
EMPTY = "the caption is empty"
NOT_RECOGNISED = "names nothing that the list of words has"
NOTHING_LEFT = "every sentence names something that is not supported: nothing is left of it"


def engine_of(task: str) -> type[BatchRun]:
    """Return the engine of a task on this machine."""
    return CheckRun if task == TASK else BatchRun


def plain(preset: Preset) -> Preset:
    """Return a preset without settings that have no part in a second look: it is neither sampled nor changed."""
    return preset.with_settings(temperature=0.0, num_beams=1).without_text()


def prompt_of(verify: Verify, preset: Preset) -> str:
    """Return what is asked about every caption, for keys: all that decides the answers beside picture and caption."""
    return json.dumps(verify.settings(preset), sort_keys=True)


class CheckRun(BatchRun):
    """Asks about the things that captions name; its pictures are `CaptionedPicture`s.

    Records have the caption as `text`, and what becomes of it without the sentences that are not supported.
    """

    def __init__(self, lvlm: Lvlm, task: str, prompt: str, *, verify: Verify | None = None, **settings: Any) -> None:
        """Prepare a run.

        Args:
            lvlm: the model; its decoder has no part in it.
            task: `check`.
            prompt: from `prompt_of`.
            verify: how to look.
            **settings: of `BatchRun`: batch_size, done.
        """
        verify = verify or Verify()
        preset = plain(lvlm.preset)
        super().__init__(lvlm.under(preset.method("greedy"), preset), task, prompt, verify=verify, **settings)
        self._how = verify.settings(preset)

    def blank(self) -> Result:
        """Return a result without a picture: what all results of this run have in common."""
        return self._checked(super().blank(), "")

    def _inputs(self, pictures: list[tuple[Item, Image.Image]]) -> Any:
        """Return whether there is anything to ask about: questions are prepared when the things are known."""
        return True if pictures else None

    def _answers(self, batch: Batch) -> list[Answer]:
        assert self._look is not None
        texts = [Answer(_text(item), "stop") for item in batch.items]
        return self._look.flagged(batch.images, texts, self._how)

    def _settle(self, item: Item, answer: Answer, milliseconds: float = 0.0) -> None:
        super()._settle(item, answer, milliseconds)
        assert item.result is not None
        item.result = self._checked(item.result, _text(item))

    def _checked(self, result: Result, text: str) -> Result:
        ok, objects, line = result.status == "ok", result.objects or [], self._how["min_support"]
        unsupported = [span for claim in objects if claim["support"] < line for span in claim["spans"]]
        fixed, dropped = without_sentences(text, unsupported)
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
        )


def _remarks(text: str, objects: Sequence[dict[str, Any]], fixed: str) -> list[str]:
    """Return why to look at a caption again."""
    if not text.strip():
        return [EMPTY]
    return [NOT_RECOGNISED] if not objects else [] if fixed else [NOTHING_LEFT]


def _text(item: Item) -> str:
    return cast(CaptionedPicture, item.picture).text
