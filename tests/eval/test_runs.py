"""`sira eval pope` on drawn scenes from pictures to figures, and from Python: resuming, shards, failures, files."""

from __future__ import annotations

import functools
import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from sira_cli import methods
from sira_cli.errors import SettingsError
from sira_cli.eval.benchmark import ONE_WORD
from sira_cli.eval.evaluation import Evaluation, methods_of, with_controls
from sira_cli.eval.pope import Pope
from sira_cli.methods import METHODS
from sira_cli.pictures.sources import FileSource
from sira_cli.run.events import Finished, Skipped, StageStarted
from sira_cli.run.ledger import Ledger
from sira_cli.run.lvlm import Lvlm
from tests.support.eval.writing import SPLITS, read, rows, save, values

RANDOM = ("random",)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def whole(pope, loaded, runs) -> dict:
    """The report of a whole run, which is done once."""
    if not (runs / "report.json").exists():
        assert pope("-o", runs)[0] == 0
        loaded.clear()
    return json.loads((runs / "report.json").read_text())


# What is asked, and under which methods.


def test_pope_against_single_questions(pope, scenes, demo, loaded):
    """Every answer again, one at a time through `Lvlm.ask`; what splits share is asked once."""
    found = rows(pope()[1])
    assert list(dict.fromkeys(method for _, method in found)) == ["greedy", "greedy+apc", "sira"]
    assert list(dict.fromkeys(group for group, _ in found)) == [*(f"scenes {split}" for split in SPLITS), "mean"]
    distinct: set[tuple[str, str]] = set()
    for method in ("greedy", "sira"):
        model = demo.under(methods.find(method))
        say = functools.cache(lambda image, text, ask=model.ask: ask(scenes / "images" / image, text + ONE_WORD).text)
        for split in SPLITS:
            asked = read(scenes / "pope" / f"scenes_pope_{split}.json")
            distinct |= {(row["image"], row["text"]) for row in asked}
            pairs = Counter((row["label"], say(row["image"], row["text"])) for row in asked)
            row = found[f"scenes {split}", method]
            cells = {"TP": ("yes", "Yes"), "FN": ("yes", "No"), "FP": ("no", "Yes"), "TN": ("no", "No")}
            assert {name: row["counts"][name] for name in cells} == {name: pairs[pair] for name, pair in cells.items()}
            assert row["answered"] == len(asked)
    assert sum(loaded.values()) == 2 * 2 * len(distinct)  # under two methods, each again by `say`


def test_controls(pope, loaded):
    """They come first and once; without sampling and beams the cut-off is not run."""
    assert with_controls(["vcd", "greedy", "sira", "vcd"]) == ["greedy", "greedy+apc", "vcd", "sira"]
    _, report, _ = pope("--method", "vcd", splits=RANDOM)
    assert list(report["settings"]) == ["greedy", "greedy+apc", "vcd"]
    assert (report["not_run"], loaded["greedy+apc"]) == ({"greedy+apc": "greedy"}, 0)
    assert rows(report)["scenes random", "greedy+apc"]["counts"] == rows(report)["scenes random", "greedy"]["counts"]
    _, report, _ = pope("--against", "sira", splits=RANDOM)
    assert (list(report["settings"]), report["tests"]) == (["sira"], [])
    for beams, options in ((1, ("--temperature", 1, "--seed", 1)), (2, ("--set", "num_beams=2"))):
        loaded.clear()
        report = pope(*options, "--limit", 2, splits=RANDOM)[1]
        assert (report["not_run"], report["settings"]["greedy"]["num_beams"]) == ({}, beams)
        assert loaded["greedy+apc"] == loaded["greedy"] == loaded["sira"] == 2


def test_settings_go_to_the_methods_that_have_them(pope):
    given = ("--method", "sira,vcd", "--alpha", 2, "--top-p", 0.5, "--limit", 2)
    _, report, _ = pope(*given, splits=RANDOM)
    assert [row["alpha"] for row in report["settings"].values()] == [0, 0, 2, 2]
    assert [row["beta"] for row in report["settings"].values()] == [None, None, None, 0.1]  # greedy+apc is not run
    assert {row["top_p"] for row in report["settings"].values()} == {0.5}
    vcd = report["settings"]["vcd"]
    assert vcd["method_settings"] == {"beta": 0.1, "noise_step": 500}
    assert vcd["max_new_tokens"] == {"pope": 128}
    assert vcd["prompt"]["pope"].endswith("?" + ONE_WORD)


