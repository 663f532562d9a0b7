"""The answer of a model about one picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cut", "error"]


@dataclass(frozen=True)
class Answer:
    """The result of decoding one picture; if it failed, with `error`.

    Attributes:
        text: without surrounding white space.
        error: the reason of a failure.
        reasoning: as in `Result`; None: the model is not known to think.
        reasoning_tokens: number of `output_tokens` that belong to `reasoning`.
        tokens: as decoded, with the end token.
        json_schema: the schema that the text follows (`Schema.label`); None without one.

    The others are as in `Result`.
    """

    text: str = ""
    finish_reason: FinishReason = "error"
    image_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    words: list[dict[str, Any]] | None = None
    choices: list[dict[str, Any]] | None = None
    warnings: tuple[str, ...] = ()
    objects: list[dict[str, Any]] | None = None
    verify: dict[str, Any] | None = None
    draft: str | None = None
    removed: list[dict[str, Any]] | None = None
    candidates: list[dict[str, Any]] | None = None
    added: list[str] | None = None
    forbidden: list[str] | None = None
    reasoning: str | None = None
    reasoning_tokens: int = 0
    tokens: tuple[int, ...] = ()
    json_schema: str | None = None
    data: Any = None
