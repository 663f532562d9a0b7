"""Batches: the same records as one picture at a time, in order, whatever goes wrong with some of them."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load, run_pictures
from sira_cli.models import memory
from sira_cli.pictures.opening import BOUND
from sira_cli.pictures.sources import FileSource, located
from sira_cli.run import runner
from sira_cli.run.events import Halved
from sira_cli.run.items import Item
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import portions, usual_batch_size
from tests.run.helpers import EXAMPLES, report_of
from tests.support.checkpoints import REPRESENTATIVES

PROMPT = "Is there a cat on the table?"
# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(scope="module")
def brief():
    return load("demo", max_new_tokens=2)


@pytest.fixture
def folder(tmp_path, photos) -> Path:
    """Photographs of four shapes, and two files that are none."""
    for name in ("astronaut", "rocket", "tall", "chelsea", "coffee"):
        shutil.copy(photos[name], tmp_path)
    (tmp_path / "bad.jpg").write_bytes(photos["coffee"].read_bytes()[:2000])
    (tmp_path / "rocket.jpg.png").write_text("no picture")
    return tmp_path


@pytest.fixture
def scenes(tmp_path) -> Path:
    """Drawn scenes of two sizes in turn: the bundled model says something different about each."""
    (folder := tmp_path / "scenes").mkdir()
    for number, path in enumerate(EXAMPLES[:5] * 2):
        image = Image.open(path)
        (image.resize((200, 150)) if number % 2 else image).save(folder / f"{number}.jpg")
    return folder


def records(lvlm, place: Path, batch_size, **asked) -> list[dict]:
    events = list(run_pictures(lvlm, place, batch_size=batch_size, **asked))
    return [event.record.to_record() | {"duration_ms": 0} for event in events if hasattr(event, "record")]


@pytest.mark.parametrize("family", [*REPRESENTATIVES, "LLaVA-NeXT"])  # which cuts pictures up
@pytest.mark.parametrize("method", ["sira", "greedy"])
def test_a_batch_gives_the_records_of_single_runs(family, method, folder, checkpoint_of):
    lvlm, own = load(checkpoint_of(family), method=method, dtype="float32", max_new_tokens=6), ("file_name", "key")
    together = records(lvlm, folder, 4, prompt=PROMPT)
    assert [record["file_name"] for record in together] == sorted(map(str, folder.iterdir()))
    assert [record["status"] for record in together].count("ok") == 5
    for record in together:
        if record["status"] == "ok":
            alone = lvlm.caption(record["file_name"], PROMPT).to_record() | {"duration_ms": 0}
            assert alone | dict.fromkeys(own) == record | dict.fromkeys(own)


def test_sampling_does_not_depend_on_the_batch(scenes):
    lvlm = load("demo", max_new_tokens=8, temperature=1.0, top_p=0.95, seed=3)
    alone, sizes = records(lvlm, scenes, 1), []
    assert len({record["text"] for record in alone if record["text"]}) > 2
    lvlm.model.register_forward_pre_hook(lambda _, args, asked: sizes.append(len(asked["input_ids"])), with_kwargs=True)
    assert records(lvlm, scenes, 4) == alone
    assert max(sizes) == 4


@pytest.mark.parametrize("asked", [{"words": True}, {"choices": ("A cat", "A table")}, {"verify": "flag"}], ids=str)
def test_what_looks_at_texts_is_the_same_in_a_batch(scenes, asked):
    lvlm, number = load("demo", max_new_tokens=12), r"-?\d+\.\d+(?:e-\d+)?"
    alone, together = ([json.dumps(each) for each in records(lvlm, scenes, size, **asked)] for size in (1, 4))
    assert any(json.loads(record)["objects" if "verify" in asked else next(iter(asked))] for record in alone)
    for one, other in zip(alone, together, strict=True):
        assert re.sub(number, "", one) == re.sub(number, "", other)
        here, there = ([float(each) for each in re.findall(number, text)] for text in (one, other))
        assert here == pytest.approx(there, abs=1e-3)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("answer", torch.OutOfMemoryError("CUDA out of memory.")),
        ("answer", RuntimeError("DefaultCPUAllocator: can't allocate memory")),
        ("prepare", MemoryError("cannot allocate\nmore")),  # the processor
    ],
)
def test_out_of_memory_halves_the_batch(brief, scenes, monkeypatch, step, error):
    """The shortage is made up: so many pictures are too many."""
    expected, real, tried, most = records(brief, scenes, 3), getattr(Lvlm, step), list[int](), 3

    def short(self, given, *args, **more):
        tried.append(len(given if step == "prepare" else given["input_ids"]))
        if tried[-1] > most:
            raise error
        return real(self, given, *args, **more)

    monkeypatch.setattr(Lvlm, step, short)
    assert records(brief, scenes, 8) == expected
    # It does not run into the wall again, but pictures may have been prepared ahead.
    assert [rows for rows in tried if rows > most] == [8, 4] or (step == "prepare" and tried.count(8) == 1)
    halved = [event for event in run_pictures(brief, scenes, batch_size=16) if isinstance(event, Halved)]
    assert halved == [Halved(10, 5), Halved(5, 2)]  # of the pictures that there were
    most = 0  # then it is not called damaged
    for record in records(brief, scenes, 3):
        assert "memory does not suffice for it, even alone: " in record["error"]


def test_a_picture_that_the_model_chokes_on_fails_alone(brief, scenes, monkeypatch):
    """The failure is made up: no picture is known that does it."""
    poison = brief.prepare([Image.open(scenes / "3.jpg").convert("RGB")], [PROMPT])["pixel_values"][0]

    def choke(encoder, args, asked):
        if any(torch.equal(row, poison) for row in (*args, *asked.values())[0]):
            raise RuntimeError("kernel on fire\nmore")

    expected = records(brief, scenes, 4)
    monkeypatch.setattr(runner, "Halved", None)  # later batches are as large as before
    handle = brief.model.model.vision_tower.register_forward_pre_hook(choke, with_kwargs=True)
    found = records(brief, scenes, 4)
    handle.remove()
    assert found.pop(3)["error"] == f"{scenes / '3.jpg'}: RuntimeError: kernel on fire"
    assert found == [*expected[:3], *expected[4:]]


@pytest.mark.parametrize(
    ("sides", "size", "batches"),
    [
        ([4000] * 5, 2, [[4000, 4000], [4000, 4000], [4000]]),
        ([100, 100, 5000, 5000, 5000], 3, [[100, 100, 5000], [5000, 5000]]),
        ([100, 13_000, 13_000], 4, [[100], [8192], [8192]]),
        *(([8192, 8192, 13_000], 8, [[8192, 8192], [8192]]), ([], 3, [])),
    ],
)
def test_batches_of_large_pictures_are_smaller(sides, size, batches):
    """16.8 million pixels for each picture that the batch may have, and the reduced size counts."""
    items = [Item(located("x"), "x", "", pixels=min(side * side, BOUND)) for side in sides]
    assert [[math.isqrt(item.pixels) for item in batch.items] for batch in portions(items, size)] == batches


def test_large_files_are_read_again_and_have_to_be_the_same(brief, scenes, monkeypatch):
    expected, reads, read = records(brief, scenes, 3), [], FileSource.read
    monkeypatch.setattr("sira_cli.run.runner.KEPT", 100)
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture) or read(picture))
    assert records(brief, scenes, 3) == expected
    assert len(reads) == 2 * len(expected)
    monkeypatch.setattr(FileSource, "read", lambda picture: read(picture) + b"." * len(reads.append(picture) or reads))
    assert all("changed between two readings" in record["error"] for record in records(brief, scenes, 3))


def test_pictures_are_read_a_little_ahead_and_no_further(brief, tmp_path, monkeypatch):
    for number in range(80):
        (tmp_path / f"{number:02}.png").symlink_to(EXAMPLES[0])
    done, read = [], FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: done.append(picture) or read(picture))
    events = run_pictures(brief, tmp_path, batch_size=2)
    for _ in range(5):
        next(events)
    events.close()
    assert 4 <= len(done) < 60


def test_texts_that_are_shown_as_they_are_decoded_come_in_order(brief, scenes):
    """Whatever the sizes of the pictures are: on a terminal, each text follows its picture's name."""
    shown, expected = [], sorted(map(str, scenes.iterdir()))[:4]
    events = run_pictures(brief, scenes, limit=4, on_text=lambda picture, text: shown.append(picture.location))
    for number, event in enumerate(events):  # the first tells the beginning
        assert list(dict.fromkeys(shown)) == expected[:number]
        assert number == 0 or event.picture.location == expected[number - 1]


