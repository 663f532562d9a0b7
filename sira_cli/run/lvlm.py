"""A loaded model that captions pictures and answers questions, and returns their records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np

from sira_cli.errors import SettingsError, SiraError, UnfinishedJsonError, UnfinishedReasoningError
from sira_cli.look.best import BestCaptions
from sira_cli.look.claims import Check, Verify
from sira_cli.look.second_look import SecondLook
from sira_cli.look.words import WordList
from sira_cli.methods.base import Method
from sira_cli.models.hub import Download
from sira_cli.models.load import read_model
from sira_cli.models.model import LoadedModel
from sira_cli.models.preset import Preset
from sira_cli.models.processor import refusing
from sira_cli.models.schema import Schema, SchemaSource
from sira_cli.pictures.names import as_text
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import PictureSource, as_picture
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.records import Result
from sira_cli.run.runner import BatchSize, Runner
from sira_cli.run.task import Ask, Caption, PictureTask

R = TypeVar("R")


class Lvlm(LoadedModel):
    """A loaded large vision-language model. `load` makes it; its attributes are those of `LoadedModel`."""

    def __repr__(self) -> str:
        fork = f", K = {self.k} of {self.layers}" if self.k else ""
        alpha = f", alpha = {self.alpha:g}" if self.alpha else ""
        place = f"{self.dtype} on {self.device}"
        return f"<Lvlm {self.preset.name or self.preset.model}: {self.method}{fork}{alpha}, {place}>"

    def under(self, method: str | Method, preset: Preset | None = None, **settings: Any) -> Self:
        """Return the same loaded model under another method, or with another preset; this one is unchanged.

        Args:
            method: a method, or its name: then with the preset's settings for it.
            preset: instead of the model's.
            **settings: settings of the method, such as `noise_step=700` of vcd.

        Raises:
            SettingsError: no method has this name, or it has no such setting.
        """
        preset = preset or self.preset
        decoder = preset.method(method).with_values(**settings)
        return type(self)(self.model, self.processor, preset, decoder, self.revision, self.vocabulary)

    def unable(
        self, methods: Mapping[str, tuple[Preset, Method]], refusals: tuple[type[SiraError], ...] = (SiraError,)
    ) -> dict[str, str]:
        """Return why this model cannot run some of these methods.

        Args:
            methods: by name, preset and method.
            refusals: kinds of errors that count; others are left to the run.
        """
        reasons = {}
        for name, (preset, method) in methods.items():
            try:
                self.under(method, preset)
            except SiraError as error:
                if isinstance(error, refusals):
                    reasons[name] = str(error)
        return reasons

    def look(self, verify: Verify | None = None) -> SecondLook:
        """Return a second look by this model."""
        return SecondLook(self, verify)

    def best(self, look: SecondLook, kind: str, schema: Schema | None) -> BestCaptions:
        """Return the choice among several captions of this model by its second look; `kind` is the task's."""
        return BestCaptions(self, look, kind, schema)

    def runner(
        self,
        task: Task[R],
        batch_size: BatchSize | None = None,
        *,
        done: Callable[[str], str] = lambda name: "",
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> Runner[R]:
        """Return the runner of pictures through this model."""
        return Runner(self, task, batch_size, done=done, on_text=on_text)

    def caption(
        self,
        picture: PictureSource,
        prompt: str | None = None,
        *,
        method: str | Method | None = None,
        on_text: Callable[[str], None] | None = None,
        verify: str | Verify | None = None,
        schema: SchemaSource | None = None,
    ) -> Result:
        """Describe a picture.

        Args:
            picture: a path, a URI, bytes, a binary file, a PIL image, a numpy array or a `Picture`; a list of these is
                shown together.
            prompt: instead of that of the schema or the preset.
            method: instead of the model's, as for `under`.
            on_text: called with pieces of text during decoding (not with beams, `verify`, or settings of `text`).
            verify: a second look at the objects: `flag` keeps the text, `guide` looks first, `best` chooses among
                several texts; or a `Verify`.
            schema: a JSON schema that the text follows, as for `Schema.of`; its value is the result's `data`.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnfinishedReasoningError: the text ended inside the model's reasoning.
            UnfinishedJsonError: the text ended inside its JSON.
            SettingsError: `verify` or `schema` is not valid, or does not fit the settings.
        """
        lvlm = self if method is None else self.under(method)
        task = Caption.of(lvlm.preset, lvlm.decoder, prompt, verify=verify, schema=schema)
        return lvlm._single(task, picture, on_text)

    def ask(
        self,
        picture: PictureSource,
        question: str,
        *,
        method: str | Method | None = None,
        on_text: Callable[[str], None] | None = None,
        schema: SchemaSource | None = None,
    ) -> Result:
        """Answer a question about a picture; otherwise like `caption`."""
        lvlm = self if method is None else self.under(method)
        return lvlm._single(Ask.of(lvlm.preset, lvlm.decoder, question, schema=schema), picture, on_text)

    def check(self, picture: PictureSource, text: str, *, words: WordList | None = None) -> Check:
        """Ask for each object that a text names whether it is in the picture, and return the objects' support.

        Args:
            picture: as for `caption`.
            text: a caption or an answer from any source; in English, unless `words` are in another language.
            words: the objects to recognise (`sira_cli.look.words`); None: the bundled list.

        Raises:
            PictureError: the picture cannot be opened or processed.
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        look = self.look(Verify(words=words))
        source = as_picture(picture)
        image = source.open().for_prompt
        with refusing(source.label):
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
            SettingsError: the prompt contains the model's placeholder for a picture, `batch_size` is below 1, or
                `pictures` is one picture.
            PictureError: one of `pictures` is not of a picture type.
        """
        if isinstance(pictures, str | bytes | os.PathLike | np.ndarray):
            raise SettingsError("`pictures=` is one picture: expected several, such as a list")
        yield from self.results(Caption.of(self.preset, self.decoder, prompt), map(as_picture, pictures), batch_size)

    def results(self, task: PictureTask, pictures: Iterable[Picture], batch_size: BatchSize) -> Iterator[Result]:
        """Do a task on pictures, several at once, and yield the results in order, without a file.

        Args:
            task: for this model's preset and method.
            pictures: each with its own prompt, or the task's.
            batch_size: as for `caption_many`.
        """
        task = task.at(self.revision)
        task.check_model(self)
        items = (Item[Result](each, each.name_in(None), task.first_prompt(each), each.id) for each in pictures)
        with closing(self.runner(task, batch_size).run(items)) as settled:
            yield from (item.result for item in settled if isinstance(item, Item) and item.result is not None)

    def _single(self, task: PictureTask, source: PictureSource, on_text: Callable[[str], None] | None) -> Result:
        picture = as_picture(source)
        task = replace(task, together=len(picture.sources)).at(self.revision)
        task.check_model(self)
        started = time.perf_counter()
        opened = picture.open()
        item = Item[Result](picture, as_text(opened.name), task.prompt, sha256=opened.sha256, warnings=opened.warnings)
        with refusing(picture.label):
            batch = Batch([item], [opened.for_prompt], task.inputs(self, [item], [opened.for_prompt]))
        (answer,) = task.answers(self, batch, on_text if task.streams(self) else None)
        if answer.error:
            unfinished = UnfinishedReasoningError if task.schema is None else UnfinishedJsonError
            raise unfinished(f"{picture.label}: {answer.error}")
        task.settle(self, item, answer, 1000 * (time.perf_counter() - started))
        assert item.result is not None
        return item.result


def load(
    source: str | os.PathLike[str] | Preset,
    *,
    method: str | Method = "sira",
    device: str = "auto",
    offline: bool = False,
    on_download: Callable[[Download], None] | None = None,
    **settings: Any,
) -> Lvlm:
    """Load a vision-language model that captions pictures and answers questions with SIRA.

    Args:
        source: a preset (name, YAML file or `Preset`), a checkpoint folder, or a hub model id.
        method: `sira`, `greedy` for the unchanged model, or another one of `sira_cli.methods.METHODS` to compare with.
            A method given by name gets the preset's settings for it.
        device: `auto` (cuda, else mps, else cpu; several GPUs if one is too small), `cpu`, `cuda`, `cuda:1`, `mps`.
        offline: never contact the hub; cached models still work.
        on_download: called before each download, with its name and size.
        **settings: any key of a preset (k, alpha, max_new_tokens, dtype, prompt, ...) and any setting of the method
            (noise_step of vcd, ...), instead of the preset's.

    Raises:
        SettingsError: a preset or a setting is wrong.
        ModelNotFoundError: the weights are not here, incomplete, or cannot be fetched.
        UnsupportedModelError: SIRA cannot follow the model exactly.
    """
    return Lvlm(*read_model(source, method, device, settings, offline=offline, on_download=on_download))
