"""A loaded model with its processor: turns a picture and a prompt into a text."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Literal

import torch
from PIL import Image
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from sira_cli import methods
from sira_cli._version import __version__
from sira_cli.core.fork import Fork, Step, attach
from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.methods.base import Method
from sira_cli.models.compiled import CompiledSteps, compiler_errors
from sira_cli.models.presets import Preset
from sira_cli.models.processors import chat_inputs
from sira_cli.models.records import Result, as_text, hash_of
from sira_cli.models.streamers import NewTokens, TextPieces
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.models.word_scores import WordScores
from sira_cli.pictures.opening import one_line, open_picture


@dataclasses.dataclass(frozen=True)
class Answer:
    """What decoding gave for one picture; with `error`, that it failed."""

    text: str = ""
    finish_reason: Literal["stop", "length", "error"] = "error"
    image_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    words: list[dict[str, Any]] | None = None
    choices: list[dict[str, Any]] | None = None


PictureSource = str | os.PathLike[str] | BinaryIO | Image.Image
BRANCH = "contrast_"  # before the names of the inputs that a contrast stream of its own gets


class Lvlm:
    """A loaded model. Made by `loading.load`.

    Attributes:
        model, processor: the Hugging Face objects.
        preset: every setting in force.
        method, decoder: its name, and with its settings.
        k, layers: K and L; K is 0 under a method that has none.
        alpha: the method's contrast strength; 0 for one without.
        sira: the settings of the fork, with the model's image tokens.
        both_streams: the same for looking at both streams, with the method's alpha: greedy's contrast has none.
        find_image: `[B, S]` input ids -> bool, P_img.
        vocabulary: the tokenizer, token by token.
        compiled: what compiles the decoding steps; None: nothing does.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        preset: Preset,
        method: Method,
        revision: str,
        quantization: str | None,
        compiled: CompiledSteps | None = None,
    ) -> None:
        if method.one_text and preset.generation.num_beams > 1:
            raise SettingsError(f"method {method.name} follows one text a picture: leave out num_beams")
        self.model = model
        self.processor = processor
        self.preset = preset
        self.decoder = method
        self.method = method.name
        self.revision = revision
        self.quantization = quantization
        image_tokens = preset.image_tokens.with_ids(processor.tokenizer)
        self.find_image = image_tokens.resolve(model.config).find
        self.sira = dataclasses.replace(preset.sira_config, image_tokens=image_tokens)
        fork = Fork(model, self.sira)  # a model that cannot be forked is refused now, not at the first picture
        self.k, self.layers = fork.k if "k" in method.from_preset else 0, fork.layers
        self.alpha: float = self.sira.alpha if method.name == "sira" else getattr(method, "alpha", 0.0)
        self.both_streams = dataclasses.replace(self.sira, alpha=self.alpha)
        if not method.one_text and not method.from_preset:
            with method.attach(model, self.sira, torch.empty(0), {}):  # its own refusals too
                pass
        self.compiled = compiled
        self.vocabulary = Vocabulary(processor.tokenizer)
        self._end_tokens, pad = _end_and_pad_tokens(model, processor.tokenizer)
        # Algorithm 1 picks from z_cd alone, so nothing else that a checkpoint's generation_config.json
        # may hold (Qwen2.5-VL: a repetition penalty) takes part.
        model.generation_config = GenerationConfig(eos_token_id=self._end_tokens or None, pad_token_id=pad)

    @property
    def dtype(self) -> str:
        """Precision of the weights: `bfloat16`, ..."""
        return str(self.model.dtype).removeprefix("torch.")

    def under(self, method: Method, preset: Preset | None = None, compiled: CompiledSteps | None = None) -> Lvlm:
        """The same loaded model under another method, or with another preset; its own stays as it is."""
        return Lvlm(
            self.model, self.processor, preset or self.preset, method, self.revision, self.quantization, compiled
        )

    def caption(
        self, picture: PictureSource, prompt: str | None = None, *, on_text: Callable[[str], None] | None = None
    ) -> Result:
        """Describe a picture.

        Args:
            picture: a path, a binary stream or a PIL image.
            prompt: instead of the preset's.
            on_text: called with pieces of text as they are decoded (not with beams).

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
        """One picture and one prompt, word by word as given. `task` (caption, ask) names the record.

        Raises:
            PictureError: the picture cannot be opened or processed.
            SettingsError: the prompt holds the model's placeholder for a picture.
        """
        started = time.perf_counter()
        self.check_prompt(prompt)
        picture = open_picture(source)
        try:
            inputs = self.prepare([picture.image], [prompt])
        except SiraError:
            raise
        except Exception as error:
            raise refused(picture.name, error) from error
        answer = self.answer(inputs, on_text, task=task)[0]
        milliseconds = 1000 * (time.perf_counter() - started)
        return self.result(task, picture.name, picture.sha256, prompt, answer, milliseconds)

    def check_prompt(self, prompt: str) -> None:
        """Whether a prompt can be asked.

        Raises:
            SettingsError: it holds the model's placeholder for a picture.
        """
        for kind in ("image_token", "video_token"):
            placeholder = getattr(self.processor, kind, None)
            if placeholder and placeholder in prompt:
                raise SettingsError(f"the prompt holds {placeholder}, this model's placeholder; leave it out")

    def prepare(self, images: Sequence[Image.Image], prompts: Sequence[str]) -> Any:
        """B pictures and prompts as the model's inputs, left-padded, on the CPU. Safe in another thread.

        A method whose contrast stream is a pass of its own finds that stream's inputs among them, under names that
        begin with `BRANCH`.
        """
        with self.vocabulary.lock:
            inputs = chat_inputs(self.processor, self.model.config.model_type, images, prompts)
            for name, value in self.decoder.branch_inputs(self, images, prompts, inputs).items():
                inputs[BRANCH + name] = value
        return inputs

    def answer(
        self,
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        words: bool = False,
        task: str = "caption",
    ) -> list[Answer]:
        """What the model says to each row of prepared inputs.

        Args:
            inputs: from `prepare`.
            on_text: as in `generate`.
            words: score the words (`WordScores`), instead of calling `on_text`.
            task: `caption` or `ask`, which some methods treat differently.

        Raises:
            SettingsError: `words` with beams, or with a method without both streams, or compiled.
        """
        inputs = inputs.to(self.model.device, dtype=self.model.dtype)
        image_tokens, prompt_tokens = self.lengths(inputs)
        scores = WordScores(self.vocabulary, self.sira.alpha) if words else None
        tokens = self.generate(inputs, on_text, on_tokens=scores.add if scores else None, task=task)
        rows = [self.until_end(row) for row in tokens.tolist()]
        texts = [self.vocabulary.text(row) for row in rows]
        return [
            Answer(
                text=text.strip(),
                finish_reason=self.finish_reason(row),
                image_tokens=image,
                prompt_tokens=prompt,
                output_tokens=len(row),
                words=scores.words(number, len(row)) if scores else None,
            )
            for number, (text, row, image, prompt) in enumerate(
                zip(texts, rows, image_tokens, prompt_tokens, strict=True)
            )
        ]

    def lengths(self, inputs: Any) -> tuple[list[int], list[int]]:
        """Image tokens and prompt tokens of each row."""
        image_tokens: list[int] = self.find_image(inputs["input_ids"]).sum(dim=1).tolist()
        return image_tokens, inputs["attention_mask"].sum(dim=1).tolist()

    def finish_reason(self, tokens: list[int]) -> Literal["stop", "length"]:
        """Whether the model ended a text itself."""
        return "stop" if tokens and tokens[-1] in self._end_tokens else "length"

    def until_end(self, tokens: list[int]) -> list[int]:
        """Without what pads a shorter answer in a batch."""
        ends = (index for index, token in enumerate(tokens) if token in self._end_tokens)
        return tokens[: next(ends, len(tokens)) + 1]

    def generate(
        self,
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        on_tokens: Callable[[list[int], Step], None] | None = None,
        task: str = "caption",
    ) -> torch.Tensor:
        """Decode prepared inputs by the method and the settings in force; the global random state stays as it was.

        Args:
            inputs: what the processor makes of B pictures and prompts, left-padded, on the model's device.
            on_text: called with pieces of text as they are decoded (B = 1, not with beams).
            on_tokens: called with the B new tokens of a step and the logits that they were picked from, instead of
                `on_text`. With `greedy` the CF stream is computed too, and has no part in the choice.
            task: as in `answer`.

        Raises:
            SettingsError: `on_tokens` with beams, where a step does not belong to one text, or with a method that has
                no CF stream, or compiled; or the decoding step cannot be compiled on this machine.

        Returns:
            Ids of the new tokens `[B, N]`, trailing end token included, shorter answers padded.
        """
        settings = self.preset.generation
        sampling: dict[str, Any] = {"do_sample": False}
        if settings.temperature > 0:
            sampling = {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
        streamer: BaseStreamer | None = None
        steps: list[Step] = []
        own, decoder = self.decoding(inputs, settings.max_new_tokens, task)
        if on_tokens is not None:
            methods.check_two_streams(self.method, "looking at both streams")
            if self.compiled is not None:
                methods.check_compile(self.method, settings.num_beams, "a trace or a score of words")
            if settings.num_beams > 1:
                raise SettingsError("with several beams a step belongs to no single text: leave out --num-beams")
            streamer = NewTokens(lambda tokens: on_tokens(tokens, steps.pop(0)))  # on mps tokens come a step late
            decoder = attach(self.model, self.both_streams, on_step=steps.append)
        elif on_text is not None and settings.num_beams == 1:
            streamer = TextPieces(self.processor.tokenizer, self.vocabulary.lock, on_text)
        cuda = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(cuda), decoder:
            torch.manual_seed(settings.seed)
            output = self.model.generate(
                **own,
                max_new_tokens=settings.max_new_tokens,
                num_beams=settings.num_beams,
                streamer=streamer,
                **sampling,
            )
        new: torch.Tensor = output[:, own["input_ids"].shape[1] :]
        return new

    def decoding(
        self, inputs: Any, new_tokens: int, task: str = "caption"
    ) -> tuple[dict[str, Any], contextlib.AbstractContextManager[Any]]:
        """What `model.generate` gets of prepared inputs, and the context in which it follows the method.

        With compiled steps an empty cache is among it, with room for so many new tokens, and good until the next call.
        """
        own = {name: value for name, value in inputs.items() if not name.startswith(BRANCH)}
        branch = {name.removeprefix(BRANCH): inputs[name] for name in inputs if name not in own}
        decoder = self.decoder.for_task(task).attach(self.model, self.sira, own["input_ids"], branch)
        if self.compiled is None:
            return own, decoder
        batch, prompt = own["input_ids"].shape
        return own | self.compiled.arguments(batch, prompt, new_tokens), compiler_errors(decoder)

    def key(self, task: str, file_name: str, image_sha256: str, prompt: str) -> str:
        """A hash over everything that decides a picture's text: equal keys mean equal work."""
        return hash_of(
            task=task,
            file_name=file_name,
            image_sha256=image_sha256,
            prompt=prompt,
            method=self.method,
            revision=self.revision,
            quantization=self.quantization,
            preset=self.decoder.decisive(self.preset),
        )

    def result(
        self, task: str, file_name: str, image_sha256: str, prompt: str, answer: Answer, milliseconds: float = 0.0
    ) -> Result:
        """The record of a picture; that of a failed one has the same keys and types."""
        preset = self.preset
        return Result(
            schema=f"sira.{task}/1",
            key=self.key(task, file_name, image_sha256, prompt),
            file_name=as_text(file_name),
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
            words=answer.words,
            choices=answer.choices,
        )


def refused(name: str, error: Exception) -> PictureError:
    """Whatever an image processor has against a picture, as the picture's error."""
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return PictureError(f"{one_line(name)}: the image processor refused it: {reason[0]}")


def _end_and_pad_tokens(model: Any, tokenizer: Any) -> tuple[list[int], int | None]:
    """The ids that end an answer and the one that pads, from the checkpoint, else from its tokenizer."""
    end = model.generation_config.eos_token_id
    if end is None:
        end = tokenizer.eos_token_id
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    pads = (tokenizer.pad_token_id, model.generation_config.pad_token_id, *ends)
    return ends, next((pad for pad in pads if pad is not None), None)
