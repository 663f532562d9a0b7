"""Folders of earlier years, whose processors lack something: with it completed they are as those that have it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sira_cli import load
from sira_cli.errors import UnsupportedModelError

COUNTING = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")


def without(path: Path, *names: str) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: value for name, value in content.items() if name not in names}), encoding="utf-8")


def without_file(folder: Path) -> None:
    (folder / "processor_config.json").unlink()


def without_values(folder: Path) -> None:
    without(folder / "processor_config.json", *COUNTING)


def without_class_token(folder: Path) -> None:
    without(folder / "processor_config.json", "num_additional_image_tokens")


def without_padding(folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            without(folder / name, "pad_token")


@pytest.fixture
def checkpoint(request, checkpoint_of: Callable[[str], Path]) -> Path:
    """A family's, as it is today."""
    return checkpoint_of(request.param)


@pytest.mark.parametrize(
    ("checkpoint", "older"),
    [
        *itertools.product(("LLaVA-1.5", "LLaVA-NeXT"), (without_file, without_values, without_class_token)),
        *(("LLaVA-1.5", without_padding), ("LLaVA-NeXT", without_padding), ("JoyCaption (LLaVA)", without_padding)),
        ("JoyCaption (LLaVA)", without_values),  # its tower has no token of its own, and all of its tokens are kept
    ],
    indirect=["checkpoint"],
)
def test_an_older_folder_gives_the_same_texts(checkpoint: Path, tmp_path, photos, older: Callable[[Path], None]):
    joycaption = json.loads((checkpoint / "config.json").read_text())["vision_config"]["model_type"].startswith(
        "siglip"
    )
    settings: dict[str, Any] = {"system": "You are a helpful image captioner."} if joycaption else {}
    folder = tmp_path / "older"
    shutil.copytree(checkpoint, folder)
    older(folder)
    pictures = [photos["coffee"], photos["tall"]]  # of several lengths in LLaVA-NeXT, so that one is padded
    now, then = (
        list(load(place, max_new_tokens=4, **settings).caption_many(pictures)) for place in (checkpoint, folder)
    )
    assert [result.status for result in now] == ["ok", "ok"]
    assert [(one.text, one.image_tokens) for one in then] == [(one.text, one.image_tokens) for one in now]


def test_what_nothing_tells_is_refused_when_loading(llava_folder, tmp_path):
    folder = tmp_path / "older"
    shutil.copytree(llava_folder, folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            without(folder / name, "pad_token", "eos_token")
    with pytest.raises(UnsupportedModelError, match="neither a padding token nor an end token"):
        load(folder)


def test_the_first_name_of_qwen_s_image_processor(qwen_folder, tmp_path, photos):
    folder = tmp_path / "first upload"
    shutil.copytree(qwen_folder, folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["image_processor_type"] = "Qwen2_5_VLImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    first, now = (load(place, max_new_tokens=4, max_pixels=40_000) for place in (folder, qwen_folder))
    assert first.caption(photos["coffee"]).text == now.caption(photos["coffee"]).text
    assert first.processor.image_processor.to_dict() == now.processor.image_processor.to_dict()
