"""Batches: the same records as one picture at a time, in order, whatever goes wrong with some of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.look.verify import Verify
from sira_cli.pictures.opening import BOUND
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import FileSource, located
from sira_cli.run.batch import Item
from sira_cli.run.events import Halved, Skipped
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import _portions
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.runs import key_of, local

PROMPT = "Is there a cat on the table?"
# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture
def folder(tmp_path, photos) -> Path:
    """Photographs of four shapes, two of which are not."""
    for number, name in enumerate(("astronaut", "rocket", "tall", "chelsea", "coffee")):
        shutil.copy(photos[name], tmp_path / f"{number}-{name}.jpg")
    (tmp_path / "2-bad.jpg").write_bytes(photos["coffee"].read_bytes()[:2000])
    (tmp_path / "9-text.jpg").write_text("no picture")
    return tmp_path


def records(
    lvlm, folder: Path, batch_size: int, prompt: str = "Describe this image.", task: str = "caption"
) -> list[dict]:
    pictures = named(folder)
    events = local(lvlm, task, prompt, batch_size=batch_size).results(pictures)
    found = [event.record.to_record() for event in events if not isinstance(event, Halved)]
    assert [record["file_name"] for record in found] == [name for _, name in pictures]
    return found


def named(folder: Path) -> list[tuple[Picture, str]]:
    """The pictures of a folder, each with its name in the record."""
    return [(located(str(path)), path.name) for path in sorted(folder.glob("*.jpg"))]


def hash_of_file(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def without_time(records: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name != "duration_ms"} for record in records]


@pytest.mark.parametrize("family", [*REPRESENTATIVES, "LLaVA-NeXT"])  # which cuts pictures up
@pytest.mark.parametrize("method", ["sira", "greedy"])
def test_a_batch_gives_the_records_of_single_runs(family, method, folder, checkpoint_of):
    lvlm = load(checkpoint_of(family), method=method, dtype="float32", max_new_tokens=6)
    together = records(lvlm, folder, 4, PROMPT)
    for record in together:
        if record["status"] == "ok":
            alone = lvlm.caption(folder / record["file_name"], PROMPT).to_record()
            assert {**alone, "file_name": "", "key": "", "duration_ms": 0} == {
                **record,
                "file_name": "",
                "key": "",
                "duration_ms": 0,
            }
    assert [record["status"] for record in together].count("error") == 2


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=12)


@pytest.fixture
def scenes(tmp_path) -> Path:
    """Drawn scenes of two sizes in turn: the bundled model says something different about each."""
    for number, path in enumerate(sorted(Path("examples").glob("*.png"))[:5] * 2):
        image = Image.open(path)
        if number % 2:
            image = image.resize((200, 150))
        image.save(tmp_path / f"{number}.jpg")
    return tmp_path


def test_pictures_of_similar_size_are_decoded_together(demo, scenes, monkeypatch):
    sizes = []
    prepare = demo.prepare

    def note(images, *rest, **more):
        sizes.append([image.size for image in images])
        return prepare(images, *rest, **more)

    monkeypatch.setattr(demo, "prepare", note)
    records(demo, scenes, batch_size=5, task="ask")
    assert sorted(sizes) == [[(200, 150)] * 5, [(384, 384)] * 5]


@pytest.mark.parametrize(
    "method", ["sira", *(pytest.param(each, marks=pytest.mark.slow) for each in ("greedy", "vcd", "sid"))]
)
def test_sampling_does_not_depend_on_the_batch(scenes, method):
    lvlm = load("demo", method=method, max_new_tokens=8, temperature=1.0, top_p=0.95, seed=3)
    alone = records(lvlm, scenes, batch_size=1)
    assert len({record["text"] for record in alone if record["text"]}) > 2
    sizes = []
    lvlm.model.register_forward_pre_hook(
        lambda model, args, asked: sizes.append(len(asked["input_ids"])), with_kwargs=True
    )
    assert without_time(records(lvlm, scenes, batch_size=4)) == without_time(alone)
    assert max(sizes) == 4


def test_settings_of_decoding_hold_in_every_row(scenes):
    settings = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    for number in range(4, 10):
        (scenes / f"{number}.jpg").unlink()
    lvlm, plain = load("demo", max_new_tokens=24, **settings), load("demo", max_new_tokens=24)
    alone = records(lvlm, scenes, batch_size=1)
    assert without_time(records(lvlm, scenes, batch_size=2)) == without_time(alone)
    without = records(plain, scenes, batch_size=4)
    assert [record["text"] for record in alone] != [record["text"] for record in without]


@pytest.mark.parametrize("asked", [{"words": True}, {"choices": ("A cat", "A table")}, {"verify": Verify()}], ids=str)
def test_what_looks_at_texts_is_the_same_in_a_batch(scenes, asked):
    lvlm, found = load("demo", max_new_tokens=12), []
    for batch_size in (1, 4):
        run = local(lvlm, batch_size=batch_size, **asked)
        found.append([event.record.to_record() for event in run.results(named(scenes)[:4])])
    [part] = ({"verify": "objects"}.get(name, name) for name in asked)
    assert any(record[part] for record in found[0])
    for one, other in zip(*map(without_time, found), strict=True):
        for name in ("text", "finish_reason", "output_tokens"):
            assert one[name] == other[name]
        assert one.keys() == other.keys()
        (rest, numbers), (same, near) = (split(json.dumps(record[part])) for record in (one, other))
        assert (rest, numbers) == (same, pytest.approx(near, abs=1e-3))


def split(text: str) -> tuple[str, list[float]]:
    """Return a text without its fractions, and these."""
    number = r"-?\d+\.\d+(?:e-\d+)?"
    return re.sub(number, "", text), [float(each) for each in re.findall(number, text)]


def test_beams_in_a_batch(scenes):
    lvlm = load("demo", max_new_tokens=8, num_beams=3)
    assert without_time(records(lvlm, scenes, batch_size=4)) == without_time(records(lvlm, scenes, batch_size=1))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["GPU", "CPU"],
)
def test_out_of_memory_halves_the_batch(demo, scenes, error):
    """Memory that ends at three pictures is made up: here it would end the machine first."""
    expected = records(demo, scenes, batch_size=3)
    tried = []

    def limit(model, args, asked):
        tried.append(len(asked["input_ids"]))
        if tried[-1] > 3:
            raise error

    handle = demo.model.register_forward_pre_hook(limit, with_kwargs=True)
    try:
        events = list(local(demo, batch_size=8).results(named(scenes)))
    finally:
        handle.remove()
    assert [rows for rows in tried if rows > 3] == [8, 4]  # it does not run into the wall again
    found = [event.record.to_record() for event in events if not isinstance(event, Halved)]
    assert without_time(found) == without_time(expected)
    assert [event for event in events if isinstance(event, Halved)] == [Halved(8, 4), Halved(4, 2)]


def test_a_picture_that_the_model_chokes_on_fails_alone(demo, scenes):
    """The failure is made up: no picture is known that does it."""
    poison = demo.prepare([Image.open(scenes / "3.jpg").convert("RGB")], [PROMPT])["pixel_values"][0]

    def choke(encoder, args, asked):
        if any(torch.equal(row, poison) for row in (*args, *asked.values())[0]):
            raise RuntimeError("kernel on fire\nmore")

    expected = records(demo, scenes, batch_size=4)
    handle = demo.model.model.vision_tower.register_forward_pre_hook(choke, with_kwargs=True)
    try:
        found = records(demo, scenes, batch_size=4)
    finally:
        handle.remove()
    assert found[3]["error"] == f"{scenes / '3.jpg'}: RuntimeError: kernel on fire"
    del found[3], expected[3]
    assert without_time(found) == without_time(expected)


def test_a_picture_that_the_processor_refuses_fails_alone(qwen_folder, folder):
    """Qwen's image processor takes no picture that is more than 200 times as wide as high."""
    Image.new("RGB", (3000, 2)).save(folder / "1-line.jpg")
    lvlm = load(qwen_folder, max_new_tokens=3)
    found = {record["file_name"]: record for record in records(lvlm, folder, batch_size=8)}
    assert "the image processor refused it: absolute aspect ratio" in found["1-line.jpg"]["error"]
    assert [record["status"] for record in found.values()].count("ok") == 5


