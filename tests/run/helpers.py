"""Folders of pictures, commands over them, and what they leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from tests.support.helpers import SIRA
from tests.support.shards import EXAMPLES

FAST = ("--preset", "demo", "--max-new-tokens", "6")


def make_folder(folder: Path, pictures: int = 6) -> Path:
    """Drawn scenes and one file that is no picture, in the second place."""
    folder.mkdir(exist_ok=True)
    for number in range(pictures):
        shutil.copy(EXAMPLES[number % len(EXAMPLES)], folder / f"{number:03}.png")
    (folder / "001-bad.png").write_text("no picture")
    return folder


def draw(folder: Path, *texts: str | None) -> Path:
    """Scenes that no training saw, with these captions: the first has a bicycle, tables, a bowl and a clock."""
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        render(held_out(VALIDATION_SEEDS[500_000 + number]))[0].save(folder / f"{number}.png")
        if text is not None:
            (folder / f"{number}.txt").write_text(f"{text}\n", encoding="utf-8")
    return folder


def start(folder: Path, home: Path, *options: object, **settings) -> subprocess.Popen:
    """The installed command in a folder: messages hold paths as they are given."""
    command, environment = [SIRA, "caption", *map(str, options), *FAST], {**os.environ, "SIRA_HOME": str(home)}
    return subprocess.Popen(command, cwd=folder, env=environment, **{"stderr": subprocess.PIPE, **settings})


def read(path: Path | str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def without_time(path: Path) -> bytes:
    return re.sub(rb'"duration_ms": [0-9.]+', b'"duration_ms": 0', path.read_bytes())


def report_of(folder: Path, name: str = "captions") -> dict:
    return json.loads((folder / f"{name}.run.json").read_text())
