"""What one picture gave: the record of CLI.md, the same keys and types for good and failed pictures."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Result:
    """One caption or answer and everything that decided it.

    Attributes:
        schema: `sira.caption/1` or `sira.ask/1`.
        key: hash over all that decides the text; equal keys mean equal work.
        k, alpha: of the method; 0 where it has none.
        text: the answer; empty if the picture failed.
        finish_reason: `stop` (the model ended), `length` (max_new_tokens reached), `error`.
        image_tokens, prompt_tokens, output_tokens: counts; the prompt's includes the image's.
        duration_ms: wall time of this picture, preprocessing included.
        words, choices: only if they were asked for (`Lvlm.answer`, `Lvlm.choose`); else not in the record.
    """

    schema: str
    key: str
    file_name: str
    status: Literal["ok", "error"]
    text: str
    error: str
    prompt: str
    preset: str
    model: str
    revision: str
    method: str
    k: int
    layers: int
    alpha: float
    max_new_tokens: int
    temperature: float
    seed: int
    finish_reason: Literal["stop", "length", "error"]
    image_tokens: int
    prompt_tokens: int
    output_tokens: int
    duration_ms: float
    image_sha256: str
    sira_version: str
    words: list[dict[str, Any]] | None = None
    choices: list[dict[str, Any]] | None = None

    def to_record(self) -> dict[str, Any]:
        """The record as CLI.md lays it down, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_json(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(self.to_record(), ensure_ascii=False, allow_nan=False)


def as_text(file_name: str) -> str:
    """A file name as a record holds it: bytes that are not UTF-8 as `\\xff`, which every JSON reader takes."""
    return os.fsencode(file_name).decode("utf-8", "backslashreplace")


def hash_of(**decisive: Any) -> str:
    """sha256 over a canonical JSON of everything that decides a text."""
    canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
