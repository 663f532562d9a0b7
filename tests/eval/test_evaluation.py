"""A benchmark from Python: events, interruption, shards; nothing is printed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from sira_cli.errors import PictureError, SettingsError
from sira_cli.eval.evaluation import Evaluation, PartStarted, methods_of, with_controls
from sira_cli.eval.pope import Pope
from sira_cli.methods import METHODS
from sira_cli.pictures.sources import FileSource
from sira_cli.run.events import Finished, Skipped
from sira_cli.run.ledger import Ledger
from sira_cli.run.lvlm import Lvlm


@pytest.fixture
def evaluation(lvlm, scenes):
    """Makes an evaluation of one split under SIRA and greedy."""

    def make(*, dtype="auto", **options) -> Evaluation:
        questions = Pope([str(scenes / "pope" / "scenes_pope_random.json")])
        options, preset = {"batch_size": 16, **options}, lvlm.preset.with_settings(dtype=dtype)
        return Evaluation(questions, str(scenes / "images"), methods_of(preset, ["sira"]), **options)

    return make


def figures(of: Evaluation) -> dict:
    return json.loads(of.report().to_json())["rows"]


def test_events_come_method_by_method_and_nothing_is_printed(evaluation, lvlm, capsys):
    run = evaluation()
    events = list(run.events(lvlm))
    assert capsys.readouterr() == ("", "")
    begun = [event for event in events if isinstance(event, PartStarted)]
    total = begun[0].total
    assert begun == [PartStarted("greedy", "pope", total), PartStarted("sira", "pope", total)]
    assert run.not_run == {"greedy+apc": "greedy"}
    assert [type(event) for event in events] == 2 * [PartStarted, *total * [Finished]]
    assert {row["method"] for row in figures(run)} == {"greedy", "greedy+apc", "sira"}


@pytest.mark.parametrize("number", [5, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 30))])
def test_who_stops_listening_may_go_on_later(evaluation, lvlm, tmp_path, number):
    whole = evaluation()
    count = len(list(whole.events(lvlm)))
    first = evaluation(output=tmp_path).events(lvlm)
    done = sum(isinstance(next(first), Finished) for _ in range(number))
    first.close()
    rest = evaluation(output=tmp_path)
    events = list(rest.events(lvlm))
    assert len(events) == count
    assert sum(isinstance(event, Skipped) for event in events) == done
    assert figures(rest) == figures(whole)


def test_a_file_in_use_does_not_spoil_the_next_try(evaluation, lvlm, tmp_path):
    run = evaluation(output=tmp_path)
    used, refused = Ledger(tmp_path / "sira-pope.jsonl", by="id"), "another process writes to it"
    with closing(used), pytest.raises(SettingsError, match=refused):
        list(run.events(lvlm))
    assert sum(isinstance(event, Finished) for event in run.events(lvlm)) > 0


def test_a_model_is_loaded_only_where_an_answer_is_missing(evaluation, lvlm, tmp_path, monkeypatch):
    def load() -> Lvlm:
        loaded.append(len(list(tmp_path.iterdir())))
        return lvlm

    loaded: list[int] = []
    whole, again = evaluation(output=tmp_path), evaluation(output=tmp_path)
    list(whole.events(load))
    events = list(again.events(load))
    assert loaded == [2]  # with the files locked
    assert {type(event) for event in events} == {PartStarted, Skipped}
    assert figures(again) == figures(whole)
    with pytest.raises(SettingsError, match="holds records of another configuration"):
        list(evaluation(output=tmp_path, dtype="bfloat16").events(load))
    last = tmp_path / "sira-pope.jsonl"
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setattr(FileSource, "read", lambda picture: pytest.fail("a picture was read"))
    with pytest.raises(ZeroDivisionError):  # what is missing is known without the pictures
        list(evaluation(output=tmp_path).events(lambda: 1 // 0))


def test_methods_share_the_pictures_of_a_part(evaluation):
    with evaluation()._opened() as runs:
        greedy, sira = (one.pictures for one in runs)
    assert greedy is sira


def test_what_cannot_be_followed_is_said_before_anything_is_decoded(evaluation, lvlm, scenes, tmp_path):
    questions = Pope([scenes / "pope" / "scenes_pope_random.json"])
    with pytest.raises(PictureError, match="is `images=` right"):
        Evaluation(questions, Path(__file__).parent, methods_of(lvlm.preset, ["sira"]))
    beams = lvlm.preset.with_settings(num_beams=2)
    with pytest.raises(SettingsError, match="method vcd follows one text per picture"):
        Evaluation(questions, scenes / "images", methods_of(beams, ["vcd"]))
    with pytest.raises(SettingsError, match="no method named 'vdc'"):
        methods_of(lvlm.preset, ["vdc"])


def test_controls_come_first_and_once():
    assert with_controls(["vcd", "greedy", "sira", "vcd"]) == ["greedy", "greedy+apc", "vcd", "sira"]
    assert with_controls(["vcd", "greedy", "sira", "vcd"], controls=False) == ["vcd", "greedy", "sira"]


def test_a_benchmark_takes_all_methods_that_can_run(sira, tmp_path, monkeypatch):
    def refuse(self: object, model: object, config: object) -> None:
        raise SettingsError("it needs a calibration: sira calibrate icd")

    monkeypatch.setattr("sira_cli.methods.icd.Icd.check_model", refuse)
    examples = sorted(Path(__file__).parents[2].glob("examples/*.png"))
    questions = tmp_path / "random.json"
    question = {"question_id": 1, "image": examples[0].name, "text": "Is there a dog in the image?", "label": "no"}
    questions.write_text(json.dumps([question]))
    command = ("eval", "pope", questions, "--images", examples[0].parent, "-p", "demo")
    code, out, err = sira(*command, "--method", "all", "--max-new-tokens", 2, "--json")
    assert code == 0, err
    assert "icd is left out: it needs a calibration: sira calibrate icd" in err
    assert {*json.loads(out)["settings"]} == {*METHODS} - {"icd"}
    code, out, err = sira(*command, "--method", "all", "--set", "num_beams=2", "--max-new-tokens", 2, "--json")
    assert code == 0, err
    assert "vcd is left out: method vcd follows one text per picture" in err
    assert "sid" in json.loads(out)["settings"]