def test_a_benchmark_takes_all_methods_that_can_run(sira, tmp_path, monkeypatch):
    def refuse(self: object, model: object, config: object) -> None:
        raise SettingsError("it needs a calibration: sira calibrate icd")

    monkeypatch.setattr("sira_cli.methods.icd.Icd.check_model", refuse)
    picture = sorted(Path(__file__).parents[2].glob("examples/*.png"))[0]
    asked = save(tmp_path / "random.json", [{"image": picture.name, "text": "Is there a dog?", "label": "no"}])
    run = ("eval", "pope", asked, "--images", picture.parent, "-p", "demo", "--json")
    code, out, err = sira(*run, "--method", "all", "--max-new-tokens", 2)
    assert code == 0, err
    assert "icd is left out: it needs a calibration: sira calibrate icd" in err
    assert {*json.loads(out)["settings"]} == {*METHODS} - {"icd"}


# Resuming: a file keeps to its settings and prompts.


def test_a_run_goes_on_where_it_stopped(pope, whole, scenes, loaded, tmp_path):
    assert pope("-o", tmp_path, "--limit", 6)[0] == 0
    first = loaded.total()
    loaded.clear()
    _, report, _ = pope("-o", tmp_path)
    assert values(report) == values(whole)
    records = read(tmp_path / "sira-pope.jsonl")
    assert 0 < loaded["sira"] == len(records) - first // 2
    asked = [row for split in SPLITS for row in read(scenes / "pope" / f"scenes_pope_{split}.json")]
    assert [row["id"] for row in records] == list(dict.fromkeys(f"{row['image']}: {row['text']}" for row in asked))
    assert (records[0]["schema"], records[0]["part"]) == ("sira.ask/1", "pope")
    assert (tmp_path / records[0]["file_name"]).resolve() == (scenes / "images" / asked[0]["image"]).resolve()
    loaded.clear()
    assert json.loads((tmp_path / "report.json").read_text()) == report == pope("-o", tmp_path)[1]
    assert loaded.total() == 0
    code, _, err = pope("-o", tmp_path, "--alpha", 3)
    assert (code, err.splitlines()[-1].count("alpha is 0.5 there and 3.0 now")) == (2, 1)
    assert loaded.total() == 0  # all files are checked before anything is decoded
    assert pope("-o", tmp_path, "--alpha", 3, "--overwrite", "--limit", 1)[0] == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        *((("--set", "beta=0.9"), "beta is "), (("--top-p", 0.5), "top_p is ")),
        (("--option", "suffix="), f"{ONE_WORD}' in the file and '"),
        ((), "quantization is None there and '4bit' now; dtype is 'float32' there and 'bfloat16' now; settings is "),
    ],
)
def test_a_file_keeps_to_its_settings_and_prompts(pope, demo, loaded, tmp_path, monkeypatch, option, said):
    """Nothing is decoded or written before it is known, whatever is left to be asked."""
    run = ("-o", tmp_path, "--against", "sira", "--temperature", 1, "--max-new-tokens", 4, "--limit")
    assert pope(*run, 2, splits=RANDOM)[0] == 0
    kept = (tmp_path / "sira-pope.jsonl").read_bytes()
    loaded.clear()
    if not option:  # a preset of this name that decides otherwise, on another device
        image = demo.preset.image.model_copy(update={"max_pixels": 10_000})
        preset = demo.preset.model_copy(update={"image": image})
        monkeypatch.setattr(Lvlm, "quantization", "4bit")
        monkeypatch.setattr(Lvlm, "dtype", "bfloat16")
        monkeypatch.setattr("sira_cli.models.presets.find", lambda name: preset)
    for limit in (1, 2, 3):  # with fewer, the same and more questions than in the file
        code, _, err = pope(*run, limit, *option, splits=RANDOM)
        assert code == 2, err
        assert said in err, err
        assert "--overwrite" in err, err
    assert ((tmp_path / "sira-pope.jsonl").read_bytes(), loaded.total()) == (kept, 0)


def test_an_interrupted_run_says_what_is_kept(pope, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Lvlm, "answer", interrupted)
    for given, kept in (((), False), (("-o", tmp_path), True)):
        code, report, err = pope("--limit", 1, *given)
        assert code == 130
        assert report == {}
        assert ("finished work is kept: run the same command again to resume" in err) == kept


