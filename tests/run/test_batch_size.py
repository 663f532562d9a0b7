"""`batch_size="auto"`: as many pictures as fit into memory, fewer when it ends, and the records of single pictures."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from sira_cli import SettingsError, load
from sira_cli.analysis import sweep as sweeping
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.analysis.sweep import Grid, SweepReport, sweep
from sira_cli.methods import find
from sira_cli.models import memory
from sira_cli.models.presets import resolve
from sira_cli.pictures.sources import located
from sira_cli.run import on_ray, runner
from sira_cli.run.batch import check_batch_size, usual_batch_size
from sira_cli.run.events import FailedPicture, Halved
from sira_cli.run.on_ray import OnRay
from sira_cli.run.task import Caption
from tests.support.runs import local

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "Describe this image."


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=12)


@pytest.fixture
def pictures(tmp_path):
    """Nine pictures of two sizes; the first is none."""
    for number, path in enumerate(EXAMPLES[:8], start=1):
        image = Image.open(path)
        (image if number % 2 else image.resize((200, 150))).save(tmp_path / f"{number}.png")
    (tmp_path / "0.png").write_text("no picture")
    return [(located(str(path)), path.name) for path in sorted(tmp_path.glob("*.png"))]


def records(run, pictures) -> list[dict]:
    events = [event for event in run.results(pictures) if not isinstance(event, Halved)]
    return [event.record.to_record() | {"duration_ms": 0} for event in events]


@pytest.fixture
def room(monkeypatch):
    """Sets the bytes that a batch may take, where a prompt takes 100 and a text 40."""
    monkeypatch.setattr(memory, "measure_picture", lambda *args, **more: memory.PictureMemory(100, 40))
    return lambda free: monkeypatch.setattr(memory, "free_memory", lambda device: free)


@pytest.mark.parametrize("task", ["caption", "ask"])
def test_as_many_as_fit_and_the_records_of_single_pictures(demo, pictures, room, task):
    room(300)
    run = local(demo, task, PROMPT, batch_size="auto")
    assert run.batch_size == 1
    found = records(run, pictures)
    assert run.facts()["batch_size"] == run.batch_size == 3
    assert found == records(local(demo, task, PROMPT, batch_size=1), pictures)


def test_the_choice_is_that_of_the_memory_that_one_picture_takes(demo, room, monkeypatch, caplog):
    room(1000)
    caption = Caption.of(demo.preset, demo.decoder)
    with caplog.at_level(logging.INFO, "sira_cli"):
        assert caption.largest_batch(demo, None) == 10
    assert "batch size 10: a prompt takes" in caplog.text

    def no_room(*args, **more):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(memory, "measure_picture", no_room)
    assert caption.largest_batch(demo, None) == 1


def test_a_size_that_memory_did_not_suffice_for_stays_lowered(demo, pictures, monkeypatch):
    """Memory that ends at three pictures is made up, and a choice that is wrong."""
    monkeypatch.setattr(Caption, "largest_batch", lambda *args: 8)
    monkeypatch.setattr(runner, "FIRST", 2)
    expected, tried = records(local(demo, "caption", PROMPT), pictures), []

    def limit(model, args, asked):
        tried.append(len(asked["input_ids"]))
        if tried[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    handle = demo.model.register_forward_pre_hook(limit, with_kwargs=True)
    try:
        run = local(demo, "caption", PROMPT, batch_size="auto")
        assert records(run, pictures) == expected
        assert [rows for rows in tried if rows > 3] == [6]  # what the first window left
        assert run.batch_size == 3
        tried.clear()
        assert records(run, pictures) == expected
        assert max(tried) <= 3
    finally:
        handle.remove()


def test_what_is_usual_on_a_device(demo, pictures, room, monkeypatch):
    """No GPU here: the rule is asked about a device by its name, and a run by a stand-in for the rule."""
    assert [usual_batch_size(torch.device(name)) for name in ("cuda", "cuda:1", "cpu", "mps")] == ["auto", "auto", 1, 1]
    room(300)
    monkeypatch.setattr(runner, "usual_batch_size", lambda device: "auto")
    shown = {"on_text": lambda text: None}  # texts on a terminal come while they are decoded
    for given, expected in (({}, 3), ({"batch_size": 2}, 2), (shown, 1), ({"batch_size": "auto", **shown}, 3)):
        run = local(demo, "caption", PROMPT, **given)
        records(run, pictures)
        assert run.batch_size == expected


@pytest.mark.parametrize("wrong", [0, "8"])
def test_other_batch_sizes_are_refused(demo, wrong):
    with pytest.raises(SettingsError, match=r"`batch_size=` .*: expected a whole number from 1 on, or auto"):
        check_batch_size(wrong)
    with pytest.raises(SettingsError, match="`batch_size=`"):
        local(demo, "caption", PROMPT, batch_size=wrong)


def test_the_command_takes_it_and_says_the_choice(sira, tmp_path):
    for number in range(3):
        shutil.copy(EXAMPLES[number], tmp_path / f"{number}.png")
    command = ("caption", tmp_path, "-p", "demo", "--max-new-tokens", 4)
    code, _, err = sira(*command, "-b", "auto", "-o", tmp_path / "auto.jsonl", "-v")
    assert (code, "batch size 16: a prompt takes" in err) == (0, True), err
    assert json.loads((tmp_path / "auto.run.json").read_text())["batch_size"] == 16
    code, _, err = sira(*command, "-b", 2, "-o", tmp_path / "auto.jsonl")  # nothing is left to do
    assert (code, "3 of 3 pictures were done before" in err) == (0, True)


def test_workers_that_share_memory_cannot_find_it(monkeypatch):
    """The cluster is a stand-in: one machine with four CPUs, without GPUs."""
    cluster = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4}}], shutdown=lambda: None)
    monkeypatch.setattr(on_ray, "_connect", lambda workers, quiet: cluster)
    task = Caption.of(resolve("demo"), find("sira"))
    OnRay({"device": "auto"}, "auto", workers=1).begin(task)
    with pytest.raises(SettingsError, match="2 workers without GPUs may share a machine's memory"):
        OnRay({"device": "auto"}, "auto", workers=2).begin(task)


def test_a_sweep_takes_as_many_questions_as_fit(demo, monkeypatch, tmp_path):
    texts = [(path.name, text) for path in EXAMPLES[:2] for text in ("Is there a dog?", "Is there a cat?")]
    questions = QuestionSet(
        ("all",),
        tuple(Question(name, text, True, ("all",)) for name, text in texts),
        lambda name: located(str(Path("examples") / name)),
    )
    sizes, first, grid = [], sweeping.first_tokens, Grid((2, 3), (0.5,))
    monkeypatch.setattr(
        sweeping,
        "first_tokens",
        lambda lvlm, grid, inputs: sizes.append(len(inputs["input_ids"])) or first(lvlm, grid, inputs),
    )
    answers = {}
    for size in ("auto", None, 3):
        sizes.clear()
        units = Units[list[str]]()
        events = sweep(demo, questions, grid, units, batch_size=size)
        assert not [event for event in events if isinstance(event, FailedPicture)]
        answers[size] = SweepReport.of(demo, questions, grid, units).to_json()
        assert sizes == {"auto": [1, 4], None: [1, 1, 1, 1], 3: [3, 1]}[size]
    assert answers["auto"] == answers[None] == answers[3]
    with pytest.raises(SettingsError, match="`batch_size=` 0"):
        list(sweep(demo, questions, grid, Units(), batch_size=0))
