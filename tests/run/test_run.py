"""A run from Python: it yields what happens, never prints, and goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from sira_cli import SettingsError, SiraError, load, run_pictures
from sira_cli.models.texts import TextSettings
from sira_cli.pictures.picture import Cache
from sira_cli.pictures.sources import as_picture
from sira_cli.run.events import Started
from sira_cli.run.runner import read_once
from tests.support.scripted import script, written

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))[:3]


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", max_new_tokens=6)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three drawn scenes, and one file that is no picture, in the second place."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, path in enumerate(EXAMPLES):
        shutil.copy(path, folder / f"{number}.png")
    (folder / "0-bad.png").write_text("no picture")
    return folder


def kinds(events) -> list[str]:
    return [type(event).__name__ for event in events]


def without_time(path: Path) -> list[dict]:
    return [json.loads(line) | {"duration_ms": 0} for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_file_is_the_commands_to_the_byte(lvlm, folder, sira, capsys):
    events = list(run_pictures(lvlm, folder, output=folder / "python.jsonl", batch_size=2))
    assert capsys.readouterr() == ("", "")
    assert kinds(events) == ["Started", "Failed", "Finished", "Finished", "Finished"]
    assert events[0] == Started(4)
    assert [event.name for event in events[1:]] == ["0-bad.png", "0.png", "1.png", "2.png"]
    assert "is not a picture" in events[1].record.error
    assert all(event.record.text and event.record.file_name == event.name for event in events[2:])
    command = ("caption", folder, "-p", "demo", "--max-new-tokens", 6, "-b", 2, "-o", folder / "command.jsonl")
    assert sira(*command)[0] == 3
    assert without_time(folder / "python.jsonl") == without_time(folder / "command.jsonl")
    one, other = (json.loads((folder / f"{name}.run.json").read_text()) for name in ("python", "command"))
    assert (one["settings"], one["pictures"]) == (other["settings"], other["pictures"])


def test_without_files_there_are_events_alone(lvlm, folder):
    before = sorted(folder.parent.rglob("*"))
    events = list(run_pictures(lvlm, str(folder), task="ask", prompt="Is there a dog?", limit=2))
    assert kinds(events) == ["Started", "Failed", "Finished"]
    assert events[2].record.schema == "sira.ask/1"
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "ask"}, "needs a prompt: the question"),
        ({"choices": ["Yes"]}, "expected two or more different answers"),
        ({"choices": ["Yes", "No", "Yes"]}, "expected two or more different answers"),
    ],
)
def test_what_cannot_work_is_said_at_once(lvlm, folder, options, message):
    with pytest.raises(SettingsError, match=message):
        next(run_pictures(lvlm, folder, **options))


def test_a_file_is_free_again_after_an_error(lvlm, folder, tmp_path, monkeypatch):
    def broken(*args, **options):
        raise SiraError("made up: the model is gone")

    file = tmp_path / "captions.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(lvlm, "answer", broken)
        with pytest.raises(SiraError, match="the model is gone"):
            list(run_pictures(lvlm, folder, output=file))
    assert json.loads((tmp_path / "captions.run.json").read_text())["state"] == "failed"
    assert kinds(run_pictures(lvlm, folder, output=file))[-1] == "Finished"


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_text_is_an_error_that_is_tried_again(lvlm, folder, monkeypatch, text):
    (folder / "0-bad.png").unlink()
    lvlm = lvlm.under(lvlm.decoder, lvlm.preset.model_copy(update={"text": TextSettings(prefix="ohwx, ")}))
    files = {"output": folder / "of.jsonl", "sidecar": True}
    with monkeypatch.context() as patch:
        script(patch, lambda prompt: [*written(lvlm.processor.tokenizer, text), lvlm.ends.ids[0]])
        events = list(run_pictures(lvlm, folder, **files))
    assert kinds(events) == ["Started", *["Failed"] * 3]
    assert (events[1].record.text, "the model's text is empty" in events[1].record.error) == ("", True)
    assert not list(folder.glob("*.txt"))
    again = list(run_pictures(lvlm, folder, **files, retry_errors=True))
    assert kinds(again) == ["Started", *["Finished"] * 3]
    assert (folder / "0.txt").read_text() == f"{again[1].record.text}\n" > "ohwx, "


def test_a_text_that_repeats_itself_has_a_warning(lvlm, folder, monkeypatch):
    tokens = written(lvlm.processor.tokenizer, "There There There")
    script(monkeypatch, lambda prompt: [*tokens, lvlm.ends.ids[0]])
    event = list(run_pictures(lvlm, folder / "0.png"))[-1]
    assert event.record.warnings == ["says 'there' again and again"]


def test_images_in_memory_are_told_apart():
    cache = Cache(8)
    images = [as_picture(Image.new("RGB", (4, 4), color)).known(id=color) for color in ("red", "blue")]
    assert len({read_once(image, cache)[1] for image in images}) == 2
