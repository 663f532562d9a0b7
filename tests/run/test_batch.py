"""Batches: the same records as one picture at a time, in order, whatever goes wrong with some of them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import SettingsError, load
from sira_cli.look.claims import Verify
from sira_cli.models import memory
from sira_cli.pictures.opening import BOUND
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import FileSource, located
from sira_cli.run import runner
from sira_cli.run.events import Halved, Skipped
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import Item, check_batch_size, portions, usual_batch_size
from sira_cli.run.task import Caption
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.runs import key_of, local

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "Is there a cat on the table?"
# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=8)


@pytest.fixture(scope="module")
def brief():
    return load("demo", max_new_tokens=2)


@pytest.fixture
def folder(tmp_path, photos) -> Path:
    """Photographs of four shapes, two of which are not."""
    for number, name in enumerate(("astronaut", "rocket", "tall", "chelsea", "coffee")):
        shutil.copy(photos[name], tmp_path / f"{number}-{name}.jpg")
    (tmp_path / "2-bad.jpg").write_bytes(photos["coffee"].read_bytes()[:2000])
    (tmp_path / "9-text.jpg").write_text("no picture")
    return tmp_path


@pytest.fixture
def scenes(tmp_path) -> Path:
    """Drawn scenes of two sizes in turn: the bundled model says something different about each."""
    for number, path in enumerate(EXAMPLES[:5] * 2):
        image = Image.open(path)
        (image.resize((200, 150)) if number % 2 else image).save(tmp_path / f"{number}.jpg")
    return tmp_path


def named(folder: Path, count: int | None = None) -> list[tuple[Picture, str]]:
    """The pictures of a folder, each with its name in the record."""
    return [(located(str(path)), path.name) for path in sorted(folder.glob("*.jpg"))[:count]]


def records(lvlm, folder: Path, batch_size, prompt="Describe this image.", task="caption", count=None) -> list[dict]:
    pictures = named(folder, count)
    found = of_run(local(lvlm, task, prompt, batch_size=batch_size), pictures)
    assert [record["file_name"] for record in found] == [name for _, name in pictures]
    return found


def of_run(run, pictures) -> list[dict]:
    events = [event for event in run.results(pictures) if not isinstance(event, Halved)]
    return [event.record.to_record() | {"duration_ms": 0} for event in events]


@pytest.mark.parametrize("family", [*REPRESENTATIVES, "LLaVA-NeXT"])  # which cuts pictures up
@pytest.mark.parametrize("method", ["sira", "greedy"])
def test_a_batch_gives_the_records_of_single_runs(family, method, folder, checkpoint_of):
    lvlm, own = load(checkpoint_of(family), method=method, dtype="float32", max_new_tokens=6), ("file_name", "key")
    together = records(lvlm, folder, 4, PROMPT)
    assert [record["status"] for record in together].count("ok") == 5
    for record in together:
        if record["status"] == "ok":
            alone = lvlm.caption(folder / record["file_name"], PROMPT).to_record() | {"duration_ms": 0}
            assert alone | dict.fromkeys(own) == record | dict.fromkeys(own)


def test_pictures_of_similar_size_are_decoded_together(brief, scenes, monkeypatch):
    sizes, prepare = [], brief.prepare

    def note(images, *rest, **more):
        sizes.append([image.size for image in images])
        return prepare(images, *rest, **more)

    monkeypatch.setattr(brief, "prepare", note)
    records(brief, scenes, 5, task="ask")
    assert sorted(sizes) == [[(200, 150)] * 5, [(384, 384)] * 5]


def test_sampling_does_not_depend_on_the_batch(scenes):
    lvlm = load("demo", max_new_tokens=8, temperature=1.0, top_p=0.95, seed=3)
    alone, sizes = records(lvlm, scenes, 1), []
    assert len({record["text"] for record in alone if record["text"]}) > 2
    lvlm.model.register_forward_pre_hook(lambda _, args, asked: sizes.append(len(asked["input_ids"])), with_kwargs=True)
    assert records(lvlm, scenes, 4) == alone
    assert max(sizes) == 4


@pytest.mark.parametrize("asked", [{"words": True}, {"choices": ("A cat", "A table")}, {"verify": Verify()}], ids=str)
def test_what_looks_at_texts_is_the_same_in_a_batch(scenes, asked):
    lvlm, number = load("demo", max_new_tokens=12), r"-?\d+\.\d+(?:e-\d+)?"
    found = [of_run(local(lvlm, batch_size=size, **asked), named(scenes, 4)) for size in (1, 4)]
    [part] = ({"verify": "objects"}.get(name, name) for name in asked)
    assert any(record[part] for record in found[0])
    for one, other in zip(*found, strict=True):
        for name in ("text", "finish_reason", "output_tokens"):
            assert one[name] == other[name]
        assert one.keys() == other.keys()
        here, there = (json.dumps(record[part]) for record in (one, other))
        assert re.sub(number, "", here) == re.sub(number, "", there)
        here, there = ([float(each) for each in re.findall(number, text)] for text in (here, there))
        assert here == pytest.approx(there, abs=1e-3)


@pytest.fixture
def short_of_memory(demo):
    """The sizes of batches that the model was given, of which those above three end with the error; it is made up."""
    tried, error = [], [torch.OutOfMemoryError("CUDA out of memory.")]

    def limit(model, args, asked):
        tried.append(len(asked["input_ids"]))
        if tried[-1] > 3:
            raise error[0]

    handle = demo.model.register_forward_pre_hook(limit, with_kwargs=True)
    yield tried, error
    handle.remove()


@pytest.mark.parametrize("message", ["CUDA out of memory.", "DefaultCPUAllocator: can't allocate memory"])
def test_out_of_memory_halves_the_batch(demo, scenes, short_of_memory, message):
    tried, error = short_of_memory
    error[0] = torch.OutOfMemoryError(message) if "CUDA" in message else RuntimeError(message)
    expected = records(demo, scenes, 3)
    tried.clear()
    events = list(local(demo, batch_size=8).results(named(scenes)))
    assert [rows for rows in tried if rows > 3] == [8, 4]  # it does not run into the wall again
    found = [event.record.to_record() | {"duration_ms": 0} for event in events if not isinstance(event, Halved)]
    assert found == expected
    assert [event for event in events if isinstance(event, Halved)] == [Halved(8, 4), Halved(4, 2)]


def test_a_picture_that_the_model_chokes_on_fails_alone(demo, scenes):
    """The failure is made up: no picture is known that does it."""
    poison = demo.prepare([Image.open(scenes / "3.jpg").convert("RGB")], [PROMPT])["pixel_values"][0]

    def choke(encoder, args, asked):
        if any(torch.equal(row, poison) for row in (*args, *asked.values())[0]):
            raise RuntimeError("kernel on fire\nmore")

    expected = records(demo, scenes, 4)
    handle = demo.model.model.vision_tower.register_forward_pre_hook(choke, with_kwargs=True)
    found = records(demo, scenes, 4)
    handle.remove()
    assert found.pop(3)["error"] == f"{scenes / '3.jpg'}: RuntimeError: kernel on fire"
    assert found == [*expected[:3], *expected[4:]]


def test_a_processor_without_memory_halves_the_batch(brief, scenes, monkeypatch):
    """The shortage is made up: so many pictures are too many for the processor."""
    expected, prepare, most = records(brief, scenes, 3), Lvlm.prepare, 3

    def short(self, images, *args, **kwargs):
        if len(images) > most:
            raise MemoryError("cannot allocate\nmore")
        return prepare(self, images, *args, **kwargs)

    monkeypatch.setattr(Lvlm, "prepare", short)
    assert records(brief, scenes, 8) == expected
    most = 0  # then it is not called damaged
    for record in records(brief, scenes, 3):
        assert record["error"].endswith("memory does not suffice for it, even alone: cannot allocate")


def test_batches_of_large_pictures_are_smaller():
    """16.8 million pixels for each picture that the batch may have, and the reduced size counts."""

    def sizes(sides: list[int], size: int) -> list[list[int]]:
        items = [Item(located("x"), "x", "", pixels=min(side * side, BOUND)) for side in sides]
        return [[math.isqrt(item.pixels) for item in batch.items] for batch in portions(items, size)]

    assert sizes([4000] * 5, 2) == [[4000, 4000], [4000, 4000], [4000]]
    assert sizes([100, 100, 5000, 5000, 5000], 3) == [[100, 100, 5000], [5000, 5000]]
    assert sizes([100, 13_000, 13_000], 4) == [[100], [8192], [8192]]
    assert sizes([8192, 8192, 13_000], 8) == [[8192, 8192], [8192]]
    assert sizes([], 3) == []


def test_large_files_are_read_again_and_have_to_be_the_same(brief, scenes, monkeypatch):
    expected, reads, read = records(brief, scenes, 3), [], FileSource.read
    monkeypatch.setattr("sira_cli.run.runner.KEPT", 100)
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture) or read(picture))
    assert records(brief, scenes, 3) == expected
    assert len(reads) == 2 * len(expected)
    monkeypatch.setattr(FileSource, "read", lambda picture: read(picture) + b"." * len(reads.append(picture) or reads))
    assert all("changed between two readings" in record["error"] for record in records(brief, scenes, 3))


def test_pictures_are_read_a_little_ahead_and_no_further(brief, scenes, monkeypatch):
    done, taken, read = [], [], FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: done.append(picture) or read(picture))

    def endless():
        while True:
            taken.append(1)
            yield located(str(scenes / "0.jpg")), "0.jpg"

    events = local(brief, batch_size=2).results(endless())
    for _ in range(4):
        next(events)
    events.close()
    assert 4 <= len(done) <= len(taken) < 60


def test_what_is_skipped_is_neither_decoded_nor_lost(brief, scenes):
    pictures = named(scenes)
    keys = {
        name: key_of(brief, "ask", name, hashlib.sha256(Path(picture.location).read_bytes()).hexdigest(), PROMPT)
        for picture, name in pictures
    }
    keys |= {"2.jpg": "", "7.jpg": keys["6.jpg"]}
    events = list(local(brief, "ask", PROMPT, batch_size=3, done=keys.__getitem__).results(pictures))
    assert [event.name for event in events] == [name for _, name in pictures]
    assert [event.name for event in events if not isinstance(event, Skipped)] == ["2.jpg", "7.jpg"]
    assert events[2].record.text == brief.ask(scenes / "2.jpg", PROMPT).text


def test_the_next_batch_is_prepared_while_the_model_works(brief, scenes, monkeypatch):
    prepared, answered = [threading.Event() for _ in range(6)], []
    prepare, answer = brief.prepare, brief.answer

    def note(*rest, **more):
        inputs = prepare(*rest, **more)
        next(event for event in prepared if not event.is_set()).set()
        return inputs

    def wait_for_the_next(inputs, on_text=None, **asked):
        answered.append(len(answered) == 4 or prepared[len(answered) + 1].wait(timeout=30))
        return answer(inputs, on_text, **asked)

    monkeypatch.setattr(brief, "prepare", note)
    monkeypatch.setattr(brief, "answer", wait_for_the_next)
    records(brief, scenes, 2, task="ask")
    assert answered == [True] * 5


def test_texts_that_are_shown_as_they_are_decoded_come_in_order(brief, scenes):
    """Whatever the sizes of the pictures are: on a terminal, each text follows its picture's name."""
    pictures, shown = named(scenes, 4), dict[str, str]()
    run = local(brief, batch_size=1, on_text=lambda picture, text: shown.update({picture.location: text}))
    for number, event in enumerate(run.results(pictures), start=1):
        assert event.picture == pictures[number - 1][0]
        assert list(shown) == [picture.location for picture, _ in pictures[:number]]


