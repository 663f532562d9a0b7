"""Outputs of commands, next to those of the code before each command became a task of one runner.

`tests/data/outputs.json.xz` was written by `python -m tests.run.test_outputs_stay FILE`: first at commit 3d4578e, and
once more when the bundled model was trained anew, by code that had passed with the weights of before. Since then one
sentence was replaced by hand: that of the rule by which `sira sweep --captions` chooses.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from sira_cli.cli import main

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "data" / "outputs.json.xz"
COMMANDS = {
    "caption": "caption in DEMO -o captions.jsonl --sidecar",
    "caption in batches": "caption in DEMO -b 3 --json",
    "caption under two methods": "caption in DEMO --method greedy,vcd --seed 3 -o of.jsonl",
    "caption, sampled words": "caption in DEMO --words --temperature 0.7 -o words.jsonl",
    "caption, again": "caption in DEMO -o captions.jsonl --json",
    "ask, choices": "ask in 'Is there a dog?' DEMO --choices Yes,No --json",
    "ask, questions": "ask in --questions questions.jsonl DEMO -o answers.jsonl",
    "check": "check said.jsonl -p demo -o checks.jsonl",
    "eval": "eval pope questions.jsonl --images in -p demo --method sira -o pope",
    "eval, again": "eval pope questions.jsonl --images in -p demo --method sira -o pope",
    "sweep": "sweep questions.jsonl --images in -p demo --k 2,4 --alpha 0.5,2 -o sweep.jsonl",
    "sweep, captions": "sweep --scenes --limit 2 -p demo --k 4 --alpha 1 --captions -o scenes.jsonl",
    "trace": "trace in DEMO --top-k 1 --track dog -o trace.jsonl",
    "trace, forced": "trace --force-from said.jsonl -p demo --top-k 1 -b 2 --output-dir tree",
    "calibrate ict": "calibrate ict --questions questions.jsonl --images in -p demo -o ict.safetensors",
    "calibrate maskcd": "calibrate maskcd in -p demo -b 2 -o maskcd.safetensors",
}
NOISE = re.compile(
    r'("(?:duration_ms|seconds|pictures_per_second|tokens_per_second)": )[\d.e-]+'
    r'|("(?:began|torch|transformers|python|sira|pixels)": )"[^"]*"'
    r'|("peak_memory_bytes": )\{[^}]*\}'
    r"|(in )\d[\d. a-z]*( \()\d+\.\d+/s"
)


def prepare(folder: Path) -> None:
    """Three scenes, a file that is no picture, questions about them, and captions of others."""
    (folder / "in").mkdir()
    for number, path in enumerate(sorted((ROOT / "examples").glob("*.png"))[:3]):
        shutil.copy(path, folder / "in" / f"{number}.png")
    (folder / "in" / "3.png").write_text("no picture")
    questions = [
        {"question_id": 3 * number + each, "image": f"{number}.png", "text": f"Is there a {name} in the image?"}
        | {"label": "yes" if each else "no"}
        for number in range(4)
        for each, name in enumerate(["dog", "person", "boat"])
    ]
    said = [
        {"file_name": f"in/{number}.png", "text": text}
        for number, text in enumerate(["A dog and a boat. A person stands there.", "A red car.", "Nothing to see."])
    ]
    for name, rows in (("questions", questions), ("said", said)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def outputs(folder: Path) -> dict[str, Any]:
    """Run all commands in a folder: exit code, stdout and new or changed files of each, without times and versions."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SIRA_HOME", str(folder.parent / f"{folder.name}-home"))
        prepare(folder)
        before = _files(folder)
        for name, command in COMMANDS.items():
            words = shlex.split(command.replace("DEMO", "-p demo --max-new-tokens 12"))
            patch.setattr(sys, "argv", ["sira", *words])
            code = 0
            with contextlib.redirect_stdout(io.StringIO()) as out:
                try:
                    main()
                except SystemExit as stop:
                    code = int(stop.code or 0)
            after = _files(folder)
            files = {path: content for path, content in after.items() if before.get(path) != content}
            found[name] = {"code": code, "stdout": _plain(out.getvalue(), folder), "files": files}
            before = after
    return found


def _files(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            found[path.name] = {key: float(tensor.abs().sum()) for key, tensor in sorted(load_file(path).items())}
        elif path.is_file() and path.suffix != ".png":
            found[path.relative_to(folder).as_posix()] = _plain(path.read_text(), folder)
    return found


def _plain(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER")
    return NOISE.sub(lambda match: "".join(part or "" for part in match.groups()) + "_", text)


SINCE = {"trace, trace.run.json"}  # files that runs write since the outputs were kept


def same(now: Any, before: Any) -> bool:
    """Return whether texts are equal but for the last digits of numbers."""
    if isinstance(now, dict) and isinstance(before, dict):
        return now.keys() == before.keys() and all(same(value, before[key]) for key, value in now.items())
    if isinstance(now, str) and isinstance(before, str):
        digits = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
        numbers = [[float(each) for each in digits.findall(text)] for text in (now, before)]
        return digits.sub("#", now) == digits.sub("#", before) and numbers[0] == pytest.approx(
            numbers[1], rel=1e-3, abs=2e-4
        )
    return bool(now == pytest.approx(before, rel=1e-3) if isinstance(before, float) else now == before)


def flat(found: dict[str, Any]) -> dict[str, Any]:
    each = {name: {**part["files"], "stdout": part["stdout"], "code": part["code"]} for name, part in found.items()}
    return {f"{name}, {path}": content for name, part in each.items() for path, content in part.items()}


def test_outputs_are_those_of_before(tmp_path: Path) -> None:
    now, before = flat(outputs(tmp_path)), flat(json.loads(lzma.decompress(KEPT.read_bytes())))
    assert now.keys() == before.keys() | SINCE
    others = [name for name in before if not same(now[name], before[name])]
    assert not others, "\n\n".join(f"{name}:\n{now[name]}\n--- before:\n{before[name]}" for name in others)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as place:
        (inner := Path(place) / "x").mkdir()
        Path(sys.argv[1]).write_bytes(lzma.compress(json.dumps(outputs(inner), ensure_ascii=False).encode()))
