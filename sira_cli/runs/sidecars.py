"""Captions as text files: `photo.txt` beside `photo.jpg`, or at the same place in another tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from sira_cli.errors import SettingsError
from sira_cli.files import make_folder, replacing
from sira_cli.pictures.opening import endings, one_line
from sira_cli.pictures.sources import STDIN, Source
from sira_cli.pictures.stores import is_uri


class Sidecars:
    """Where each picture's text goes."""

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        extension: str = ".txt",
        output_dir: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        """Find every picture's place.

        Args:
            sources: the pictures.
            extension: of the text files.
            output_dir: the tree to write to; None: beside the pictures.
            overwrite: write over existing files; else they are kept.

        Raises:
            SettingsError: two pictures have the same place, a picture has none, or the extension is that of pictures.
        """
        extension = extension if extension.startswith(".") else f".{extension}"
        if len(extension) < 2 or "/" in extension or os.sep in extension or extension.lower() in endings():
            raise SettingsError(f"caption extension {extension!r}: expected one for text files, such as .txt")
        self._extension, self._output_dir, self._overwrite = extension, output_dir, overwrite
        taken: dict[Path, Source] = {}
        for source in sources:
            if source.path == STDIN:
                raise SettingsError("'-' (stdin) has no place for a text file: leave out --sidecar")
            if output_dir is None and is_uri(source.path):
                raise SettingsError(f"{one_line(source.path)}: texts are not written to a store: give --output-dir")
            place = self.place(source)
            if place == Path(source.path):
                raise SettingsError(f"{one_line(source.path)}: its text would replace it: choose another extension")
            if place in taken:
                raise SettingsError(
                    f"{one_line(source.path)} and {one_line(taken[place].path)} would both be described in "
                    f"{one_line(str(place))}: rename one, or write records with --output"
                )
            taken[place] = source

    def place(self, source: Source) -> Path:
        """The text file of a picture."""
        if self._output_dir is None:
            return Path(source.path).with_suffix(self._extension)
        path = Path(source.relative)
        inside = [part for part in path.parts if part not in (path.anchor, os.pardir)]
        return self._output_dir.joinpath(*inside).with_suffix(self._extension)

    def keeps(self, source: Source) -> bool:
        """Whether there is a text file already, and it stays."""
        return not self._overwrite and self.place(source).exists()

    def write(self, source: Source, text: str) -> None:
        """Write a picture's text, unless an existing file is to be kept.

        Raises:
            SiraError: it cannot be written.
        """
        if self.keeps(source):
            return
        place = self.place(source)
        make_folder(place.parent)
        with replacing(place) as file:
            file.write(f"{text}\n".encode())

    def complete(self, source: Source, text: Callable[[], str]) -> None:
        """Write the text of an earlier run, if its file is missing.

        Raises:
            SiraError: it cannot be written.
        """
        if not self.place(source).exists():
            self.write(source, text())
