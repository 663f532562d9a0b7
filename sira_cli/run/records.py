"""The record of one picture, with the same keys and types for good and failed pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from sira_cli.models.texts import FinishReason

# Marks the fields that are equal in all records of a file: a file contains the texts of one configuration. One that may
# be None is a setting that is off in a record without it.
SAME_IN_A_FILE = {"same in a file": True}
# Marks those that all parts of a benchmark share as well.
SAME_IN_ALL_PARTS = {**SAME_IN_A_FILE, "same in all parts": True}


@dataclass(frozen=True)
class Result:
    """One caption or answer and everything that decided it: the keys of a record, in this order.

    Attributes:
        schema: `sira.caption/1`, `sira.ask/1` or `sira.check/1`.
        key: SHA-256 of everything that decides the text; equal keys mean equal work.
        file_name: the picture, relative to the file of records.
        status: `ok` or `error`.
        text: the caption or answer; empty if the picture failed.
        error: why it failed, in one line.
        prompt: as the model got it; in a check, the question about each object.
        preset, model, revision, method: names; the revision of a folder is a hash.
        k, layers, alpha: K, L and α; K and α are 0 if the method has none.
        max_new_tokens, temperature, seed: as in the preset.
        finish_reason: `stop`, `length` (max_new_tokens reached), `error`, or `cut` (a guided text ended in a sentence).
        image_tokens, prompt_tokens, output_tokens: counts; the prompt's includes the image's.
        duration_ms: wall time of this picture in milliseconds, preprocessing included.
        image_sha256, sira_version: the picture's file; what made the record.
        method_settings: settings of the method without a key of their own.
        words: a list of `{word, start, end, steps, delta, grounding}`: `start` and `end` in characters of the text,
            `steps` the first token and the one after the last; `delta` sums their full minus CF logits, `grounding` is
            their probability under the contrast.
        choices: a list of `{choice, logprob, probability}`, the last two by view: `full`, `cf`, `contrast`.
        system, top_k, min_p, repetition_penalty, no_repeat_ngram_size, think: as in the preset, if set.
        json_schema: the schema that the text follows; only with one.
        text_settings: changes to the text.
        picture_settings: settings of the method that differ from `method_settings` for this picture.
        warnings: reasons to check the picture and its text, one sentence each.
        reasoning: the model's thoughts before its answer.
        support: in a check, the lowest support of the text's objects; 1 if it names none, 0 if the check failed.
        objects: a list of `{thing, spans, support, neither, image}`, the objects that the text names: `spans` in
            characters, `support` P(yes) against P(no), `neither` the probability of another answer, `image` the number
            (from 1) of the picture of a group that supports it best.
        verify: the settings of the second look; below its `min_support` an object is unsupported.
        draft: the first text, if a second look changed it.
        removed: a list of `{thing, support}`: objects of the draft that the text lacks.
        candidates: the same, of what was asked about before a guided caption was decoded.
        added: names of the objects that a guided caption has and its draft lacks.
        forbidden: names of the candidates that are not supported.
        images: of pictures shown together, the name of each.
        data: the value of a text that follows a schema.

    From `method_settings` on, what does not apply is None here and missing in the record. Records also have an `id` if
    a picture may have several: the question's, or the row's.
    """

    schema: str = field(metadata=SAME_IN_A_FILE)
    key: str
    file_name: str
    status: Literal["ok", "error"]
    text: str
    error: str
    prompt: str = field(metadata=SAME_IN_A_FILE)
    preset: str = field(metadata=SAME_IN_ALL_PARTS)
    model: str = field(metadata=SAME_IN_ALL_PARTS)
    revision: str = field(metadata=SAME_IN_ALL_PARTS)
    method: str = field(metadata=SAME_IN_ALL_PARTS)
    k: int = field(metadata=SAME_IN_ALL_PARTS)
    layers: int = field(metadata=SAME_IN_ALL_PARTS)
    alpha: float = field(metadata=SAME_IN_ALL_PARTS)
    max_new_tokens: int = field(metadata=SAME_IN_A_FILE)
    temperature: float = field(metadata=SAME_IN_ALL_PARTS)
    seed: int = field(metadata=SAME_IN_ALL_PARTS)
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
    system: str | None = field(default=None, metadata=SAME_IN_A_FILE)
    top_k: int | None = field(default=None, metadata=SAME_IN_A_FILE)
    min_p: float | None = field(default=None, metadata=SAME_IN_A_FILE)
    repetition_penalty: float | None = field(default=None, metadata=SAME_IN_A_FILE)
    no_repeat_ngram_size: int | None = field(default=None, metadata=SAME_IN_A_FILE)
    think: bool | None = field(default=None, metadata=SAME_IN_A_FILE)
    json_schema: str | None = field(default=None, metadata=SAME_IN_A_FILE)
    text_settings: dict[str, Any] | None = field(default=None, metadata=SAME_IN_A_FILE)
    picture_settings: dict[str, Any] | None = None
    warnings: list[str] | None = None
    reasoning: str | None = None
    support: float | None = None  # before `objects`, whose entries have a field of the same name
    objects: list[dict[str, Any]] | None = None
    verify: dict[str, Any] | None = field(default=None, metadata=SAME_IN_A_FILE)
    draft: str | None = None
    removed: list[dict[str, Any]] | None = None
    candidates: list[dict[str, Any]] | None = None
    added: list[str] | None = None
    forbidden: list[str] | None = None
    images: list[str] | None = None
    data: Any = None  # at the end: its keys may be any

    def to_record(self) -> dict[str, Any]:
        """Return the record, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(self.to_record(), ensure_ascii=False, allow_nan=False)

    def configuration(self) -> dict[str, Any]:
        """Return the fields that are equal in all records of a file."""
        return configuration_of(self.to_record())


def _marked(mark: str) -> tuple[str, ...]:
    return tuple(each.name for each in fields(Result) if mark in each.metadata)


CONFIGURATION = _marked("same in a file")
# Optional fields: only in records to which they apply.
OPTIONAL = tuple(each.name for each in fields(Result) if each.default is None)
# Required: without one of these it is not a record.
REQUIRED = frozenset(CONFIGURATION) - {*OPTIONAL}
# Of the configuration, what is equal in all parts of a benchmark, and settings that may be off.
IN_ALL_PARTS = _marked("same in all parts")
MAY_BE_OFF = tuple(name for name in CONFIGURATION if name in OPTIONAL)


def configuration_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are equal in all records of a file, from one record; None for settings that are off.

    Raises:
        KeyError: it lacks a required field.
    """
    return {name: record.get(name) if name in OPTIONAL else record[name] for name in CONFIGURATION}


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn `{"a": {"b": 1}}` into `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def hash_of(**decisive: Any) -> str:
    """Return the SHA-256, in hexadecimal, of the arguments as canonical JSON."""
    canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def as_line(record: dict[str, Any]) -> bytes:
    """Return a record as a line."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
