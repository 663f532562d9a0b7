"""The parts of a preset: prompts, decoding, pictures, weights, the second look."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.pictures.names import is_utf8

MOST_CAPTIONS = 50  # of one picture, to find its objects


class Strict(BaseModel):
    """A part of a preset: unknown keys and other types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SiraSettings(Strict):
    """K and the strengths; `SiraConfig` documents and checks them."""

    k: int | None = Field(default=None, ge=1)
    k_fraction: float | None = Field(default=None, gt=0, lt=1)
    alpha: float = Field(default=0.5, ge=0, lt=1e9)
    beta: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> SiraSettings:
        SiraConfig(**self.model_dump())
        return self


class Prompts(Strict):
    """Prompts for the model; `ask` contains `{question}`.

    Attributes:
        verify: asks whether an object is in the picture; contains `{thing}`, with the English article, or `{name}`,
            without one.
        system: system message, instead of the chat template's own; empty: the template's own, if it has one.
    """

    caption: str = Field(default="Please describe this image in detail.", min_length=1)
    ask: str = "{question}"
    verify: str = "Is there {thing} in the image?"
    system: str = ""

    def asking(self, question: str) -> str:
        """Return the prompt for a question."""
        if not question.strip():
            raise SettingsError("the question is empty: give one, such as 'Is there a cat?'")
        check_text("the question", question)
        return self.ask.replace("{question}", question)

    @field_validator("ask")
    @classmethod
    def _has_question(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError("must contain {question}")
        return value

    @field_validator("verify")
    @classmethod
    def _has_thing(cls, value: str) -> str:
        if "{thing}" not in value and "{name}" not in value:
            raise ValueError("must contain {thing}, or {name} without an article")
        return value


class Generation(Strict):
    """Decoding settings; temperature 0 is greedy.

    Attributes:
        top_k, min_p: further cut-offs of sampling, as in transformers; 0 is off.
        repetition_penalty, no_repeat_ngram_size: as in transformers, on the method's logits; 1 and 0 are off.
        think: ask the model to reason before it answers; for chat templates with a switch.
    """

    max_new_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    num_beams: int = Field(default=1, ge=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    think: bool = False

    @field_validator("no_repeat_ngram_size")
    @classmethod
    def _is_no_single_token(cls, value: int) -> int:
        if value == 1:
            raise ValueError("must be 0 (off) or at least 2")
        return value


class VerifySettings(Strict):
    """The second look at the objects that a text names.

    Attributes:
        min_support: below it an object is not supported. 0.5 (yes and no equally likely) is a choice, not measured.
        yes, no: spellings of the two answers, divided by commas; with a question in another language, its words.
    """

    min_support: float = Field(default=0.5, ge=0, le=1)
    yes: str = "Yes, yes, YES"
    no: str = "No, no, NO, Not, not"

    @field_validator("yes", "no")
    @classmethod
    def _has_words(cls, value: str) -> str:
        if not all(part.strip() for part in value.split(",")):
            raise ValueError("expected words between commas")
        return value

    @property
    def answers(self) -> tuple[list[str], list[str]]:
        """The spellings of yes, and those of no."""
        yes, no = ([part.strip() for part in words.split(",")] for words in (self.yes, self.no))
        return yes, no


class GuideSettings(Strict):
    """Captions that are decoded after the second look at what they may name.

    Attributes:
        captions: number of captions of a picture in which its objects are looked for: the method's own, and samples.
        heat: temperature of the samples.
        threshold: like `verify.min_support`, which it replaces if it is set.
        cut_off: `beta` of SIRA where it has none: names are ruled out, and a contrast would pick any other word.
    """

    captions: int = Field(default=5, ge=1, le=MOST_CAPTIONS)
    heat: float = Field(default=0.7, gt=0, allow_inf_nan=False)
    threshold: float | None = Field(default=None, ge=0, le=1)
    cut_off: float = Field(default=0.2, gt=0, le=1)


class Load(Strict):
    """How weights are loaded.

    Attributes:
        attn_implementation: `auto` is sdpa if the model has it, else eager.
        quantization: bits of the decoder layers' weights, by bitsandbytes.
        trust_remote_code: run the checkpoint's own Python code, without asking; otherwise none of it runs.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    attn_implementation: Literal["auto", "sdpa", "eager"] = "auto"
    quantization: Literal["8bit", "4bit"] | None = None
    trust_remote_code: bool = False

    @property
    def attention(self) -> str | None:
        """The attention for transformers; None: transformers chooses."""
        return None if self.attn_implementation == "auto" else self.attn_implementation


class ImageSettings(Strict):
    """How pictures are resized for the model; settings that are None keep the checkpoint's value.

    Attributes:
        max_pixels, min_pixels: limits of the resized picture; its size decides the number of image tokens (Qwen-VL).
        max_tiles: maximum number of tiles of a picture (InternVL).
        longest_edge: longest edge of the resized picture in pixels (SmolVLM, Idefics3, Pixtral).
        pan_and_scan: whether crops of wide and tall pictures are also shown (Gemma 3).
        pad_to_square: whether pictures are padded to squares with the processor's mean colour, so that nothing is
            cropped (LLaVA-1.5).
    """

    max_pixels: int | None = Field(default=None, ge=1)
    min_pixels: int | None = Field(default=None, ge=1)
    max_tiles: int | None = Field(default=None, ge=1)
    longest_edge: int | None = Field(default=None, ge=1)
    pan_and_scan: bool | None = None
    pad_to_square: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return the settings that are not None."""
        return self.model_dump(mode="json", exclude_none=True)


def check_text(what: str, text: str) -> None:
    """Check that a text is valid UTF-8. A command line may contain any bytes."""
    if not is_utf8(text):
        raise SettingsError(f"{what}: {text!r:.200} holds bytes that are not UTF-8: write it in UTF-8")
