"""The words of each language for questions about a text: a row of `wordings.yaml` per language."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sira_cli.language import things
from sira_cli.language.things import OBJECTS, Thing

ENGLISH = "en"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @field_validator("before", "after", "excluded", "denied_after", check_fields=False)
    @classmethod
    def _is_regular_expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return value


class KindWording(_Strict):
    """The question about a kind of claims and its answers, in a language; an empty question: the language has none."""

    question: str = ""
    answers: dict[str, str] = {}
    before: str | None = None
    after: str | None = None
    excluded: str | None = None

    @field_validator("question")
    @classmethod
    def _names_the_thing(cls, value: str) -> str:
        if value and "{thing}" not in value:
            raise ValueError("must contain {thing}")
        return value


class Wording(_Strict):
    """The questions, answers and words of a language, described in `wordings.yaml`. Words are divided by spaces."""

    code: str
    yes_words: str = Field(min_length=1)
    no_words: str = Field(min_length=1)
    list: str = ""
    denials: str = ""
    denial_ends: str = ""
    denied_after: str | None = None
    compounds: str = ""
    introduced_by: str = ""
    joined_by: str = ""
    kinds: dict[str, KindWording] = {}

    @property
    def yes(self) -> tuple[str, ...]:
        """Spellings of yes."""
        return _parts(self.yes_words)

    @property
    def no(self) -> tuple[str, ...]:
        """Spellings of no."""
        return _parts(self.no_words)

    def of(self, kind: str) -> KindWording:
        """Return the wording of a kind of claims."""
        return self.kinds.get(kind, KindWording())

    def asking(self, kind: str, question: str) -> Wording:
        """Return this wording with another question about a kind."""
        return self.model_copy(
            update={"kinds": self.kinds | {kind: self.of(kind).model_copy(update={"question": question})}}
        )

    def question(self, thing: Thing) -> str:
        """Return the question about a claim."""
        name = things.with_article(thing.name) if self.code == ENGLISH else thing.name
        if self.code == ENGLISH and thing.kind != OBJECTS:
            name = re.sub(r"^an? ", "", name)
        return self.of(thing.kind).question.replace("{thing}", name)

    def answers(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Return the spellings of every answer about a kind, by the answer's usual word (`Thing.value`)."""
        if kind == OBJECTS:
            return {"": self.yes, "no": self.no}
        return {
            words[0]: tuple(dict.fromkeys(form for word in words for form in (word, word.capitalize(), word.upper())))
            for words in (each.split() for each in self.of(kind).answers.values())
        }


def wording_of(code: str, changes: Mapping[str, Any] | None = None) -> Wording:
    """Return the wording of a language: its row of wordings.yaml, if it has one, with changes."""
    return Wording.model_validate({**_changed(shipped().get(code, {}), changes or {}), "code": code})


@functools.cache
def shipped() -> dict[str, dict[str, Any]]:
    """Return the rows of wordings.yaml by the language's code."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("wordings.yaml").read_text(encoding="utf-8")
    )
    return rows


def _changed(row: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    nested = {
        key: _changed(row[key], value)
        for key, value in changes.items()
        if isinstance(value, Mapping) and isinstance(row.get(key), Mapping)
    }
    return {**row, **changes, **nested}


def _parts(words: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in words.split(",") if part.strip())
