"""A loaded model that captions pictures and answers questions: from a named picture to its record."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from sira_cli._version import __version__
from sira_cli.errors import SiraError
from sira_cli.methods.base import Method
from sira_cli.models.compiled import CompiledSteps
from sira_cli.models.decoding import DecodingModel
from sira_cli.models.keys import Keys
from sira_cli.models.presets import Preset
from sira_cli.models.processors import refused
from sira_cli.models.records import Answer, Result
from sira_cli.pictures.names import as_text
from sira_cli.pictures.picture import PictureSource, open_picture


class Lvlm(DecodingModel):
    """A loaded large vision-language model. `load` makes it; its attributes are those of `DecodingModel`."""

    def under(self, method: Method, preset: Preset | None = None, compiled: CompiledSteps | None = None) -> Lvlm:
        """Return the same loaded model under another method, or with another preset; this one stays as it is."""
        return Lvlm(
            self.model, self.processor, preset or self.preset, method, self.revision, self.quantization, compiled
        )

    def caption(
        self, picture: PictureSource, prompt: str | None = None, *, on_text: Callable[[str], None] | None = None
    ) -> Result:
        """Describe a picture.

        Args:
            picture: a path, a URI, a binary stream, a PIL image or a `Picture`.
            prompt: instead of the preset's.
            on_text: called with pieces of text as they are decoded (not with beams, nor where the preset's `text`
                changes them).

        Raises:
            PictureError: the picture cannot be opened or processed.
        """
        return self.run("caption", picture, self.preset.prompts.caption if prompt is None else prompt, on_text)

    def ask(self, picture: PictureSource, question: str, *, on_text: Callable[[str], None] | None = None) -> Result:
        """Answer a question about a picture; otherwise like `caption`."""
        return self.run("ask", picture, self.preset.prompts.asking(question), on_text)

    def run(
        self, task: str, source: PictureSource, prompt: str, on_text: Callable[[str], None] | None = None
    ) -> Result:
        """Decode one picture and one prompt, which is given to the model word by word.

        Args:
            task: `caption` or `ask`; names the record.
            source, prompt, on_text: as for `caption`.

        Raises:
            PictureError: the picture cannot be opened or processed.
            SettingsError: the prompt holds the model's placeholder for a picture.
        """
        started = time.perf_counter()
        self.check_prompt(prompt)
        picture = open_picture(source)
        try:
            inputs = self.prepare([picture.image], [prompt], [picture.sha256])
        except SiraError:
            raise
        except Exception as error:
            raise refused(picture.name, error) from error
        text, seeds = self.preset.text, self.text_seeds([picture.sha256], [prompt])
        on_text = None if text.given() else on_text
        answer = text.finished(self.answer(inputs, on_text, seeds=seeds, task=task)[0])
        milliseconds = 1000 * (time.perf_counter() - started)
        return self.result(task, as_text(picture.name), picture.sha256, prompt, answer, milliseconds)

    @functools.cached_property
    def keys(self) -> Keys:
        """The keys of its records."""
        return Keys.of(self.preset, self.decoder, self.revision, self.quantization)

    def key(self, task: str, file_name: str, image_sha256: str, prompt: str) -> str:
        """Return a hash over everything that decides a picture's text: equal keys mean equal work."""
        return self.keys.key(task, file_name, image_sha256, prompt)

    def result(
        self, task: str, file_name: str, image_sha256: str, prompt: str, answer: Answer, milliseconds: float = 0.0
    ) -> Result:
        """Return the record of a picture; that of a failed one has the same keys and types."""
        preset = self.preset
        return Result(
            schema=f"sira.{task}/1",
            key=self.key(task, file_name, image_sha256, prompt),
            file_name=file_name,
            status="error" if answer.error else "ok",
            text=answer.text,
            error=answer.error,
            prompt=prompt,
            preset=preset.name,
            model=preset.model,
            revision=self.revision,
            method=self.method,
            k=self.k,
            layers=self.layers,
            alpha=self.alpha,
            max_new_tokens=preset.generation.max_new_tokens,
            temperature=preset.generation.temperature,
            seed=preset.generation.seed,
            finish_reason=answer.finish_reason,
            image_tokens=answer.image_tokens,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            duration_ms=round(milliseconds, 1),
            image_sha256=image_sha256,
            sira_version=__version__,
            method_settings=self._other_settings(task),
            text_settings=preset.text.given() or None,
            words=answer.words,
            choices=answer.choices,
            **preset.later(),
        )

    def _other_settings(self, task: str) -> dict[str, Any] | None:
        """Return settings of the method that have no key of their own in a record."""
        settings = self.decoder.for_task(task).settings()
        if "beta" in self.decoder.deciding and self.sira.beta is not None:
            settings["beta"] = self.sira.beta
        return {name: value for name, value in settings.items() if name != "alpha"} or None