@pytest.fixture
def free(monkeypatch):
    """Sets the bytes that a batch may take, where a prompt takes 100 and a text 40."""
    monkeypatch.setattr(memory, "measure_picture", lambda *args, **more: memory.PictureMemory(100, 40))
    return lambda size: monkeypatch.setattr(memory, "free_memory", lambda device: size)


@pytest.mark.parametrize("task", ["caption", "ask"])
def test_as_many_as_fit_and_the_records_of_single_pictures(brief, scenes, free, task):
    expected = records(brief, scenes, 1, task=task, prompt=PROMPT, output=scenes / "one.jsonl")
    free(300)
    assert records(brief, scenes, "auto", task=task, prompt=PROMPT, output=scenes / "auto.jsonl") == expected
    assert [report_of(scenes, name)["batch_size"] for name in ("one", "auto")] == [1, 3]


def test_what_is_usual_on_a_device(brief, scenes, free, monkeypatch):
    """No GPU here: the rule is asked about a device by its name, and a run by a stand-in for the rule."""
    assert [usual_batch_size(torch.device(name)) for name in ("cuda", "cuda:1", "cpu", "mps")] == ["auto", "auto", 1, 1]
    free(300)
    monkeypatch.setattr(runner, "usual_batch_size", lambda device: "auto")
    shown = {"on_text": lambda picture, text: None}  # texts on a terminal come while they are decoded
    for size, more, expected in ((None, {}, 3), (2, {}, 2), (None, shown, 1), ("auto", shown, 3)):
        records(brief, scenes, size, **more, output=scenes / "of.jsonl", overwrite=True)
        assert report_of(scenes, "of")["batch_size"] == expected


def test_the_command_takes_it_and_says_the_choice(sira, tmp_path):
    command = ("caption", *EXAMPLES[:3], "-p", "demo", "--max-new-tokens", 4, "-o", tmp_path / "auto.jsonl")
    code, _, err = sira(*command, "-b", "auto", "-v")
    assert code == 0
    assert "batch size 16: a prompt takes" in err
    assert report_of(tmp_path, "auto")["batch_size"] == 16
