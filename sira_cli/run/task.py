"""What is asked about each picture, for records: a caption, or an answer. Known before the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from sira_cli._version import __version__
from sira_cli.errors import PictureSettingsError, SettingsError
from sira_cli.look.claims import Verify
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset, check_text
from sira_cli.models.presets import calibrated
from sira_cli.models.schema import Schema, SchemaSource
from sira_cli.models.texts import Answer, repetition
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import brief
from sira_cli.pictures.selection import filled, needs_columns
from sira_cli.run.items import Batch, Item, Task, message
from sira_cli.run.records import Result, hash_of

if TYPE_CHECKING:
    from sira_cli.look.best import BestCaptions
    from sira_cli.look.second_look import SecondLook
    from sira_cli.models.model import LoadedModel
    from sira_cli.run.ways import Way

OPENED = 2  # pictures
# Fields of an answer that its record has by the same names; of warnings, there are more about the picture.
SHARED = {each.name for each in fields(Answer)} & {each.name for each in fields(Result)} - {"warnings"}


@dataclass(frozen=True)
class PictureTask(Task[Result]):
    """A caption of each picture, or an answer about it; `Caption.of` and `Ask.of` check what they make."""

    preset: Preset  # with the settings in force
    method: Method
    prompt: str  # given to the model word by word, for pictures without their own
    words: bool = False  # score the words of each text
    choices: tuple[str, ...] = ()  # pick one of these answers, instead of decoding
    verify: Verify | None = None  # ask about each object that a text names, after it or before it
    schema: Schema | None = None  # each text follows it
    needs_text: bool = False  # an empty text is an error of its picture; a benchmark scores it
    fills: bool = False  # replace the prompt's `{names}` by each picture's columns
    together: int = 1  # maximum number of pictures per prompt, as far as known before they are read
    revision: str = ""  # of the model, and its server, where known (`at`)
    server: str = ""

    @classmethod
    def of(
        cls,
        preset: Preset,
        method: Method,
        prompt: str | None = None,
        *,
        words: bool = False,
        choices: Sequence[str] = (),
        verify: str | Verify | None = None,
        schema: SchemaSource | None = None,
        own_prompts: bool = False,
        needs_text: bool = False,
        engine: str = "",
    ) -> Self:
        """Return the task for a prompt or a question, if the settings and the method support it.

        Args:
            preset: with the settings in force.
            method: with its settings.
            prompt: of a caption (None: the schema's, or the preset's), or the question.
            words: score the words of each text.
            choices: pick the likeliest of these answers, instead of decoding.
            verify: a second look, or its mode.
            schema: that each text follows.
            own_prompts: whether each picture has its own prompt.
            needs_text: an empty text is an error of its picture.
            engine: `vllm`, if that decodes.

        Raises:
            SettingsError: these do not go together, or a question is missing.
        """
        known = None if schema is None else Schema.of(schema)
        if own_prompts:
            text = preset.prompts.ask
        elif cls.kind == "caption":
            text = prompt if prompt is not None else (known and known.prompt) or preset.prompts.caption
        elif prompt is not None:
            text = preset.prompts.asking(prompt)
        else:
            raise SettingsError("a task of kind ask needs a prompt: the question")
        task = cls(
            preset,
            method,
            text,
            words=words,
            choices=tuple(choices),
            verify=Verify.of(verify),
            schema=known,
            needs_text=needs_text,
        )
        task.check(engine)
        return task

    def about(self, pictures: Sequence[Picture]) -> Self:
        """Return the task for these pictures, with `together` and `fills`."""
        together = max((len(picture.sources) for picture in pictures), default=1)
        return replace(self, fills=needs_columns(self.prompt, pictures), together=together)

    def at(self, revision: str, server: str = "") -> Self:
        """Return the task for a revision of the model, on a server: with it, keys are known."""
        method = calibrated(self.method, self.preset.model, revision)
        return replace(self, method=method, revision=revision, server=server)

    def check(self, engine: str = "") -> None:
        """Check that the settings, the method and the engine support the task."""
        combinations.check(
            self.preset,
            self.method,
            task=self.kind,
            engine=engine,
            words=self.words,
            choices=self.choices,
            verify=None if self.verify is None else self.verify.mode,
            schema=self.schema,
        )
        if self.choices:
            shown = ",".join(self.choices)
            if len({*self.choices}) < max(2, len(self.choices)) or not all(self.choices):
                raise SettingsError(f"`choices=` {shown!r}: expected two or more different answers, such as Yes,No")
            check_text("`choices=`", shown)

    def check_model(self, lvlm: LoadedModel) -> None:
        """Check that a loaded model can follow the prompt and the schema, before the first picture."""
        lvlm.check_prompt(self.prompt, self.together)
        if self.schema is not None:
            lvlm.following(self.schema)

    def settings(self) -> dict[str, Any]:
        """Return all settings that decide the records of a run, as in its report."""
        return {
            "task": self.kind,
            "prompt": self.prompt,
            "method": self.method.name,
            "quantization": self.preset.load.quantization,
            "preset": self.preset.name,
            **self._decisive,
            "words": self.words,
            "choices": list(self.choices),
            **self.form,
        }

    @functools.cached_property
    def _decisive(self) -> dict[str, Any]:
        return self.method.decisive(self.preset.decisive(), self.kind)

    @property
    def form(self) -> dict[str, Any]:
        """The settings of the second look and the schema, by their names in records; without what is not asked for."""
        form: dict[str, Any] = {}
        if self.how is not None:
            form["verify"] = self.how
        if self.schema is not None:
            form["json_schema"] = self.schema.label
        return form

    @functools.cached_property
    def how(self) -> dict[str, Any] | None:
        """The settings of the second look, as in records; None without one."""
        return None if self.verify is None else self.verify.settings(self.preset)

    @override
    def model(self, lvlm: Any) -> Any:
        """Return a loaded model under the method and the preset of the task."""
        if lvlm.decoder == self.method and lvlm.preset is self.preset:
            return lvlm
        return lvlm.under(self.method, self.preset)

    @override
    def first_prompt(self, picture: Picture) -> str:
        """Return the prompt about a picture: its own, not filled yet."""
        return picture.asked(self.prompt)

    def asked(self, picture: Picture) -> str:
        """Return the prompt about a picture: its own, filled."""
        prompt = self.first_prompt(picture)
        return filled(prompt, picture) if self.fills else prompt

    def complete(self, lvlm: LoadedModel, item: Item[Result]) -> None:
        """Fill the prompt, and check one that is not the run's."""
        item.prompt = self.asked(item.picture)
        if item.prompt != self.prompt:
            try:
                lvlm.check_prompt(item.prompt)
            except SettingsError as error:
                raise PictureSettingsError(str(error)) from None

    def key(self, name: str, image_sha256: str, prompt: str) -> str:
        """Return a hash of everything that decides a picture's record; equal keys mean equal work."""
        return hash_of(task=self.kind, file_name=name, image_sha256=image_sha256, prompt=prompt, **self._of_the_run)

    @functools.cached_property
    def _of_the_run(self) -> dict[str, Any]:
        """The parts of a key that are equal in the whole run; words and choices are no parts of it."""
        parts: dict[str, Any] = {
            "method": self.method.name,
            "revision": self.revision,
            "quantization": self.preset.load.quantization,
            "preset": self._decisive,
            **self.form,
        }
        if self.server:
            parts["endpoint"] = self.server.rstrip("/")
        if self.preset.generation.temperature > 0 or self.method.uses_seed:
            parts["draws"] = "per picture and prompt"
        if self.how is not None and self.how["mode"] == "flag":
            del parts["verify"]  # such a look changes no text
        return parts

    @override
    def needs_images(self) -> bool:
        """Return whether `answers` needs the samples."""
        return self.verify is not None

    @override
    def skips_thought(self) -> bool:
        """Return whether the likelihood of given answers is asked for."""
        return bool(self.choices)

    @override
    def streams(self, lvlm: LoadedModel) -> bool:
        """Return whether a text can be shown while it is decoded."""
        rewritten = self.schema is not None and self.schema.as_tags
        return not (self.words or self.verify is not None or rewritten or lvlm.preset.text.given())

    def answers(
        self, lvlm: LoadedModel, batch: Batch[Result], on_text: Callable[[str], None] | None = None
    ) -> Sequence[Answer]:
        """Return the model's answer about each picture of a prepared batch."""
        seeds = batch.seeds(lvlm)
        return self.way(lvlm, on_text).answers(batch.images, lvlm.to_device(batch.inputs), seeds)

    def way(self, lvlm: Any, on_text: Callable[[str], None] | None = None) -> Way:
        """Return the way in which a loaded model answers this task.

        Args:
            lvlm: the loaded model, under the task's method and preset.
            on_text: called with pieces of the text, if there is one picture and the task `streams`.
        """
        from sira_cli.look.guiding import GuidedCaptions
        from sira_cli.run.ways import CheckedText, GivenAnswers, PlainText

        if self.choices:
            return GivenAnswers(lvlm, self.choices)
        text = PlainText(lvlm, self.kind, self.words, self.schema, on_text)
        match self.verify and self.verify.mode:
            case None:
                return text
            case "flag":
                return CheckedText(text, self.second_look(lvlm))
            case "guide":
                return GuidedCaptions(lvlm, self.second_look(lvlm), self.kind)
            case _:
                best: BestCaptions = lvlm.best(self.second_look(lvlm), self.kind, self.schema)
                return best

    def second_look(self, lvlm: Any) -> SecondLook:
        """Return the second look of a loaded model, which is made once for a model under its method."""
        assert self.verify is not None
        look: SecondLook
        verify, look = lvlm.memo.get("look", (None, None))
        if verify is not self.verify:
            look = lvlm.look(self.verify)
            lvlm.memo["look"] = self.verify, look
        return look

    def settle(self, lvlm: LoadedModel | None, item: Item[Result], answer: Answer, milliseconds: float = 0.0) -> None:
        """Give an item its record."""
        shown = item.picture.label
        start, end = self.preset.text.written(answer.text)
        if answer.error and answer.tokens:  # the decoded text is not an answer
            answer = replace(answer, error=f"{shown}: {answer.error}")
        elif self.needs_text and not answer.error and not answer.text[start:end].strip():
            tokens = "1 token" if answer.output_tokens == 1 else f"{answer.output_tokens} tokens"
            reason = f"the model's text is empty ({tokens}): try another prompt or method"
            answer = replace(answer, text="", error=f"{shown}: {reason}")
        if self.kind != "check" and (repeated := repetition(answer.text)):
            item.warnings = (*item.warnings, f"says {brief(repeated)} again and again")
        item.error = answer.error
        item.result = replace(self.record(answer, lvlm, item), duration_ms=round(milliseconds, 1))

    def fail(self, lvlm: LoadedModel, item: Item[Result], error: Exception) -> None:
        """Give an item the record of a picture that failed."""
        self.settle(lvlm, item, self.no_answer(message(item.picture, error), lvlm))

    def no_answer(self, error: str, lvlm: LoadedModel | None = None) -> Answer:
        """Return the answer about a picture that failed."""
        thinks = lvlm is not None and lvlm.parser.expects and not self.choices
        return Answer(
            error=error,
            words=[] if self.words else None,
            choices=[] if self.choices else None,
            objects=None if self.how is None else [],
            reasoning="" if thinks else None,
            **self.form,
        )

    def blank(self, lvlm: LoadedModel | None = None) -> Result:
        """Return a record without a picture: the fields that are equal in all records of this task."""
        return self.record(self.no_answer("", lvlm), lvlm)

    def record(self, answer: Answer, lvlm: LoadedModel | None = None, item: Item[Result] | None = None) -> Result:
        """Return the record of a picture, with equal keys and types if it failed; without a model, a server's."""
        item = item or Item(Picture(()), "", self.prompt)
        preset, generation = self.preset, self.preset.generation
        return Result(
            schema=f"sira.{self.kind}/1",
            key=self.key(item.name, item.sha256, item.prompt),
            file_name=item.name,
            status="error" if answer.error else "ok",
            prompt=item.prompt,
            preset=preset.name,
            model=preset.model,
            revision=self.revision,
            method=self.method.name,
            max_new_tokens=generation.max_new_tokens,
            temperature=generation.temperature,
            seed=generation.seed,
            duration_ms=0.0,
            image_sha256=item.sha256,
            sira_version=__version__,
            text_settings=preset.text.given() or None,
            warnings=[*item.warnings, *answer.warnings] or None,
            images=item.picture.images(item.name),
            **{name: getattr(answer, name) for name in SHARED},
            **self._of_model(lvlm, answer.image_tokens),
            **preset.later(),
        )

    def _of_model(self, lvlm: LoadedModel | None, image_tokens: int) -> dict[str, Any]:
        """Return the method's settings in a record, also those that differ for a picture with this number of tokens."""
        if lvlm is None:
            return {"k": 0, "layers": 0, "alpha": 0.0}
        usual = lvlm.decoder.for_task(self.kind)
        known = usual.settings()
        own = usual.for_picture(image_tokens).settings() if image_tokens else known
        settings = {name: value for name, value in known.items() if name != "alpha"}
        if "beta" in lvlm.decoder.deciding and lvlm.sira.beta is not None:
            settings["beta"] = lvlm.sira.beta
        return {
            "k": lvlm.k,
            "layers": lvlm.layers,
            "alpha": lvlm.alpha,
            "method_settings": settings or None,
            "picture_settings": {name: value for name, value in own.items() if value != known[name]} or None,
        }


class Caption(PictureTask):
    """A description of each picture."""

    kind = "caption"


class Ask(PictureTask):
    """An answer about each picture."""

    kind = "ask"

    @override
    def kept_open(self) -> int:
        """Return the number of pictures whose samples wait for the next question about them."""
        return OPENED

    def answers(
        self, lvlm: LoadedModel, batch: Batch[Result], on_text: Callable[[str], None] | None = None
    ) -> Sequence[Answer]:
        """Return the model's answers; a picture is encoded only once, as it may have several questions."""
        from sira_cli.models.encoded import EncodedPictures

        encoded: EncodedPictures = lvlm.memo.setdefault(EncodedPictures, EncodedPictures())
        with encoded.used_by(lvlm.model, len(batch.items)):
            return super().answers(lvlm, batch, on_text)


TASKS: dict[str, type[Caption | Ask]] = {"caption": Caption, "ask": Ask}