def test_shards_make_the_whole(pope, whole, tmp_path):
    for part in ("1/2", "2/2"):
        code, report, err = pope("-o", tmp_path, "--shard", part)
        assert code == 0
        assert report == {}
        assert f"--answers {tmp_path}" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{method}-pope.{part}-of-2.jsonl" for method in ("greedy", "sira") for part in (1, 2)
    ]
    code, report, _ = pope("--answers", tmp_path)
    run = {key: value for key, value in values(whole).items() if key[1] != "greedy+apc"}
    assert (code, values(report)) == (0, run)
    _, report, _ = pope("--answers", tmp_path, "--against", "sira")
    assert list(report["settings"]) == ["sira", "greedy"]
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace('"preset": "demo"', '"preset": "llava-1.5-7b"'))
    assert pope("--answers", tmp_path, "--paper")[1]["paper"] == "llava-1.5-7b"  # the model of the records
    code, _, err = pope("--answers", *tmp_path.glob("*.1-of-2.jsonl"))
    assert (code, err.count("is it finished, and are all shards given?")) == (2, 1)


def test_pictures_that_fail_are_counted_and_left_out(pope, scenes, tmp_path):
    images = tmp_path / "images"
    one, two, three, four = sorted((scenes / "images").iterdir())
    images.mkdir()
    for path in (one, four):
        (images / path.name).write_bytes(path.read_bytes())
    (images / two.name).write_bytes(b"no picture")
    code, report, err = pope("-o", tmp_path / "out", images=images)
    assert code == 3
    assert err.count(f"{images / three.name}: no such file") == 2  # once a method
    assert "2 pictures failed; their questions are left out of all figures" in err
    failed = sorted((row["method"], row["picture"]) for row in report["failures"])
    assert failed == sorted((method, path.name) for method in report["settings"] for path in (two, three))
    asked = read(scenes / "pope" / "scenes_pope_random.json")
    here = sum(row["image"] in (one.name, four.name) for row in asked)
    row = rows(report)["scenes random", "sira"]
    assert (row["answered"], row["failed"]) == (here, len(asked) - here)
    assert sum(row["counts"][cell] for cell in ("TP", "FP", "TN", "FN")) == here
    code, scored, _ = pope("--answers", tmp_path / "out")
    assert (code, rows(scored)["scenes random", "sira"]) == (3, row)
    for more, tried in (((), 0), (("--retry-errors",), 2)):
        err = pope("-o", tmp_path / "out", *more, images=images)[2]
        assert err.count(f"{three.name}: no such file") == tried
    for more, code in ((("--limit", 1), 0), ((), 3)):
        shard = pope("-o", tmp_path / "shard", "--shard", "1/1", *more, images=images, splits=RANDOM)
        assert shard[:2] == (code, {})
    for path in (two, three):
        (images / path.name).write_bytes(path.read_bytes())
    code, report, _ = pope("-o", tmp_path / "out", images=images)
    assert code == 0
    assert report["failures"] == []
    assert rows(report)["scenes random", "sira"]["failed"] == 0


# From Python: nothing is printed, and a model is loaded only where an answer is missing.


def test_who_stops_listening_goes_on_later(demo, scenes, tmp_path, monkeypatch, capsys):
    def load() -> Lvlm:
        loaded.append(len(list(tmp_path.iterdir())))
        return demo

    def evaluation() -> Evaluation:
        questions = Pope([scenes / "pope" / "scenes_pope_random.json"])
        chosen = methods_of(demo.preset, ["sira"])
        return Evaluation(questions, scenes / "images", chosen, output=tmp_path, batch_size=16)

    loaded: list[int] = []
    first = evaluation().events(load)
    done = sum(isinstance(next(first), Finished) for _ in range(5))
    first.close()
    whole = evaluation()
    events = list(whole.events(load))
    assert [event for event in events if isinstance(event, StageStarted)] == [
        StageStarted(f"{method} pope", events[0].total) for method in ("greedy", "sira")
    ]
    assert [type(event) for event in events].count(Skipped) == done == 4
    assert (loaded, capsys.readouterr()) == ([2, 2], ("", ""))  # with the files locked
    again = evaluation()
    assert {type(event) for event in again.events(load)} == {StageStarted, Skipped}
    assert (again.report().rows, len(loaded)) == (whole.report().rows, 2)
    last = tmp_path / "sira-pope.jsonl"
    used, refused = Ledger(last, by="id"), "another process writes to it"
    with closing(used), pytest.raises(SettingsError, match=refused):
        list(evaluation().events(load))
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setattr(FileSource, "read", lambda picture: pytest.fail("a picture was read"))
    with pytest.raises(ZeroDivisionError):  # what is missing is known without the pictures
        list(evaluation().events(lambda: 1 // 0))