def test_a_processor_without_memory_halves_the_batch(demo, scenes, monkeypatch):
    """The shortage is made up: more than three pictures are too many for the processor."""
    expected = records(demo, scenes, batch_size=3)
    prepare = Lvlm.prepare

    def short(self, images, *args, **kwargs):
        if len(images) > 3:
            raise MemoryError
        return prepare(self, images, *args, **kwargs)

    monkeypatch.setattr(Lvlm, "prepare", short)
    assert without_time(records(demo, scenes, batch_size=8)) == without_time(expected)


def test_a_picture_for_which_memory_does_not_suffice_is_not_called_damaged(demo, scenes, monkeypatch):
    def short(self, *args, **kwargs):
        raise MemoryError("cannot allocate\nmore")

    monkeypatch.setattr(Lvlm, "prepare", short)
    for record in records(demo, scenes, batch_size=3):
        assert record["error"].endswith("memory does not suffice for it, even alone: cannot allocate")


def test_batches_of_large_pictures_are_smaller():
    """16.8 million pixels for each picture that the batch may have, and the reduced size counts."""

    def sizes(sides: list[int], size: int) -> list[list[int]]:
        items = [Item(located("x"), "x", "", pixels=min(side * side, BOUND)) for side in sides]
        return [[math.isqrt(item.pixels) for item in batch.items] for batch in _portions(items, size)]

    assert sizes([4000] * 5, 2) == [[4000, 4000], [4000, 4000], [4000]]
    assert sizes([100, 100, 5000, 5000, 5000], 3) == [[100, 100, 5000], [5000, 5000]]
    assert sizes([100, 13_000, 13_000], 4) == [[100], [8192], [8192]]
    assert sizes([8192, 8192, 13_000], 8) == [[8192, 8192], [8192]]
    assert sizes([], 3) == []


