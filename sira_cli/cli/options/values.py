"""Values of options: choices, shell completion, parsing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import typer

from sira_cli.methods import METHODS

Dtype = Literal["auto", "float32", "bfloat16", "float16"]  # precision of the weights


Quantization = Literal["8bit", "4bit"]  # bits of the weights, by bitsandbytes


def complete_preset(incomplete: str) -> list[str]:
    """Return the names of presets with this prefix, for the shell."""
    from sira_cli.models import presets

    return [name for name in presets.available() if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the names of methods with this prefix, for the shell."""
    return [name for name in METHODS if name.startswith(incomplete)]


# Options and arguments that are texts and may name files.
MAY_BE_PATHS = ("answers", "file", "files_from", "model", "name", "objects", "paths", "preset")
_ROOM = "-" * 20  # for suffixes of files next to it, such as `.records.jsonl`


def check_path(name: str, value: str | Path) -> None:
    """Check that a path can be looked up; whether it exists is checked when it is opened."""
    from sira_cli.errors import SettingsError
    from sira_cli.files import from_home, too_long

    text = str(value)
    if "://" in text:
        return
    if too_long(Path(text)) or (name != "paths" and not os.path.lexists(text) and too_long(Path(text + _ROOM))):
        raise typer.BadParameter(f"{text[:40]}...: is too long for a file's name ({len(os.fsencode(text))} bytes)")
    try:
        from_home(text)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None


def read_batch_size(text: str) -> int | str:
    """Read `auto`, or a number >= 1."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text}: expected a whole number from 1, or auto")
    return int(text)
