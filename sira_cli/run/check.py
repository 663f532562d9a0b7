"""A second look at existing captions: each object that a caption names is asked about.

lvlm, pictures = load("llava-1.5-7b"), find_captions("photos/").pictures
task = Check.under(lvlm.preset).about(pictures)
with Output(task, pictures, Files("checks.jsonl")) as output:
    for event in run(task, pictures, Local(lvlm), output):
        print(event)
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sira_cli.look.claims import Verify
from sira_cli.methods import find
from sira_cli.models import combinations
from sira_cli.models.preset import Preset
from sira_cli.models.texts import Answer
from sira_cli.pictures.picture import Picture
from sira_cli.run.items import Batch, Item, message
from sira_cli.run.records import Result
from sira_cli.run.task import PictureTask

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown
    from sira_cli.models.model import LoadedModel

TOGETHER = 8  # pictures, as an automatic batch size
EMPTY = "the caption is empty"
NOT_RECOGNISED = "names nothing that the list of words has"


@dataclass(frozen=True)
class Check(PictureTask):
    """A second look at the caption of each picture. `Check.under` makes it."""

    source: str = ""  # of a server's answers: `logprobs`, or `answer` without probabilities; empty for a model here

    kind = "check"

    @classmethod
    def under(cls, preset: Preset, verify: Verify | None = None) -> Self:
        """Return the task: nothing is sampled, reasoned or changed, and the unchanged model answers."""
        verify = verify or Verify()
        preset = preset.with_settings(temperature=0.0, num_beams=1, think=False).without_text()
        combinations.check(preset, greedy := find("greedy"), task=cls.kind, verify=verify.mode)
        # For keys: all that decides the answers besides picture and caption.
        return cls(preset, greedy, json.dumps(verify.settings(preset), sort_keys=True), verify=verify)

    def about(self, pictures: Sequence[Picture]) -> Self:
        """Return the task for these pictures; each is asked about by itself."""
        return replace(super().about(pictures), together=1)

    def settings(self) -> dict[str, Any]:
        """Return all settings that decide the records of a run, as in its report."""
        look = replace(self, source="").how
        settings = super().settings() | {"prompt": look["question"], "verify": look}
        del settings["words"], settings["choices"]
        return settings

    @functools.cached_property
    def how(self) -> dict[str, Any]:
        """The settings of the second look, as in records."""
        assert self.verify is not None
        return self.verify.settings(self.preset) | ({"source": self.source} if self.source else {})

    def complete(self, lvlm: LoadedModel, item: Item[Result]) -> None:
        """Leave the prompt: the model is asked about objects, and never given the caption as a prompt."""

    def largest_batch(self, lvlm: LoadedModel, inputs: Any) -> int:
        """Return the number of pictures opened ahead: they are checked one by one, whatever the memory."""
        return TOGETHER

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[Result]], images: Sequence[Shown]) -> Any:
        """Return True: questions are prepared when the objects are known."""
        from sira_cli.models.resizing import check_pictures

        check_pictures(lvlm.processor, images)
        return True

    def answers(
        self, lvlm: LoadedModel, batch: Batch[Result], on_text: Callable[[str], None] | None = None
    ) -> list[Answer]:
        """Return the caption of each picture of a batch, with the objects that it names."""
        look = self.second_look(lvlm)
        answers = []
        for image, item in zip(batch.images, batch.items, strict=True):
            text = item.picture.caption or ""
            answers.append(look.check(image, text).added_to(Answer(text, "stop"), self.how))
        return answers

    def fail(self, lvlm: LoadedModel, item: Item[Result], error: Exception) -> None:
        """Give an item the record of a picture that failed, with its caption."""
        answer = self.no_answer(message(item.picture, error), lvlm)
        self.settle(lvlm, item, replace(answer, text=item.picture.caption or ""))

    def record(self, answer: Answer, lvlm: LoadedModel | None = None, item: Item[Result] | None = None) -> Result:
        """Return the record of a check, with the caption."""
        result = replace(super().record(answer, lvlm, item), prompt=self.how["question"])
        if answer.error:
            return replace(result, support=0.0)
        objects = result.objects or []
        remarks = result.warnings or []
        if not objects:
            remarks = [*remarks, NOT_RECOGNISED if result.text.strip() else EMPTY]
        support = min((claim["support"] for claim in objects if claim["spans"]), default=1.0)
        return replace(result, warnings=remarks or None, support=support)
