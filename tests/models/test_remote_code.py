"""Python code that a checkpoint brings: without `load.trust_remote_code` none of it runs, and nobody is asked."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import dynamic_module_utils

from sira_cli import load
from sira_cli.demo.export import export
from sira_cli.demo.questions import Questions, held_out
from sira_cli.errors import SiraError
from sira_cli.models.load import inspect_model
from sira_cli.models.preset import Preset

YES = b"y\ny\ny\ny\n"  # to whatever is asked
# Classes by the name under which a file's `auto_map` offers them.
OFFERED: dict[str, dict[str, Any]] = {
    "config.json": dict.fromkeys(("AutoModel", "AutoModelForImageTextToText"), "evil.Model")
    | {"AutoConfig": "evil.Config"},
    "processor_config.json": {"AutoProcessor": "evil.Processor"},
    "preprocessor_config.json": {"AutoProcessor": "evil.Processor", "AutoImageProcessor": "evil.ImageProcessor"},
    "tokenizer_config.json": {"AutoProcessor": "evil.Processor", "AutoTokenizer": ["evil.Tokenizer"] * 2},
}
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
CODE = """
from pathlib import Path

Path({marker!r}).touch()


class Config:
    model_type = "evil"


Model = Processor = ImageProcessor = Tokenizer = Config
"""


def change(path: Path, **values: Any) -> None:
    content = (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}) | values
    kept = {name: value for name, value in content.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def make_foreign(part: str, folder: Path) -> None:
    """Let a part of a checkpoint need the code that comes with it."""
    if part == "model":
        change(folder / "config.json", model_type="evil")
    if part in ("model", "processor"):
        for name in PROCESSORS:
            change(folder / name, processor_class=None if part == "model" else "EvilProcessor")
    if part == "image processor":
        change(folder / "preprocessor_config.json", image_processor_type="EvilImageProcessor")
    if part == "tokenizer":
        change(folder / "tokenizer_config.json", tokenizer_class="EvilTokenizer")
    if part == "text model":  # of a type that transformers has the configuration of, and no model
        own = json.loads((folder / "config.json").read_text())["text_config"]
        own |= {"model_type": "kosmos_2_text_model", "auto_map": {"AutoModel": f"{folder}--evil.Model"}}
        change(folder / "config.json", text_config=own)
    if part == "audio":  # every processor may have a model that hears
        (folder / "other").mkdir()
        change(folder / "other" / "config.json", model_type="evil", auto_map=OFFERED["config.json"])
        shutil.copy(folder / "evil.py", folder / "other")
        audio = {"audio_tokenizer_class": "AutoModel", "audio_tokenizer_name_or_path": str(folder / "other")}
        change(folder / "processor_config.json", audio_tokenizer=audio)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What the checkpoint's code makes when it runs."""
    return tmp_path / "code has run"


@pytest.fixture
def checkpoint(llava_folder: Path, tmp_path: Path, marker: Path, monkeypatch) -> Path:
    """An ordinary LLaVA-1.5 that offers its own code for every part."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    shutil.copytree(llava_folder, folder)
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    for name, classes in OFFERED.items():
        change(folder / name, auto_map=classes)
    return folder


def test_the_code_does_run_where_the_user_says_so(checkpoint, marker):
    """Else the other tests would show nothing."""
    make_foreign("model", checkpoint)
    with pytest.raises(SiraError):
        load(checkpoint, trust_remote_code=True)
    assert marker.exists()


def test_an_ordinary_model_works_without_the_code_that_comes_with_it(checkpoint, marker, sira, photos, llava_folder):
    code, out, _ = sira("caption", photos["coffee"], "-m", checkpoint, "--max-new-tokens", 3, stdin=YES)
    assert (code, out) == (0, sira("caption", photos["coffee"], "-m", llava_folder, "--max-new-tokens", 3)[1])
    assert sira("presets", "new", checkpoint, stdin=YES)[0] == 0
    assert not marker.exists()


@pytest.mark.parametrize("part", ["model", "processor", "image processor", "tokenizer", "text model", "audio"])
def test_no_part_runs_its_own_code(checkpoint, marker, sira, photos, part):
    make_foreign(part, checkpoint)
    timeout = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    # A text of one token: a part that can be had without its code may well work.
    code, out, err = sira("caption", photos["coffee"], "-m", checkpoint, "--max-new-tokens", 1, stdin=YES)
    assert "[y/N]" not in out + err
    assert code in (0, 1, 2)
    assert code == 0 or err.count("\n") <= 5
    sira("presets", "new", checkpoint, stdin=YES)
    assert not marker.exists()
    assert timeout == dynamic_module_utils.TIME_OUT_REMOTE_CODE  # of other users of transformers


def test_no_command_runs_it(checkpoint, marker, sira, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("sira_cli.demo.export.Questions", partial(Questions, 20))  # fewer scenes to count things in
    make_foreign("model", checkpoint)
    picture, preset, data = tmp_path / "coffee.jpg", tmp_path / "evil.yaml", tmp_path / "scenes"
    picture.write_bytes(photos["coffee"].read_bytes())
    (tmp_path / "coffee.txt").write_text("A cup on a table.")
    preset.write_text(json.dumps({"model": str(checkpoint)}))
    export([held_out(0)], data)
    images, scenes = ("--images", data / "images", "-o", tmp_path / "answers"), ("--scenes", "--limit", 2)
    commands: list[tuple[Any, ...]] = [
        *((name, picture) for name in ("caption", "trace", "check", "drift")),
        *[("caption", "-"), ("ask", picture, "What is this?"), ("bench",), ("sweep", *scenes), ("serve", "--port", 0)],
        ("eval", "pope", *sorted((data / "pope").iterdir()), *images),
        ("eval", "chair", data / "coco", "--option", f"ids={data / 'coco/ids.txt'}", *images),
        ("eval", "amber", data / "amber", "--option", "similarity=exact", *images),
        *[("calibrate", "maskcd", picture), ("calibrate", "ict", *scenes), ("calibrate", "support", *scenes)],
    ]
    for command in commands:
        stdin = picture.read_bytes() if "-" in command else YES
        code, out, err = sira(*command, "-m", checkpoint, stdin=stdin)
        assert "own Python code" in err, (command, err)
        assert (code, out) == (2, ""), (command, err)
        assert not marker.exists(), command
    sira("presets", "show", preset, stdin=YES)
    sira("presets", "check", preset, stdin=YES)
    sira("presets", "new", checkpoint, stdin=YES)
    with pytest.raises(SiraError, match="own Python code"):
        inspect_model(Preset(model=str(checkpoint)))
    assert not marker.exists()