def test_large_files_are_read_again_and_have_to_be_the_same(demo, scenes, monkeypatch):
    expected = records(demo, scenes, batch_size=3)
    monkeypatch.setattr("sira_cli.run.runner.KEPT", 100)
    reads = []
    read = FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture) or read(picture))
    assert without_time(records(demo, scenes, batch_size=3)) == without_time(expected)
    assert len(reads) == 2 * len(expected)

    monkeypatch.setattr(FileSource, "read", lambda picture: read(picture) + b"." * len(reads.append(picture) or reads))
    for record in records(demo, scenes, batch_size=3):
        assert "changed between two readings" in record["error"]


def test_pictures_are_read_a_little_ahead_and_no_further(demo, scenes, monkeypatch):
    read = []
    read_picture = FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: read.append(picture) or read_picture(picture))
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield located(str(scenes / "0.jpg")), "0.jpg"

    events = local(demo, "ask", PROMPT, batch_size=2).results(endless())
    for _ in range(4):
        next(events)
    events.close()
    assert 4 <= len(read) <= len(taken) < 60


def test_what_is_skipped_is_neither_decoded_nor_lost(demo, scenes):
    pictures = named(scenes)
    keys = {name: key_of(demo, "ask", name, hash_of_file(picture.location), PROMPT) for picture, name in pictures}
    keys |= {"2.jpg": "", "7.jpg": keys["6.jpg"]}
    run = local(demo, "ask", PROMPT, batch_size=3, done=keys.__getitem__)
    events = list(run.results(pictures))
    assert [event.name for event in events] == [name for _, name in pictures]
    assert [event.name for event in events if not isinstance(event, Skipped)] == ["2.jpg", "7.jpg"]
    assert events[2].record.text == demo.ask(scenes / "2.jpg", PROMPT).text


def test_the_next_batch_is_prepared_while_the_model_works(demo, scenes, monkeypatch):
    prepared = [threading.Event() for _ in range(6)]
    answered = []
    prepare, answer = demo.prepare, demo.answer

    def note(*rest, **more):
        inputs = prepare(*rest, **more)
        next(event for event in prepared if not event.is_set()).set()
        return inputs

    def wait_for_the_next(inputs, on_text=None, **asked):
        answered.append(len(answered) == 4 or prepared[len(answered) + 1].wait(timeout=30))
        return answer(inputs, on_text, **asked)

    monkeypatch.setattr(demo, "prepare", note)
    monkeypatch.setattr(demo, "answer", wait_for_the_next)
    records(demo, scenes, batch_size=2, task="ask")
    assert answered == [True] * 5


@dataclasses.dataclass(frozen=True)
class SlowSource(FileSource):
    """A picture that cannot be read before the others have been decoded, as at a URL that hangs."""

    others: threading.Event = dataclasses.field(default_factory=threading.Event)

    def read(self) -> bytes:
        assert self.others.wait(60)
        return super().read()


@pytest.fixture(scope="module")
def brief():
    return load("demo", max_new_tokens=2)


@pytest.mark.parametrize("place", [0, 2])
def test_a_picture_that_is_slow_to_read_does_not_delay_others_that_are_decoded_alone(brief, scenes, monkeypatch, place):
    for path in sorted(scenes.glob("*.jpg"))[5:]:
        path.unlink()
    expected = records(brief, scenes, batch_size=1)
    decoded, others = [], threading.Event()
    answer = brief.answer

    def note(*args, **kwargs):
        answers = answer(*args, **kwargs)
        decoded.append(1)
        if len(decoded) == len(expected) - 1:
            others.set()
        return answers

    monkeypatch.setattr(brief, "answer", note)
    pictures = named(scenes)
    slow, name = pictures[place]
    pictures[place] = (Picture((SlowSource(slow.location, slow.relative, others),)), name)
    events = local(brief, batch_size=1).results(pictures)
    assert without_time([event.record.to_record() for event in events]) == without_time(expected)


def test_texts_that_are_shown_as_they_are_decoded_come_in_order(brief, scenes):
    """Whatever the sizes of the pictures are: on a terminal, each text follows its picture's name."""
    pictures, shown = named(scenes)[:4], dict[str, str]()

    def show(picture: Picture, text: str) -> None:
        shown[picture.location] = text

    run = local(brief, batch_size=1, on_text=show)
    for number, event in enumerate(run.results(pictures), start=1):
        assert event.picture == pictures[number - 1][0]
        assert list(shown) == [picture.location for picture, _ in pictures[:number]]
