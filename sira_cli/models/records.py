"""What one picture gave: the record that is written, with the same keys and types for good and failed pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

FinishReason = Literal["stop", "length", "loop", "error"]


@dataclass(frozen=True)
class Answer:
    """What decoding gave for one picture; with `error`, that it failed.

    Attributes:
        text: without the white space around it.
        finish_reason: `stop` (the model ended), `length` (max_new_tokens reached), `loop` (it
            repeated itself), `error`.
        image_tokens, prompt_tokens, output_tokens: counts; the prompt's includes the image's.
        error: what went wrong.
        words, choices, objects, verify: only if they were asked for.
        warnings: why to look at the text again.
        draft, removed: the first text, and the things that were taken out of it, where it was rewritten.
        reasoning: what the model thought before, apart from the text; None: it is not known to think.
        reasoning_tokens: so many of `output_tokens`.
        tokens: as they were decoded, with the end token.
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
    reasoning: str | None = None
    reasoning_tokens: int = 0
    tokens: tuple[int, ...] = ()


# Marks the fields that are equal in all records of a file: a file holds the texts of one configuration.
SAME_IN_A_FILE = {"same in a file": True}
# The same for settings that are off unless they are set: where a record does not have them, they are off.
OFF_IF_ABSENT = {**SAME_IN_A_FILE, "off if absent": True}


@dataclass(frozen=True)
class Result:
    """One caption or answer and everything that decided it.

    Attributes:
        schema: `sira.caption/1`, `sira.ask/1` or `sira.check/1`.
        key: hash over all that decides the text; equal keys mean equal work.
        k, alpha: of the method; 0 where it has none.
        text: the answer; empty if the picture failed.
        finish_reason: `stop` (the model ended), `length` (max_new_tokens reached), `loop` (it
            repeated itself), `error`.
        image_tokens, prompt_tokens, output_tokens: counts; the prompt's includes the image's.
        duration_ms: wall time of this picture in milliseconds, preprocessing included.
        method_settings: settings of the method that have no key of their own; None, and not in the record, if there
            are none.
        system, repetition_penalty, no_repeat_ngram_size, on_loop, think: None, and not in the record, where they are
            off.
        text_settings: what was done to the text; None, and not in the record, if nothing was.
        picture_settings: settings of the method that were others for this picture than in `method_settings`; None, and
            not in the record, if there are none.
        warnings: why to look at the picture and its text again; None, and not in the record, if there is no reason.
        reasoning: what the model thought before it answered; None, and not in the record, if it did not.
        words, choices: None, and not in the record, unless they were asked for (`Lvlm.answer`, `choose`).
        support: of a check, that of the least supported thing; 1 where the text names none, 0 where it failed.
        fixed: of a check, the text without what the picture does not support.
        dropped: of a check that decodes nothing, the sentences that `fixed` lacks.
        objects: what the text names, each with its support (`second_look.Claim`); None, and not in the record, unless a
            second look was asked for.
        verify: how the second look was done; None as `objects`.
        draft: the first text; None, and not in the record, unless a second look changed it.
        removed: what was taken out of the draft: each thing with its support; None as `draft`. Of a
            check that decodes anew: what `fixed` lacks.
    """

    schema: str = field(metadata=SAME_IN_A_FILE)
    key: str
    file_name: str
    status: Literal["ok", "error"]
    text: str
    error: str
    prompt: str = field(metadata=SAME_IN_A_FILE)
    preset: str = field(metadata=SAME_IN_A_FILE)
    model: str = field(metadata=SAME_IN_A_FILE)
    revision: str = field(metadata=SAME_IN_A_FILE)
    method: str = field(metadata=SAME_IN_A_FILE)
    k: int = field(metadata=SAME_IN_A_FILE)
    layers: int = field(metadata=SAME_IN_A_FILE)
    alpha: float = field(metadata=SAME_IN_A_FILE)
    max_new_tokens: int = field(metadata=SAME_IN_A_FILE)
    temperature: float = field(metadata=SAME_IN_A_FILE)
    seed: int = field(metadata=SAME_IN_A_FILE)
    finish_reason: FinishReason
    image_tokens: int
    prompt_tokens: int
    output_tokens: int
    duration_ms: float
    image_sha256: str
    sira_version: str
    method_settings: dict[str, Any] | None = field(default=None, metadata=SAME_IN_A_FILE)
    words: list[dict[str, Any]] | None = None
    choices: list[dict[str, Any]] | None = None
    system: str | None = field(default=None, metadata=OFF_IF_ABSENT)
    repetition_penalty: float | None = field(default=None, metadata=OFF_IF_ABSENT)
    no_repeat_ngram_size: int | None = field(default=None, metadata=OFF_IF_ABSENT)
    on_loop: str | None = field(default=None, metadata=OFF_IF_ABSENT)
    think: bool | None = field(default=None, metadata=OFF_IF_ABSENT)
    text_settings: dict[str, Any] | None = field(default=None, metadata=OFF_IF_ABSENT)
    picture_settings: dict[str, Any] | None = None
    warnings: list[str] | None = None
    reasoning: str | None = None
    support: float | None = None  # before `objects`, whose entries have a field of the same name
    fixed: str | None = None
    dropped: list[str] | None = None
    objects: list[dict[str, Any]] | None = None
    verify: dict[str, Any] | None = field(default=None, metadata=OFF_IF_ABSENT)
    draft: str | None = None
    removed: list[dict[str, Any]] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the record, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(self.to_record(), ensure_ascii=False, allow_nan=False)

    def configuration(self) -> dict[str, Any]:
        """Return what is equal in all records of a file."""
        return configuration_of(self.to_record())


CONFIGURATION = tuple(each.name for each in fields(Result) if "same in a file" in each.metadata)
LATER = tuple(each.name for each in fields(Result) if "off if absent" in each.metadata)
# Only records that have something to say there have these.
OPTIONAL = tuple(each.name for each in fields(Result) if each.default is None)
# Without one of these it is not a record.
REQUIRED = frozenset(CONFIGURATION) - {*LATER, *OPTIONAL}


def configuration_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is equal in all records of a file, from one of them; None for what is off.

    Raises:
        KeyError: it is not a record.
    """
    return {
        name: record.get(name) if name in LATER else record[name]
        for name in CONFIGURATION
        if name in record or name not in OPTIONAL or name in LATER
    }


def hash_of(**decisive: Any) -> str:
    """Return the sha256, in hexadecimal, over a canonical JSON of everything that decides something."""
    canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
