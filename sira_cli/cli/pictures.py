"""What `caption` and `ask` share: one prompt, some pictures, texts or records on stdout."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.console import note, say, set_verbosity, verbosity
from sira_cli.cli.options import DecodingOptions, ModelOptions, OutputOptions, load_model
from sira_cli.errors import PictureError, SettingsError, SiraError

if TYPE_CHECKING:
    from sira_cli.lvlm import Lvlm
    from sira_cli.results import Result


def run_pictures(
    task: str,
    paths: Sequence[str],
    text: str | None,
    model: ModelOptions,
    decoding: DecodingOptions,
    output: OutputOptions,
) -> None:
    """Decode each picture in turn. One bad picture is reported and the others go on.

    Args:
        task: `caption` or `ask`.
        paths: pictures and folders of pictures; `-` is stdin.
        text: the prompt (caption; None: the preset's) or the question (ask).

    Raises:
        typer.Exit: with 3 if some pictures failed.
        SiraError: the run could not start.
    """
    from sira_cli.presets import BUNDLED

    set_verbosity(output.quiet, output.verbose)
    paths = _pictures(paths)
    lvlm = load_model(model, decoding, prompt=text if task == "caption" else None)
    if lvlm.preset.model == BUNDLED:
        note("the bundled model knows drawn scenes only; photographs need another preset")
    prompt = lvlm.preset.prompts.caption if task == "caption" else lvlm.preset.prompts.ask
    prompt = prompt.replace("{question}", text) if task == "ask" and text is not None else prompt

    failed = 0
    for path in paths:
        result = _decode(lvlm, task, path, prompt, output, several=len(paths) > 1)
        if result.status == "error":
            failed += 1
        if output.json:
            print(result.to_json(), flush=True)
    if failed:
        if len(paths) > 1:
            say(f"{failed} of {len(paths)} pictures failed")
        raise typer.Exit(3)


def _pictures(paths: Sequence[str]) -> list[str]:
    """The pictures, with folders replaced by what is in them. Nothing to do is known before a model is loaded."""
    if "" in paths:
        raise SettingsError("a picture's path is empty")
    if paths.count("-") > 1:
        raise SettingsError("'-' (stdin) can be given once")
    from sira_cli.images import one_line, pictures_in

    found: list[str] = []
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            found.append(path)
        elif inside := pictures_in(Path(path)):
            found += [str(picture) for picture in inside]
        else:
            raise SettingsError(f"{one_line(path)}: no pictures in this folder (those in subfolders do not count)")
    if not any(path == "-" or Path(path).exists() for path in found):
        raise PictureError(
            f"{found[0]}: no such file" + (f", nor any of the other {len(found) - 1}" * (len(found) > 1))
        )
    return found


def _decode(lvlm: Lvlm, task: str, path: str, prompt: str, output: OutputOptions, several: bool) -> Result:
    stream = sys.stdout.isatty() and not output.json and not output.no_stream
    shown: list[str] = []

    def show(piece: str) -> None:
        if not shown and several:
            print(f"{one_line(path)}: ", end="")
        shown.append(piece)
        print(piece if len(shown) > 1 else piece.lstrip(), end="", flush=True)

    from sira_cli.images import one_line

    try:
        source = sys.stdin.buffer if path == "-" else path
        result = lvlm.run(task, source, prompt, show if stream else None)
    except Exception as error:
        if isinstance(error, SiraError) and not isinstance(error, PictureError):
            raise  # about the prompt or the settings: no picture would do better
        if shown:
            print()
        if verbosity() >= 2:
            traceback.print_exception(error)
        unforeseen = f"{one_line(path)}: {type(error).__name__}: {error}"
        message = str(error) if isinstance(error, PictureError) else unforeseen
        say(message)
        return lvlm.failure(task, path, prompt, message)
    if shown:
        print()
    elif not output.json:
        print(f"{one_line(path)}: {result.text}" if several else result.text, flush=True)
    return result
