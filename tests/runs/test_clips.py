"""Clips through the commands: records, sidecars, resumed runs, one record per damaged file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from sira_cli import load
from sira_cli.data.parts import recorded
from sira_cli.pictures.clip import Sampling
from sira_cli.pictures.sources import as_picture
from tests.support.clips import write_animation, write_clip

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
FAST = ("-p", "demo", "--max-new-tokens", 4, "--frames", 3)


@pytest.fixture
def folder(tmp_path) -> Path:
    inside = tmp_path / "clips"
    inside.mkdir()
    shutil.copy(EXAMPLES[0], inside / "b.png")
    write_clip(inside / "a.mp4")
    write_animation(inside / "c.gif")
    (inside / "d.mkv").write_bytes(b"\x1a\x45\xdf\xa3" + bytes(99))
    return inside


def records_of(path: Path) -> dict[str, dict[str, object]]:
    return {each["file_name"]: each for each in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def test_a_folder_of_pictures_and_clips(sira, folder, tmp_path):
    output = tmp_path / "captions.jsonl"
    run = ("caption", folder, *FAST, "-o", output, "--set", "prompts.clip=Describe these {seconds} seconds.")
    code, _, err = sira(*run, "--sidecar", "-b", 2)
    records = records_of(output)
    assert (code, "3 of 4 pictures done" in err) == (3, True)
    clip, picture, animation, damaged = (records[f"clips/{name}"] for name in ("a.mp4", "b.png", "c.gif", "d.mkv"))
    assert {name: clip[name] for name in ("media", "seconds", "fps", "frames")} == {
        "media": "video",
        "seconds": 2.0,
        "fps": 10.0,
        "frames": [0.0, 1.0, 1.9],
    }
    assert "media" not in picture
    usual = "Please describe this image in detail."
    assert [each["prompt"] for each in (clip, picture, animation)] == ["Describe these 2 seconds.", usual, usual]
    assert (animation["fps"], animation["frames"]) == (5.0, [0.0, 0.4, 1.0])
    assert "d.mkv: is damaged" in damaged["error"]
    assert clip["image_tokens"] == 3 * picture["image_tokens"]
    assert (folder / "a.txt").read_text().strip() == clip["text"]
    before = output.read_bytes()
    assert sira(*run)[0] == 3
    assert output.read_bytes() == before
    assert sira("caption", folder / "b.png", *run[2:])[0] == 0  # the picture alone: nothing is left
    assert output.read_bytes() == before
    changed = [2 if each == FAST[-1] else each for each in run]  # another number of frames is other work
    code, _, err = sira(*changed)
    assert (code, "clip" in err or "frames" in err or "settings" in err) == (2, True)


def test_a_clip_is_captioned_as_its_frames_together(sira, folder):
    lvlm = load("demo", max_new_tokens=12, frames=2)
    clip = lvlm.caption(folder / "a.mp4")
    frames = as_picture(folder / "a.mp4").open(Sampling(frames=2)).stills
    together = lvlm.caption(list(frames))
    assert (clip.text, clip.image_tokens) == (together.text, together.image_tokens)
    assert lvlm.ask([folder / "a.mp4", EXAMPLES[0]], "Is there a cat?").image_tokens == 3 * 64


def test_parts_of_a_clip_are_captioned_as_alone(sira, folder, tmp_path):
    output = tmp_path / "captions.jsonl"
    run = ("caption", folder / "a.mp4", folder / "b.png", *FAST, "--every", "0.8s", "--start", "0.1")
    assert sira(*run, "-o", output)[0] == 0
    records = records_of(output)
    parts = {"clips/a.mp4#t=0.1,0.9": (0.1, 0.9), "clips/a.mp4#t=0.9,2": (0.9, 2.0)}  # no third one of 0.3 s
    assert set(records) == {*parts, "clips/b.png"}
    for name, (start, end) in parts.items():
        record = records[name]
        assert (record["clip_start"], record["clip_end"]) == (start, end)
        frames = [(5 * round(10 * time)) for time in record["frames"]]  # 20 + 5 * number is the grey of a frame
        shown = recorded(name, tmp_path).open(Sampling(frames=3)).stills
        assert [round(still.getpixel((90, 60))[0], -1) for still in shown] == [round(20 + each, -1) for each in frames]
    alone = load("demo", max_new_tokens=4, frames=3, start=0.9).caption(folder / "a.mp4")
    assert (record["text"], record["prompt_tokens"]) == (alone.text, alone.prompt_tokens)
    before = output.read_bytes()
    assert sira(*run, "-o", output)[0] == 0
    assert output.read_bytes() == before
    code, _, err = sira(*run, "--sidecar")
    assert (code, "a.mp4#t=0.1,0.9: texts about parts of a clip are records" in err) == (2, True)
    assert sira(*run, "--together")[0] == 2
    assert sira("caption", folder, *FAST, "--every", "0s")[0] == 2


def test_asking_and_tracing_and_checking(sira, folder, tmp_path):
    question = ("ask", folder / "a.mp4", "Is there a cat?")
    assert sira(*question, *FAST, "--set", "clip.frames=2")[0] == 2  # given twice
    code, out, _ = sira(*question, *FAST[:-2], "--json", "--fps", 2, "--start", 1)
    assert (code, json.loads(out)["frames"], json.loads(out)["seconds"]) == (0, [1.0, 1.5], 1.0)
    code, out, _ = sira("trace", folder / "a.mp4", *FAST)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, lines[0]["image_tokens"], lines[-1]["type"]) == (0, 3 * 64, "end")
    (folder / "a.txt").write_text("There is a cat.")
    output = tmp_path / "checks.jsonl"
    assert sira("check", folder / "a.mp4", "-p", "demo", "--frames", 3, "-o", output)[0] == 0
    (record,) = records_of(output).values()
    assert (record["media"], len(record["objects"])) == ("video", 1)


def test_facts_of_clips_in_prompts(sira, folder, tmp_path):
    output = tmp_path / "captions.jsonl"
    prompt = "Describe {frames|one} frames, {fps} a second, in {seconds} s."
    run = ("caption", folder / "a.mp4", folder / "b.png", *FAST, "--start", "0.5", "--prompt", prompt, "-o", output)
    assert sira(*run)[0] == 0
    found = {name: record["prompt"] for name, record in records_of(output).items()}
    assert found == {
        "clips/a.mp4": "Describe 3 frames, 10 a second, in 1.5 s.",
        "clips/b.png": "Describe one frames,  a second, in  s.",
    }
    before = output.read_bytes()
    assert sira(*run)[0] == 0  # another run finds the same prompts
    assert output.read_bytes() == before


def test_clips_in_tables(sira, folder, tmp_path):
    files = [(folder / name).read_bytes() for name in ("a.mp4", "b.png")]
    table = pyarrow.table({"image": files, "what": ["a clip", "a picture"]})
    parquet.write_table(table, tmp_path / "clips.parquet")
    code, out, _ = sira("caption", tmp_path / "clips.parquet", *FAST, "--json", "--prompt", "Describe {what}.")
    clip, picture = map(json.loads, out.splitlines())
    assert (code, clip["media"], clip["prompt"]) == (0, "video", "Describe a clip.")
    assert "media" not in picture
