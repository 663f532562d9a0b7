"""A run from Python: it yields what happens, never prints, goes on where it stopped, and warns in its records."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

import sira_cli.run.engines
from sira_cli import SettingsError, SiraError, load, run_pictures
from sira_cli.look.claims import Verify
from sira_cli.methods import find as find_method
from sira_cli.models.schema import Schema
from sira_cli.models.texts import TextSettings
from sira_cli.pictures.opening import decode_picture
from sira_cli.pictures.picture import Cache
from sira_cli.pictures.sources import as_picture
from sira_cli.run.events import Started
from sira_cli.run.output import Output
from sira_cli.run.task import Ask, Caption
from tests.run.helpers import EXAMPLES, make_folder, without_time
from tests.support.scripted import script, written


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", max_new_tokens=6)


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "pictures", 3)


def kinds(events) -> list[str]:
    return [type(event).__name__ for event in events]


def test_the_file_is_the_commands_to_the_byte(lvlm, folder, sira, capsys):
    events = list(run_pictures(lvlm, folder, output=folder / "python.jsonl", batch_size=2))
    assert capsys.readouterr() == ("", "")
    assert kinds(events) == ["Started", "Finished", "Failed", "Finished", "Finished"]
    assert events[0] == Started(4)
    assert [event.name for event in events[1:]] == ["000.png", "001-bad.png", "001.png", "002.png"]
    assert "is not a picture" in events[2].record.error
    assert all(event.record.text and event.record.file_name == event.name for event in (events[1], *events[3:]))
    command = ("caption", folder, "-p", "demo", "--max-new-tokens", 6, "-b", 2, "-o", folder / "command.jsonl")
    code, out, err = sira(*command)
    assert code == 3
    assert out == ""
    assert "sira: 3 of 4 pictures done in " in err
    assert without_time(folder / "python.jsonl") == without_time(folder / "command.jsonl")
    one, other = (json.loads((folder / f"{name}.run.json").read_text()) for name in ("python", "command"))
    assert (one["settings"], one["pictures"]) == (other["settings"], other["pictures"])


def test_without_files_there_are_events_alone(lvlm, folder):
    events = list(run_pictures(lvlm, str(folder), task="ask", prompt="Is there a dog?", limit=2))
    assert (kinds(events), events[1].record.schema) == (["Started", "Finished", "Failed"], "sira.ask/1")
    assert len(list(folder.parent.rglob("*"))) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "ask"}, "needs a prompt: the question"),
        *(({"task": "tag", "questions": each}, "`task=` 'tag': expected caption or ask") for each in (None, "q.csv")),
        *(({"batch_size": each}, "expected a whole number from 1 on, or auto") for each in (0, "8", True)),
        *(({"choices": each}, "expected two or more different answers") for each in (["Yes"], ["Yes", "No", "Yes"])),
        ({"task": "ask", "prompt": "Is it?", "choices": "Yes,No"}, "'Yes,No': expected a list of answers"),
        ({"questions": "q.csv", "prompt": "Is it?"}, "has a prompt in each row"),
        *(({"limit": each}, "`limit=` .*: expected a whole number from 1 on") for each in (0, -1)),
    ],
)
def test_what_cannot_work_is_said_at_once(lvlm, folder, options, message):
    with pytest.raises(SettingsError, match=message):
        next(run_pictures(lvlm, folder, **options))


@pytest.mark.parametrize("error", [SiraError("made up: the model is gone"), ZeroDivisionError("the model is gone")])
def test_a_file_is_free_again_after_an_error(lvlm, folder, tmp_path, monkeypatch, error):
    file = tmp_path / "captions.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(sira_cli.run.engines.Local, "results", Mock(side_effect=error))
        with pytest.raises(type(error), match="the model is gone"):
            list(run_pictures(lvlm, folder, output=file))
    assert json.loads((tmp_path / "captions.run.json").read_text())["state"] == "failed"
    assert kinds(run_pictures(lvlm, folder, output=file))[-1] == "Finished"


@pytest.mark.parametrize("reading", ["keeps", "has_all"])
def test_an_engine_ends_if_earlier_results_cannot_be_read(lvlm, folder, tmp_path, monkeypatch, reading):
    end = Mock()
    monkeypatch.setattr(sira_cli.run.engines.Local, "end", end)
    monkeypatch.setattr(Output, reading, Mock(side_effect=SiraError("made up: a bad sector")))
    with pytest.raises(SiraError, match="a bad sector"):
        list(run_pictures(lvlm, folder, output=tmp_path / "captions.jsonl"))
    assert end.call_count == 1


def test_a_full_disk_does_not_hide_an_interrupt(lvlm, folder, tmp_path, monkeypatch):
    events = run_pictures(lvlm, folder, output=tmp_path / "captions.jsonl")
    next(events)
    monkeypatch.setattr(Output, "report", Mock(side_effect=SiraError("made up: no space")))
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt)


def test_many_pictures_are_not_one(lvlm, folder):
    for one in ("000.png", folder / "000.png", b"PNG", np.zeros((4, 4, 3), np.uint8)):
        with pytest.raises(SettingsError, match="is one picture: expected several"):
            list(lvlm.caption_many(one))


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_text_is_an_error_that_is_tried_again(lvlm, folder, monkeypatch, text):
    lvlm = lvlm.under(lvlm.decoder, lvlm.preset.model_copy(update={"text": TextSettings(prefix="ohwx, ")}))
    files = {"output": folder / "of.jsonl", "sidecar": True}
    with monkeypatch.context() as patch:
        script(patch, lambda prompt: [*written(lvlm.processor.tokenizer, text), lvlm.ends.ids[0]])
        events = list(run_pictures(lvlm, folder, **files))
    assert kinds(events) == ["Started", *["Failed"] * 4]
    assert events[1].record.text == ""
    assert "the model's text is empty" in events[1].record.error
    assert not list(folder.glob("*.txt"))
    again = list(run_pictures(lvlm, folder, **files, retry_errors=True))
    assert kinds(again) == ["Started", "Finished", "Failed", "Finished", "Finished"]
    assert (folder / "000.txt").read_text() == f"{again[1].record.text}\n" > "ohwx, "


def test_all_that_decides_a_text_is_in_its_key(lvlm):
    preset, usual = lvlm.preset, Caption(lvlm.preset, lvlm.decoder, "p").at("r")
    changed = ({}, {"quantization": "4bit"}, {"temperature": 1.0})
    tasks = [replace(usual, preset=preset.with_settings(**each)) for each in changed]
    tasks += [replace(usual, method=find_method("greedy")), Ask(preset, lvlm.decoder, "p").at("r"), usual.at("r2")]
    tasks += [
        replace(usual, verify=Verify(mode="guide")),
        replace(usual, schema=Schema.of("tags:3")),
        usual.at("r", "s"),
    ]
    keys = [task.key("a", "b", "p") for task in tasks]
    keys += [usual.key(*each) for each in (("c", "b", "p"), ("a", "c", "p"), ("a", "b", "c"))]
    assert len({*keys}) == len(keys)
    assert replace(usual, verify=Verify(), words=True).key("a", "b", "p") == keys[0]  # the text is the same
    assert tasks[1].settings()["quantization"] == "4bit"  # by which a second run is refused


def test_images_in_memory_are_told_apart():
    cache = Cache(8)
    images = [as_picture(Image.new("RGB", (4, 4), color)).known(id=color) for color in ("red", "blue")]
    assert len({image.read_once(cache)[1] for image in images}) == 2


# --- warnings: records hold no such key when nothing is suspicious

FRAMES = "has several frames or pages: the first one was taken"
TRANSPARENT = "is transparent in parts: they were taken as white"


def rgba(alpha: int, *size: int) -> Image.Image:
    return Image.fromarray(np.dstack([np.full((*size, 3), 90, np.uint8), np.full(size, alpha, np.uint8)]))


def frames(count: int) -> tuple[Image.Image, dict]:
    first, *others = (Image.new("RGB", (64, 64), (70 * number, 0, 0)) for number in range(count))
    return first, {"save_all": True, "append_images": others}


@pytest.mark.parametrize(
    ("name", "image", "more", "expected"),
    [
        ("plain.png", Image.new("RGB", (64, 64)), {}, []),
        ("opaque.png", rgba(255, 64, 64), {}, []),
        ("clear.png", rgba(254, 64, 64), {}, [TRANSPARENT]),
        ("still.gif", *frames(1), []),
        ("moving.gif", *frames(3), [FRAMES]),
        ("moving.webp", *frames(3), [FRAMES]),
        ("pages.tiff", *frames(2), [FRAMES]),
        ("phone.mpo", *frames(2), []),
        ("narrow.png", Image.new("RGB", (200, 31)), {}, ["is tiny: 200 x 31 pixels"]),
        ("both.png", rgba(0, 5, 7), {}, [TRANSPARENT, "is tiny: 7 x 5 pixels"]),
    ],
)
def test_what_is_suspicious_about_a_picture(tmp_path, name, image, more, expected):
    image.save(tmp_path / name, **more)
    decoded, found = decode_picture(name, (tmp_path / name).read_bytes())
    assert (decoded.mode, list(found)) == ("RGB", expected)


def test_records_and_the_terminal_warn(sira, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES[0], "a.png")
    rgba(0, 64, 64).save("b.png")
    code, _, err = sira("caption", ".", "-p", "demo", "--max-new-tokens", 4, "-o", "captions.jsonl", "-b", 2)
    records = [json.loads(line) for line in Path("captions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert code == 0, err
    assert f"sira: b.png: {TRANSPARENT}\nsira: 2 of 2 pictures" in err, err
    assert [record.get("warnings") for record in records] == [None, [TRANSPARENT]]
    assert records[0].keys() == records[1].keys() - {"warnings"}


def test_a_text_that_repeats_itself_has_a_warning(lvlm, folder, monkeypatch):
    tokens = written(lvlm.processor.tokenizer, "There There There")
    script(monkeypatch, lambda prompt: [*tokens, lvlm.ends.ids[0]])
    event = list(run_pictures(lvlm, folder / "000.png"))[-1]
    assert event.record.warnings == ["says 'there' again and again"]
