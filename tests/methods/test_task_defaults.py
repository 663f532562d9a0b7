"""Settings that follow from the task or the picture: what is in force, what the record says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sira_cli import load
from sira_cli.errors import PictureError, SettingsError
from sira_cli.methods.dola import Dola
from tests.support.runs import key_of

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
QUESTION = "Is there a dog in the image?"
ASK = ("ask", EXAMPLES[0], QUESTION, "-p", "demo")


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_record_says_how_many_tokens_of_its_picture_are_visible(sira):
    """The bundled model's pictures have 64: more than the authors' 50 for captions, fewer than their 100."""
    record = json.loads(sira(*ASK, "--method", "sid", "--json")[1])
    assert record["method_settings"]["visible"] == 100
    assert (record["image_tokens"], record["picture_settings"]) == (64, {"visible": 11})
    caption = json.loads(sira("caption", EXAMPLES[0], "-p", "demo", "--method", "sid", "--json")[1])
    assert caption["method_settings"]["visible"] == 50
    assert "picture_settings" not in caption
    set_by_hand = json.loads(sira(*ASK, "--method", "sid", "--set", "visible=11", "--json")[1])
    assert set_by_hand["text"] == record["text"]
    assert set_by_hand["method_settings"]["visible"] == 11
    assert "picture_settings" not in set_by_hand


@pytest.fixture
def two_sizes(tmp_path) -> Path:
    """Pictures of 16 and of more image tokens."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, size in (("a.png", 56), ("b.png", 28 * 8), ("c.png", 28 * 8)):
        noise = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / name)
    return folder


def test_one_picture_with_too_few_tokens_does_not_end_the_run(sira, qwen_folder, two_sizes, tmp_path):
    tokens = {record["file_name"][-5:]: record["image_tokens"] for record in _captions(sira, qwen_folder, two_sizes)}
    few = tokens["a.png"]
    assert few < tokens["b.png"]
    output = tmp_path / "captions.jsonl"
    command = ("caption", two_sizes, "-m", qwen_folder, "--method", "sid", "--set", f"visible={few}", "-b", 3)
    code, _, err = sira(*command, "--max-new-tokens", 3, "-o", output)
    assert code == 3
    assert f"a.png: method sid leaves {few} image tokens visible, but this picture has {few}" in err
    assert [record["status"] for record in read(output)] == ["error", "ok", "ok"]
    assert f"Set visible below {few}" in read(output)[0]["error"]


def _captions(sira, model: Path, pictures: Path) -> list[dict]:
    code, out, err = sira("caption", pictures, "-m", model, "--method", "greedy", "--max-new-tokens", 1, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_in_the_library_it_is_an_error_of_the_picture_and_of_a_setting():
    lvlm = load("demo", method="sid", visible=64, max_new_tokens=2)
    for kind in (PictureError, SettingsError):
        with pytest.raises(kind, match="leaves 64 image tokens visible, but this picture has 64"):
            lvlm.caption(EXAMPLES[0])
    assert [result.status for result in lvlm.caption_many(EXAMPLES[:2])] == ["error", "error"]


# --- dola


def test_keys_of_dola_hold_the_bucket_in_force():
    def key(task: str, **settings: str) -> str:
        return key_of(load("demo", method=Dola(**settings)), task, "a", "b", "c")

    assert key("caption") == key("caption", bucket="low") != key("caption", bucket="high")
    assert key("ask") == key("ask", bucket="high") != key("ask", bucket="low")


def test_dola_picks_the_bucket_by_the_task(sira):
    caption = json.loads(sira("caption", EXAMPLES[0], "-p", "demo", "--method", "dola", "--json")[1])
    answer, low, high = (
        json.loads(sira(*ASK, "--method", "dola", *options, "--json")[1])
        for options in ((), ("--set", "bucket=low"), ("--set", "bucket=high"))
    )
    buckets = [record["method_settings"]["bucket"] for record in (caption, answer, low, high)]
    assert buckets == ["low", "high", "low", "high"]
    assert answer | {"duration_ms": 0} == high | {"duration_ms": 0}


def test_answers_of_dola_under_low_are_not_taken_for_those_under_high(sira, tmp_path):
    output = tmp_path / "answers.jsonl"
    assert sira(*ASK, "--method", "dola", "--set", "bucket=low", "-o", output)[0] == 0
    code, _, err = sira(*ASK, "--method", "dola", "-o", output)
    assert code == 2
    assert "dola.bucket is 'low' there and 'high' now" in err
