"""A picture with an existing text about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sira_cli.data.wrapped import WrappedPicture
from sira_cli.pictures.picture import Picture


@dataclass(frozen=True)
class CaptionedPicture(WrappedPicture):
    """A picture, wherever it is, and one of the texts about it.

    Attributes:
        text: the caption.
        number: 1 for the first text about a picture; from 2 on it is part of the name.
    """

    text: str
    number: int = 1

    @classmethod
    def of(cls, picture: Picture, text: str, number: int = 1) -> Self:
        """Combine a picture and a text."""
        return cls(picture.location, picture.relative, picture, text, number)

    @property
    def _mark(self) -> str:
        return f"#{self.number}" if self.number > 1 else ""

    @property
    def shown(self) -> str:
        """Location for a message."""
        return self.picture.shown + self._mark

    @property
    def identity(self) -> str:
        """The picture's identity, and the number of the text."""
        return self.picture.identity + self._mark

    def asked(self, prompt: str) -> str:
        """Return prompt and text: both decide the result."""
        return json.dumps([prompt, self.text])

    def name_in(self, folder: Path | None) -> str:
        """Return the picture's name in a record, such as `a.jpg`; `a.jpg#2` for the second text about it."""
        return self.picture.name_in(folder) + self._mark

    def images(self, name: str) -> list[str] | None:
        """Return the names of its pictures in a record."""
        return self.picture.images(name.removesuffix(self._mark))

    def text_file(self, extension: str) -> Path:
        """Return the text file next to the picture."""
        return self.picture.text_file(extension)
