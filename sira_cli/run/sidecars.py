"""Captions as text files: `photo.txt` next to `photo.jpg`, or at the same place in another tree."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sira_cli.errors import SettingsError
from sira_cli.files import check_folder, check_unprotected, make_folder, replacing, reserved, text_in, too_long
from sira_cli.pictures.names import one_line
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Picture

_RECORDS = "write records with `output=`"


class Sidecars:
    """The text file of each picture.

    Attributes:
        apart: files of pictures whose name, but for the ending, is that of an earlier one, by `identity`:
            `IMG_1.jpg.txt`, where `IMG_1.txt` is about IMG_1.heic.
        joined: number of texts of several lines that were written in one.
    """

    def __init__(
        self,
        pictures: Iterable[Picture],
        *,
        extension: str = ".txt",
        output_dir: Path | None = None,
        overwrite: bool = False,
        keep_lines: bool = False,
    ) -> None:
        """Choose every picture's text file."""
        extension = extension if extension.startswith(".") else f".{extension}"
        if len(extension) < 2 or "/" in extension or os.sep in extension or extension.lower() in endings():
            raise SettingsError(f"caption extension {extension!r}: expected one for text files, such as .txt")
        self._extension, self._output_dir, self._overwrite = extension, output_dir, overwrite
        self._keep_lines, self.joined = keep_lines, 0
        taken: dict[Path, Picture] = {}
        self.apart: dict[str, Path] = {}
        for picture in pictures:
            place, suffix = self.place(picture), Path(picture.relative).suffix
            if place in taken and suffix != Path(taken[place].relative).suffix:  # IMG_1.heic and IMG_1.jpg
                place = place.with_name(place.name.removesuffix(extension) + suffix + extension)
                self.apart[picture.identity] = place
            if place == Path(picture.location):
                raise SettingsError(f"{picture.shown}: its text would replace it: choose another extension")
            if too_long(place):
                raise SettingsError(
                    f"{picture.shown}: the name of its text file would be too long: rename it, choose a shorter "
                    f"`caption_extension=`, or {_RECORDS}"
                )
            if output_dir is not None and (name := reserved(picture.mirrored(extension))) is not None:
                raise SettingsError(
                    f"{picture.shown}: its text file would be named {name}, which Windows does not allow: rename it, "
                    f"or {_RECORDS}"
                )
            if place in taken:
                raise SettingsError(
                    f"{picture.shown} and {taken[place].shown} would both be described in "
                    f"{one_line(str(place))}: rename one, or {_RECORDS}"
                )
            taken[place] = picture
        to_write = [place for place, picture in taken.items() if not self.keeps(picture)]
        for place in to_write:
            check_unprotected(place)
        for folder in {place.parent for place in to_write}:
            check_folder(folder, "write the text files elsewhere with `output_dir=`")

    def place(self, picture: Picture) -> Path:
        """Return the text file of a picture."""
        if (apart := self.apart.get(picture.identity)) is not None:
            return apart
        if self._output_dir is None:
            return picture.text_file(self._extension)
        return self._output_dir / picture.mirrored(self._extension)

    def keeps(self, picture: Picture) -> bool:
        """Return whether a picture's existing text file is kept; an empty one is not."""
        return not self._overwrite and self.is_there(picture)

    def text(self, picture: Picture) -> str:
        """Return the text in a picture's file."""
        place = self.place(picture)
        return text_in(place.read_bytes(), one_line(str(place))).strip()

    def is_there(self, picture: Picture) -> bool:
        """Return whether a picture's text file exists and is not empty."""
        try:
            return self.place(picture).stat().st_size > 0
        except OSError:
            return False

    def replace(self, picture: Picture, text: str) -> None:
        """Write a picture's text in the place of any other."""
        place = self.place(picture)
        make_folder(place.parent)
        if len(lines := text.splitlines()) > 1 and not self._keep_lines:
            text = " ".join(filter(None, map(str.strip, lines)))
            self.joined += 1
        with replacing(place) as file:
            file.write(f"{text}\n".encode())
