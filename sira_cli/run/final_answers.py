"""Final answers: with a schema, a second look, and text settings applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sira_cli.look.guiding import GuidedCaptions
from sira_cli.look.second_look import PictureLook, SecondLook
from sira_cli.look.verify import Verify
from sira_cli.models import combinations
from sira_cli.models.progress import Trail
from sira_cli.models.schema import Schema
from sira_cli.models.texts import Answer, TextSettings

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


class FinalAnswers:
    """A loaded model that gives answers in their final form, as in records and replies.

    Attributes:
        settings: settings of the second look, as in records; empty without one.
    """

    def __init__(self, lvlm: Any, verify: Verify | None = None, *, words: bool = False) -> None:
        """Prepare to answer."""
        self._lvlm, self.settings = lvlm, dict[str, Any]()
        self._guided: GuidedCaptions | None = None
        self._verify = verify
        self._look: SecondLook | None = None
        if verify is None:
            return
        combinations.check(lvlm.preset, lvlm.decoder, words=words, verify=verify.mode)
        self.settings = verify.settings(lvlm.preset)
        self._guided = GuidedCaptions(lvlm, verify) if verify.guides else None
        self._look = lvlm.look(verify) if self._guided is None else self._guided.look

    @property
    def guides(self) -> bool:
        """Whether texts are decoded after the look."""
        return self._guided is not None

    def answer(
        self,
        images: Sequence[Shown],
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        words: bool = False,
        task: str,
        schema: Schema | None = None,
    ) -> list[Answer]:
        """Decode each row of prepared inputs."""
        lvlm = self._lvlm
        inputs = lvlm.to_device(inputs)
        schemas = None if schema is None else [schema] * len(inputs["input_ids"])
        asked: dict[str, Any] = {"seeds": seeds, "words": words, "task": task, "schemas": schemas}
        if self._look is None:
            return [lvlm.preset.text.finished(answer) for answer in lvlm.answer(inputs, on_text, **asked)]
        if self._guided is not None and self._verify is not None:
            assert seeds is not None
            combinations.check(lvlm.preset, lvlm.decoder, task=task, verify=self._verify.mode, schema=schema)
            return self._guided.answers(images, inputs, self.settings, seeds=seeds, task=task)
        trail = Trail(range(len(images)))
        answers = lvlm.answer(inputs, trail=trail, **asked)
        looks = self._look.at(images, inputs, trail)
        return [self._seen(look, answer, schema) for look, answer in zip(looks, answers, strict=True)]

    def finished(self, answer: Answer, image: Callable[[], Shown], schema: Schema | None = None) -> Answer:
        """Return a decoded answer in its final form, without decoding again."""
        if self._look is None:
            text: TextSettings = self._lvlm.preset.text
            return text.finished(answer)
        return self._seen(PictureLook(self._look, image()), answer, schema)

    def _seen(self, look: PictureLook, answer: Answer, schema: Schema | None) -> Answer:
        text: TextSettings = self._lvlm.preset.text
        if schema is not None:
            return look.check_values(answer, schema, self.settings, text)
        answer = text.finished(answer)
        return look.check(answer.text).added_to(answer, self.settings)