@pytest.fixture
def free(monkeypatch):
    """Sets the bytes that a batch may take, where a prompt takes 100 and a text 40."""
    monkeypatch.setattr(memory, "measure_picture", lambda *args, **more: memory.PictureMemory(100, 40))
    return lambda size: monkeypatch.setattr(memory, "free_memory", lambda device: size)


@pytest.mark.parametrize("task", ["caption", "ask"])
def test_as_many_as_fit_and_the_records_of_single_pictures(brief, folder, scenes, free, task):
    free(300)
    run = local(brief, task, PROMPT, batch_size="auto")
    assert run.batch_size == 1
    found = of_run(run, named(scenes))
    assert run.facts()["batch_size"] == run.batch_size == 3
    assert found == records(brief, scenes, 1, PROMPT, task)


def test_the_choice_is_that_of_the_memory_that_one_picture_takes(brief, free, monkeypatch, caplog):
    free(1000)
    caption = Caption.of(brief.preset, brief.decoder)
    with caplog.at_level(logging.INFO, "sira_cli"):
        assert caption.largest_batch(brief, None) == 10
    assert "batch size 10: a prompt takes" in caplog.text

    def no_memory(*args, **more):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(memory, "measure_picture", no_memory)
    assert caption.largest_batch(brief, None) == 1


