"""A picture with something added to it; its place and the way to read it stay the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sira_cli.pictures.picture import OpenedPicture, Picture


@dataclass(frozen=True)
class WrappedPicture(Picture):
    """A picture, wherever it is.

    Attributes:
        picture: the picture itself.
    """

    picture: Picture

    @property
    def shown(self) -> str:
        """That of the picture."""
        return self.picture.shown

    @property
    def parts(self) -> tuple[Picture, ...]:
        """Those of the picture."""
        return self.picture.parts

    @property
    def is_group(self) -> bool:
        """Whether the picture is."""
        return self.picture.is_group

    @property
    def address(self) -> str:
        """That of the picture."""
        return self.picture.address

    @property
    def depends_on_folder(self) -> bool:
        """Whether that of the picture does."""
        return self.picture.depends_on_folder

    def is_missing(self) -> bool:
        """Return whether the picture is."""
        return self.picture.is_missing()

    def is_here(self) -> bool:
        """Return whether the picture is."""
        return self.picture.is_here()

    def name_in(self, folder: Path | None) -> str:
        """Return the name of the picture."""
        return self.picture.name_in(folder)

    def images(self, name: str) -> list[str] | None:
        """Return the names of its pictures."""
        return self.picture.images(name)

    def file_size(self) -> int:
        """Return that of the picture."""
        return self.picture.file_size()

    def make_ready(self) -> None:
        """Get the picture ready."""
        self.picture.make_ready()

    def read(self) -> bytes:
        """Return the picture's bytes."""
        return self.picture.read()

    def files(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the files of the picture."""
        return self.picture.files(data)

    def opened(self, data: bytes) -> OpenedPicture:
        """Decode the picture."""
        return self.picture.opened(data)
