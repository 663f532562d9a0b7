"""What differs between languages when a model is asked about a text: a row of `wordings.yaml` per language."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sira_cli.language import things
from sira_cli.language.things import Thing

ENGLISH = "en"


class Wording(BaseModel):
    """A language's questions, answers and colours; `wordings.yaml` says what each is. Words are divided by spaces."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    code: str
    objects: str
    yes_words: str = Field(min_length=1)
    no_words: str = Field(min_length=1)
    list: str = ""
    denials: str = ""
    denial_ends: str = ""
    denied_after: str | None = None
    compounds: str = ""
    introduced_by: str = ""
    joined_by: str = ""
    colors: str = ""
    color_words: dict[str, str] = {}
    before: str | None = None
    after: str | None = None
    not_colors: str | None = None

    @field_validator("objects", "colors")
    @classmethod
    def _names_the_thing(cls, value: str) -> str:
        if value and "{thing}" not in value:
            raise ValueError("must contain {thing}")
        return value

    @field_validator("before", "after", "not_colors", "denied_after")
    @classmethod
    def _is_regular_expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return value

    @property
    def yes(self) -> tuple[str, ...]:
        """Spellings of yes."""
        return _parts(self.yes_words)

    @property
    def no(self) -> tuple[str, ...]:
        """Spellings of no."""
        return _parts(self.no_words)

    def about_presence(self, thing: Thing) -> str:
        """Return the question whether an object is in the picture."""
        name = things.with_article(thing.name) if self.code == ENGLISH else thing.name
        return self.objects.replace("{thing}", name)

    def about_color(self, thing: Thing) -> str:
        """Return the open question about an object's colour."""
        name = things.with_article(thing.name) if self.code == ENGLISH else thing.name
        return self.colors.replace("{thing}", re.sub(r"^an? ", "", name) if self.code == ENGLISH else name)


@functools.cache
def shipped() -> dict[str, dict[str, Any]]:
    """Return the rows of wordings.yaml by the language's code."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("wordings.yaml").read_text(encoding="utf-8")
    )
    return rows


def _parts(words: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in words.split(",") if part.strip())
