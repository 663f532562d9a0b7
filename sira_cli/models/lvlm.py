"""A loaded model that captions pictures and answers questions, and returns their records."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sira_cli.data.records.record import Answer, Result
from sira_cli.errors import PictureError, SettingsError, SiraError, UnfinishedJsonError, UnfinishedReasoningError
from sira_cli.language.things import Words
from sira_cli.methods.base import Method
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.inputs.processors import refused
from sira_cli.models.keys import Keys
from sira_cli.models.loading.compiled import CompiledSteps
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import Check
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.models.look.verifying import VerifiedAnswers
from sira_cli.models.schemas.schema import Schema
from sira_cli.pictures.names import as_text
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import PictureSource, as_picture

SchemaSource = str | Path | Mapping[str, Any] | Schema


class Lvlm(AnsweringModel):
    """A loaded large vision-language model. `load` makes it; its attributes are those of `DecodingModel`."""

    def __repr__(self) -> str:
        fork = f", K = {self.k} of {self.layers}" if self.k else ""
        alpha = f", alpha = {self.alpha:g}" if self.alpha else ""
        place = f"{self.dtype} on {self.device}"
        return f"<Lvlm {self.preset.name or self.preset.model}: {self.method}{fork}{alpha}, {place}>"

    def under(self, method: Method, preset: Preset | None = None, compiled: CompiledSteps | None = None) -> Lvlm:
        """Return the same loaded model under another method, or with another preset; this one is unchanged."""
        preset, same = preset or self.preset, (self.revision, self.quantization)
        return Lvlm(self.model, self.processor, preset, method, *same, compiled, self.vocabulary)

    def caption(
        self,
        picture: PictureSource,
        prompt: str | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
        verify: str | Verify | None = None,
        schema: SchemaSource | None = None,
    ) -> Result:
        """Describe a picture.

        Args:
            picture: a path, a URI, bytes, a binary file, a PIL image, a numpy array (`as_picture`) or a `Picture`; a
                list of these is shown together.
            prompt: instead of that of the schema or the preset.
            on_text: called with pieces of text during decoding (not with beams or `verify`, nor if the preset's `text`
                settings change them).
            verify: ask for each object that the text names whether it is in the picture: `flag` to keep the text,
                `rewrite` to remove unsupported objects; or a `Verify`.
            schema: a JSON schema that the text follows, as for `Schema.of`; its value is the result's `data`.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnfinishedReasoningError: the text ended inside the model's reasoning.
            UnfinishedJsonError: the text ended inside its JSON.
            SettingsError: `verify` or `schema` is not valid, or does not fit the settings.
        """
        follows = self._schema(schema)
        if prompt is None:
            prompt = (follows and follows.prompt) or self.preset.prompts.caption
        return self._single("caption", picture, prompt, on_text, Verify.of(verify), follows)

    def ask(
        self,
        picture: PictureSource,
        question: str,
        *,
        on_text: Callable[[str], None] | None = None,
        schema: SchemaSource | None = None,
    ) -> Result:
        """Answer a question about a picture; otherwise like `caption`."""
        prompt = self.preset.prompts.asking(question)
        return self._single("ask", picture, prompt, on_text, schema=self._schema(schema))

    def _schema(self, given: SchemaSource | None) -> Schema | None:
        return None if given is None else Schema.of(given).with_boxes(self.preset.prompts.boxes)

    def check(self, picture: PictureSource, text: str, *, words: Words | None = None) -> Check:
        """Ask for each object that a text names whether it is in the picture. The decoding method plays no part.

        Args:
            picture: as for `caption`.
            text: a caption or an answer from any source; in English, unless `words` are in another language.
            words: the objects to recognise (`sira_cli.language.things`); None: the bundled list.

        Returns:
            The objects with their support; empty if none was recognised. Other claims as the preset says.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        look = SecondLook(self, Verify(words=words))
        source = as_picture(picture)
        image = source.open(self.sampling).shown
        try:
            return look.check(image, text)
        except SiraError:
            raise
        except Exception as error:
            raise refused(source.shown, error) from error

    def caption_many(
        self, pictures: Iterable[PictureSource], prompt: str | None = None, *, batch_size: int = 8
    ) -> Iterator[Result]:
        """Describe pictures, several at once, and yield the results in order; `run_pictures` also writes a file.

        Args:
            pictures: as for `caption`; one that fails gives a result with `status` `error`.
            prompt: instead of the preset's.
            batch_size: pictures decoded together, if the method can (`batches`).

        Raises:
            SettingsError: the prompt contains the model's placeholder for a picture, or `batch_size` is below 1.
            PictureError: one of `pictures` is not of a picture type.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size must be 1 or more; got {batch_size}")
        text = self.preset.prompts.caption if prompt is None else prompt
        remaining = (as_picture(source) for source in pictures)
        while batch := list(islice(remaining, batch_size if self.batches else 1)):
            try:
                results = self._run("caption", batch, text)
            except PictureError:  # of an unknown one of them
                results = [self._tried("caption", picture, text) for picture in batch]
            yield from results

    def run(
        self, task: str, source: PictureSource, prompt: str, on_text: Callable[[str], None] | None = None
    ) -> Result:
        """Decode one picture and one prompt, which is given to the model unchanged.

        Args:
            task: `caption` or `ask`, for the record.
            source, prompt, on_text: as for `caption`.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnfinishedReasoningError: the text ended inside the model's reasoning.
            SettingsError: the prompt contains the model's placeholder for a picture.
        """
        return self._single(task, source, prompt, on_text)

    def _single(
        self,
        task: str,
        source: PictureSource,
        prompt: str,
        on_text: Callable[[str], None] | None = None,
        verify: Verify | None = None,
        schema: Schema | None = None,
    ) -> Result:
        picture = as_picture(source)
        (result,) = self._run(task, [picture], prompt, on_text, verify, schema)
        if result.error:
            unfinished = UnfinishedReasoningError if schema is None else UnfinishedJsonError
            raise unfinished(f"{picture.shown}: {result.error}")
        return result

    def _tried(self, task: str, picture: Picture, prompt: str) -> Result:
        """Return the result of a picture that may fail."""
        try:
            return self.run(task, picture, prompt)
        except PictureError as error:
            return self.result(task, picture.name_in(None), "", prompt, Answer(error=str(error)))

    def _run(
        self,
        task: str,
        pictures: Sequence[Picture],
        prompt: str,
        on_text: Callable[[str], None] | None = None,
        verify: Verify | None = None,
        schema: Schema | None = None,
    ) -> list[Result]:
        """Decode some pictures together.

        Raises:
            PictureError: one of them cannot be opened or processed.
        """
        if schema is not None:
            schema.check(self.decoder, self.preset)
        verified = None if verify is None else VerifiedAnswers(self, verify)
        started = time.perf_counter()
        self.check_prompt(prompt, max(len(picture.parts) for picture in pictures))
        opened = [picture.open(self.sampling) for picture in pictures]
        images, prompts = [picture.shown for picture in opened], [prompt] * len(opened)
        hashes = [picture.sha256 for picture in opened]
        try:
            inputs = self.prepare(images, prompts, hashes)
        except SiraError:
            raise
        except Exception as error:
            raise refused(pictures[0].shown, error) from error
        seeds = self.text_seeds(hashes, prompts)
        if verified is not None:
            answers = verified.answer(images, inputs, seeds=seeds, task=task, schema=schema)
        else:
            schemas = None if schema is None else [schema] * len(opened)
            stream = on_text if self.preset.streams and not (schema and schema.rewritten) else None
            plain = self.answer(inputs, stream, seeds=seeds, task=task, schemas=schemas)
            answers = [self.preset.text.finished(answer) for answer in plain]
        each = 1000 * (time.perf_counter() - started) / len(opened)
        return [
            replace(
                self.result(task, as_text(picture.name), picture.sha256, prompt, answer, each, picture.warnings),
                images=source.images(as_text(picture.name)),
                **picture.facts,
            )
            for source, picture, answer in zip(pictures, opened, answers, strict=True)
        ]

    @functools.cached_property
    def keys(self) -> Keys:
        """The keys of its records."""
        return Keys.of(self.preset, self.decoder, self.revision, self.quantization)

    def result(
        self,
        task: str,
        file_name: str,
        image_sha256: str,
        prompt: str,
        answer: Answer,
        milliseconds: float = 0.0,
        warnings: Sequence[str] = (),
    ) -> Result:
        """Return the record of a picture; a failed picture's record has the same keys and types."""
        return replace(
            self.keys.result(task, file_name, image_sha256, prompt, answer, milliseconds, warnings),
            k=self.k,
            layers=self.layers,
            alpha=self.alpha,
            method_settings=self._other_settings(task),
            picture_settings=self._picture_settings(task, answer.image_tokens),
        )

    def _other_settings(self, task: str) -> dict[str, Any] | None:
        """Return the method's settings that have no key of their own in a record."""
        settings = self.decoder.for_task(task).settings()
        if "beta" in self.decoder.deciding and self.sira.beta is not None:
            settings["beta"] = self.sira.beta
        return {name: value for name, value in settings.items() if name != "alpha"} or None

    def _picture_settings(self, task: str, image_tokens: int) -> dict[str, Any] | None:
        """Return the method's settings that differ for a picture with this number of tokens (0: it failed)."""
        usual = self.decoder.for_task(task)
        if not image_tokens or (own := usual.for_picture(image_tokens)) is usual:
            return None
        known = usual.settings()
        return {name: value for name, value in own.settings().items() if value != known[name]} or None