def test_what_is_usual_on_a_device(brief, scenes, free, monkeypatch):
    """No GPU here: the rule is asked about a device by its name, and a run by a stand-in for the rule."""
    assert [usual_batch_size(torch.device(name)) for name in ("cuda", "cuda:1", "cpu", "mps")] == ["auto", "auto", 1, 1]
    free(300)
    monkeypatch.setattr(runner, "usual_batch_size", lambda device: "auto")
    shown = {"on_text": lambda text: None}  # texts on a terminal come while they are decoded
    for given, expected in (({}, 3), ({"batch_size": 2}, 2), (shown, 1), ({"batch_size": "auto", **shown}, 3)):
        run = local(brief, **given)
        of_run(run, named(scenes, 4))
        assert run.batch_size == expected


@pytest.mark.parametrize("wrong", [0, "8", True])
def test_other_batch_sizes_are_refused(wrong):
    with pytest.raises(SettingsError, match=r"`batch_size=` .*: expected a whole number from 1 on, or auto"):
        check_batch_size(wrong)


def test_the_command_takes_it_and_says_the_choice(sira, tmp_path):
    for number in range(3):
        shutil.copy(EXAMPLES[number], tmp_path / f"{number}.png")
    command = ("caption", tmp_path, "-p", "demo", "--max-new-tokens", 4)
    code, _, err = sira(*command, "-b", "auto", "-o", tmp_path / "auto.jsonl", "-v")
    assert (code, "batch size 16: a prompt takes" in err) == (0, True), err
    assert json.loads((tmp_path / "auto.run.json").read_text())["batch_size"] == 16
    code, _, err = sira(*command, "-b", 2, "-o", tmp_path / "auto.jsonl")  # nothing is left to do
    assert (code, "3 of 3 pictures were done before" in err) == (0, True)
