"""Parts of presets, whose settings say where they are declared whether they decide a text."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Decides(Enum):
    """Whether a setting decides a text, so that keys of records hold it, and a file has records of one value only.

    It marks a field, `Annotated[int, Decides.ALWAYS]`, or with a field of the preset all settings of a part. Settings
    without a mark are `IF_SET`: one that is added later leaves the keys of existing records as they are.
    """

    ALWAYS = "keys hold it"
    IF_SET = "keys hold it where it differs from its default"
    NEVER = "it decides nothing, or keys hold it in another form"


class Strict(BaseModel):
    """A part of a preset: unknown keys and other types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def marks(cls, usual: Decides = Decides.IF_SET) -> dict[str, Decides]:
        """Return whether each setting decides a text; `usual` stands for settings without a mark."""
        marks = dict.fromkeys(cls.model_fields, usual)
        for name, field in cls.model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, Decides):
                    marks[name] = mark
        return marks

    def decisive(self, usual: Decides = Decides.IF_SET) -> dict[str, Any]:
        """Return the settings that decide a text, as JSON values."""
        decisive: dict[str, Any] = {}
        values = self.model_dump(mode="json")
        for name, mark in self.marks(usual).items():
            value = getattr(self, name)
            is_set = value != type(self).model_fields[name].default
            if isinstance(value, Strict):
                if part := value.decisive(mark):
                    decisive[name] = part
            elif mark is Decides.ALWAYS or (mark is Decides.IF_SET and is_set):
                decisive[name] = values[name]
        return decisive

    def optional(self) -> dict[str, Any]:
        """Return the settings that keys hold only where they are set; None for those that are not."""
        decisive = self.decisive()
        return {name: decisive.get(name) for name, mark in self.marks().items() if mark is Decides.IF_SET}
