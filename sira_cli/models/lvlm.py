"""A loaded model that captions pictures and answers questions, and returns their records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace

from sira_cli.data.records.record import Result
from sira_cli.errors import SettingsError, UnfinishedJsonError, UnfinishedReasoningError
from sira_cli.language.things import Words
from sira_cli.methods.base import Method
from sira_cli.models.inputs.processors import refusing
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import Check
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.models.many.item import Batch, Item
from sira_cli.models.many.picture_task import PictureTask
from sira_cli.models.many.request import Request
from sira_cli.models.many.runner import Runner
from sira_cli.models.recording import RecordingModel
from sira_cli.models.schemas.schema import SchemaSource
from sira_cli.pictures.names import as_text
from sira_cli.pictures.sources import PictureSource, as_picture


class Lvlm(RecordingModel):
    """A loaded large vision-language model. `load` makes it; its attributes are those of `DecodingModel`."""

    def __repr__(self) -> str:
        fork = f", K = {self.k} of {self.layers}" if self.k else ""
        alpha = f", alpha = {self.alpha:g}" if self.alpha else ""
        place = f"{self.dtype} on {self.device}"
        return f"<Lvlm {self.preset.name or self.preset.model}: {self.method}{fork}{alpha}, {place}>"

    def under(self, method: Method, preset: Preset | None = None) -> Lvlm:
        """Return the same loaded model under another method, or with another preset; this one is unchanged."""
        return Lvlm(self.model, self.processor, preset or self.preset, method, self.revision, self.vocabulary)

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
                `guide` to look first and then write; or a `Verify`.
            schema: a JSON schema that the text follows, as for `Schema.of`; its value is the result's `data`.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnfinishedReasoningError: the text ended inside the model's reasoning.
            UnfinishedJsonError: the text ended inside its JSON.
            SettingsError: `verify` or `schema` is not valid, or does not fit the settings.
        """
        request = Request.of(self.preset, "caption", prompt, verify=Verify.of(verify), schema=schema)
        return self._single(request, picture, on_text)

    def ask(
        self,
        picture: PictureSource,
        question: str,
        *,
        on_text: Callable[[str], None] | None = None,
        schema: SchemaSource | None = None,
    ) -> Result:
        """Answer a question about a picture; otherwise like `caption`."""
        request = Request.of(self.preset, "ask", question, schema=schema)
        return self._single(request, picture, on_text)

    def check(self, picture: PictureSource, text: str, *, words: Words | None = None) -> Check:
        """Ask for each object that a text names whether it is in the picture. The decoding method plays no part.

        Args:
            picture: as for `caption`.
            text: a caption or an answer from any source; in English, unless `words` are in another language.
            words: the objects to recognise (`sira_cli.language.things`); None: the bundled list.

        Returns:
            The objects with their support; empty if none was recognised.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        look = SecondLook(self, Verify(words=words))
        source = as_picture(picture)
        image = source.open().shown
        with refusing(source.shown):
            return look.check(image, text)

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
        task = PictureTask(self, Request.of(self.preset, "caption", prompt), lambda name: "")
        sources = (as_picture(source) for source in pictures)
        items = Runner(task, batch_size).run(task.item(source, source.name_in(None)) for source in sources)
        with closing(items):
            yield from (item.result for item in items if isinstance(item, Item) and item.result is not None)

    def _single(self, request: Request, source: PictureSource, on_text: Callable[[str], None] | None) -> Result:
        picture = as_picture(source)
        request.check(self.preset, self.decoder)
        task = PictureTask(self, replace(request, together=len(picture.parts)), lambda name: "")
        started = time.perf_counter()
        opened = picture.open()
        item = Item[Result](picture, as_text(opened.name), request.prompt, sha256=opened.sha256)
        item.warnings = opened.warnings
        with refusing(picture.shown):
            batch = Batch([item], [opened.shown], task.inputs([item], [opened.shown]))
        stream = None if on_text is None or not task.streams else lambda picture, text: on_text(text)
        (answer,) = task.answers(batch, stream)
        if answer.error:
            unfinished = UnfinishedReasoningError if request.schema is None else UnfinishedJsonError
            raise unfinished(f"{picture.shown}: {answer.error}")
        task.settle(item, answer, 1000 * (time.perf_counter() - started))
        assert item.result is not None
        return item.result
