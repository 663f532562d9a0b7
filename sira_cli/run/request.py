"""A request about each picture of a run, known before the model is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sira_cli.errors import SettingsError
from sira_cli.look.verify import Verify
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset, check_text
from sira_cli.models.schema import Schema, SchemaSource
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.prompts import filled, needs_columns


@dataclass(frozen=True)
class Request:
    """A caption of each picture, or an answer about it.

    With a model, a method and a picture, it decides the picture's record.

    Attributes:
        task: `caption` or `ask`; part of the records.
        prompt: given to the model word by word, for pictures without their own.
        words: score the words of each text.
        choices: pick one of these answers, instead of decoding.
        verify: ask about each object that a text names, after it or before it.
        schema: each text follows it.
        fills: replace the prompt's `{names}` by each picture's columns.
        together: maximum number of pictures per prompt, as far as known before they are read.
        needs_text: whether an empty text is an error of its picture; a benchmark scores it.
    """

    task: str
    prompt: str
    words: bool = False
    choices: tuple[str, ...] = ()
    verify: Verify | None = None
    schema: Schema | None = None
    fills: bool = False
    together: int = 1
    needs_text: bool = False

    @classmethod
    def of(
        cls,
        preset: Preset,
        task: str,
        said: str | None,
        *,
        questions: bool = False,
        schema: SchemaSource | None = None,
        **options: Any,
    ) -> Self:
        """Return the request for a prompt or a question."""
        prompts = preset.prompts
        follows = options["schema"] = None if schema is None else Schema.of(schema)
        if questions:
            return cls("ask", prompts.ask, **options)
        if task == "ask" and said is None:
            raise SettingsError("a task of kind ask needs a prompt: the question")
        if said is None:
            return cls(task, (follows and follows.prompt) or prompts.caption, **options)
        return cls(task, prompts.asking(said) if task == "ask" else said, **options)

    def about(self, pictures: Sequence[Picture]) -> Self:
        """Return the request for these pictures, with `together` and `fills`."""
        together = max((len(picture.sources) for picture in pictures), default=1)
        return dataclasses.replace(self, fills=needs_columns(self.prompt, pictures), together=together)

    def asked(self, picture: Picture) -> str:
        """Return the prompt about a picture: its own, filled."""
        prompt = picture.asked(self.prompt)
        return filled(prompt, picture) if self.fills else prompt

    def check(self, preset: Preset, method: Method, engine: str = "") -> None:
        """Check that the settings, the method and the engine support the request, before the model is loaded."""
        choices = self.choices
        combinations.check(
            preset,
            method,
            task=self.task,
            words=self.words,
            choices=choices,
            verify=None if self.verify is None else self.verify.mode,
            schema=self.schema,
            engine=engine,
        )
        if not choices:
            return
        if len(choices) < 2 or not all(choices):
            raise SettingsError(f"`choices=` {','.join(choices)!r}: expected two or more answers, such as Yes,No")
        if repeated := next((each for each in choices if choices.count(each) > 1), None):
            raise SettingsError(f"`choices=` {','.join(choices)!r}: {repeated!r} stands twice; give each answer once")
        check_text("`choices=`", ",".join(choices))

    def settings(self, preset: Preset, method: Method) -> dict[str, Any]:
        """Return all settings that decide the records of a run, as in its report."""
        return {
            **self._deciding(self.prompt, preset, method),
            "words": self.words,
            "choices": list(self.choices),
            **({} if self.verify is None else {"verify": self.verify.settings(preset)}),
            **({} if self.schema is None else {"json_schema": self.json_schema}),
        }

    def _deciding(self, prompt: str, preset: Preset, method: Method) -> dict[str, Any]:
        return {
            "task": self.task,
            "prompt": prompt,
            "method": method.name,
            "quantization": preset.load.quantization,
            "preset": preset.name,
            **method.decisive(preset.decisive(), self.task),
        }

    def looked(self, preset: Preset) -> dict[str, Any] | None:
        """Return the settings of the second look, for keys; None without one."""
        return None if self.verify is None else self.verify.settings(preset)

    @property
    def json_schema(self) -> str | None:
        """Label of the schema, for keys; None without one."""
        return None if self.schema is None else self.schema.label
