"""`sira eval pope` on drawn scenes from pictures to figures: resuming, shards, failures, files."""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sira_cli import methods
from sira_cli.eval.benchmark import ONE_WORD
from sira_cli.pictures.sources import FileSource
from sira_cli.run.lvlm import Lvlm
from tests.support.eval.helpers import SPLITS, rows, values
from tests.support.eval.writing import lines


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


def test_pope_against_single_questions(pope, scenes, lvlm, loaded):
    """Every answer again, one at a time through `Lvlm.ask`; what splits share is asked once."""
    code, report, _ = pope()
    assert code == 0
    found = rows(report)
    assert list(dict.fromkeys(method for _, method in found)) == ["greedy", "greedy+apc", "sira"]
    assert list(dict.fromkeys(group for group, _ in found)) == [*(f"scenes {split}" for split in SPLITS), "mean"]
    distinct: set[tuple[str, str]] = set()
    for method in ("greedy", "sira"):
        model = lvlm.under(methods.find(method))
        say = functools.cache(lambda image, text, ask=model.ask: ask(scenes / "images" / image, text + ONE_WORD).text)
        for split in SPLITS:
            lines = (scenes / "pope" / f"scenes_pope_{split}.json").read_text().splitlines()
            asked = [json.loads(line) for line in lines]
            distinct |= {(row["image"], row["text"]) for row in asked}
            pairs = Counter((row["label"], say(row["image"], row["text"])) for row in asked)
            row = found[f"scenes {split}", method]
            cells = {"TP": ("yes", "Yes"), "FN": ("yes", "No"), "FP": ("no", "Yes"), "TN": ("no", "No")}
            assert {name: row["counts"][name] for name in cells} == {name: pairs[pair] for name, pair in cells.items()}
            assert row["answered"] == len(asked)
    once = 2 * len(distinct)  # under two methods, each again by `say`
    assert sum(loaded.values()) == 2 * once


def test_pictures_are_read_and_encoded_once_for_questions_that_follow_each_other(pope, scenes, lvlm, monkeypatch):
    reads, encoded, read = [], [], FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda picture: reads.append(picture.location) or read(picture))
    encoder = lvlm.model.get_encoder(modality="image")
    handle = encoder.register_forward_hook(lambda module, args, output: encoded.append(len(output[0])))
    assert pope("--method", "greedy", splits=SPLITS[:1])[0] == 0
    handle.remove()
    lines = (scenes / "pope" / f"scenes_pope_{SPLITS[0]}.json").read_text().splitlines()
    pictures = list(dict.fromkeys(json.loads(line)["image"] for line in lines))
    assert len(lines) > 3 * len(pictures)
    assert sorted(reads) == sorted(str(scenes / "images" / picture) for picture in pictures)
    assert sum(encoded) == len(pictures)


def test_controls(pope, loaded):
    _, report, _ = pope("--method", "vcd", splits=("random",))
    assert list(report["settings"]) == ["greedy", "greedy+apc", "vcd"]
    assert report["not_run"] == {"greedy+apc": "greedy"}
    assert loaded["greedy+apc"] == 0
    assert rows(report)["scenes random", "greedy+apc"]["counts"] == rows(report)["scenes random", "greedy"]["counts"]
    _, report, _ = pope("--method", "sira", "--no-controls", splits=("random",))
    assert list(report["settings"]) == ["sira"]
    assert report["tests"] == []


def test_a_cut_off_is_run_where_it_can_matter(pope, loaded):
    _, report, _ = pope("--method", "sira", "--temperature", 1, "--seed", 1, "--limit", 2, splits=("random",))
    assert report["not_run"] == {}
    assert loaded["greedy+apc"] == loaded["greedy"] == loaded["sira"] == 2


@pytest.mark.parametrize("option", [("--temperature", 1), ("--set", "num_beams=2")])
def test_sampled_answers_and_beams_stand_for_no_other_method(pope, tmp_path, option):
    run = ("-o", tmp_path, "--method", "greedy", "--no-controls", *option, "--limit", 2)
    assert pope(*run, splits=("random",))[0] == 0
    _, report, _ = pope("--answers", tmp_path, "--limit", 2, splits=("random",))
    assert list(report["settings"]) == ["greedy"]


def test_settings_go_to_the_methods_that_have_them(pope, lvlm):
    given = ("--method", "sira,vcd", "--alpha", 2, "--top-p", 0.5)
    code, report, err = pope(*given, "--limit", 2, splits=("random",))
    assert code == 0
    assert err.count("--top-p changes nothing at temperature 0") == 1
    assert [row["alpha"] for row in report["settings"].values()] == [0, 0, 2, 2]
    assert [row["beta"] for row in report["settings"].values()] == [None, None, None, 0.1]  # greedy+apc is not run
    known = {"preset": "demo", "model": "bundled", "revision": lvlm.revision, "dtype": "float32", "quantization": None}
    known |= {"method": "vcd", "k": 0, "layers": 8, "alpha": 2, "beta": 0.1, "temperature": 0, "top_p": 0.5, "seed": 0}
    vcd = report["settings"]["vcd"]
    known |= {"num_beams": 1, "max_new_tokens": {"pope": 128}, "settings": vcd["settings"], "prompt": vcd["prompt"]}
    known |= {"method_settings": {"beta": 0.1, "noise_step": 500}}
    assert vcd == known
    assert vcd["prompt"]["pope"].endswith("?" + ONE_WORD)


@pytest.mark.parametrize("option", [("--set", "beta=0.9"), ("--top-p", 0.5)])
def test_a_file_keeps_to_its_settings(pope, loaded, tmp_path, option):
    run = ("-o", tmp_path, "--no-controls", "--limit", 1, "--temperature", 1)
    assert pope(*run, splits=("random",))[0] == 0
    loaded.clear()
    name = "top_p" if option[0] == "--top-p" else option[1].partition("=")[0]
    code, _, err = pope(*run, *option, splits=("random",))
    assert (code, f"{name} is " in err, loaded.total()) == (2, True, 0)


def test_a_preset_of_the_same_name_is_another(pope, lvlm, tmp_path, monkeypatch):
    """Whatever else of it decides a text."""
    run = ("-o", tmp_path, "--no-controls", "--limit", 1)
    assert pope(*run, splits=("random",))[0] == 0
    preset = lvlm.preset.model_copy(update={"image": lvlm.preset.image.model_copy(update={"max_pixels": 10_000})})
    monkeypatch.setattr("sira_cli.models.presets.find", lambda name: preset)
    code, _, err = pope(*run, splits=("random",))
    assert (code, "settings is " in err) == (2, True)


def test_a_run_goes_on_where_it_stopped(pope, whole, scenes, loaded, tmp_path):
    assert pope("-o", tmp_path / "out", "--limit", 6)[0] == 0
    first = loaded.total()
    loaded.clear()
    _, report, _ = pope("-o", tmp_path / "out")
    assert values(report) == values(whole)
    assert first > 0
    records = [json.loads(line) for line in (tmp_path / "out" / "sira-pope.jsonl").read_text().splitlines()]
    assert loaded["sira"] == len(records) - first // 2
    files = [(scenes / "pope" / f"scenes_pope_{split}.json").read_text().splitlines() for split in SPLITS]
    asked = [json.loads(line) for file in files for line in file]
    assert [row["id"] for row in records] == list(dict.fromkeys(f"{row['image']}: {row['text']}" for row in asked))
    loaded.clear()
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert pope("-o", tmp_path / "out")[1] == report
    assert loaded.total() == 0
    code, _, err = pope("-o", tmp_path / "out", "--alpha", 3)
    assert (code, err.splitlines()[-1].count("alpha is 0.5 there and 3.0 now")) == (2, 1)
    assert pope("-o", tmp_path / "out", "--alpha", 3, "--overwrite", "--limit", 1)[0] == 0


def test_a_file_keeps_to_one_prompt(pope, tmp_path):
    assert pope("-o", tmp_path, "--limit", 2, "--no-controls", splits=("random",))[0] == 0
    kept = (tmp_path / "sira-pope.jsonl").read_text()
    code, _, err = pope("-o", tmp_path, "--option", "suffix=", "--no-controls", splits=("random",))
    assert code == 2
    assert "has the prompt" in err
    assert "give another --output, or --overwrite" in err
    assert (tmp_path / "sira-pope.jsonl").read_text() == kept


def test_a_prompt_with_a_placeholder_is_refused_before_anything_is_decoded(pope, loaded):
    code, _, err = pope("--option", "suffix=<image>", splits=("random",))
    assert (code, loaded.total()) == (2, 0)
    assert "<image>' about scene_" in err


def test_an_interrupted_run_says_what_is_kept(pope, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Lvlm, "answer", interrupted)
    for given, kept in (((), False), (("-o", tmp_path), True)):
        code, report, err = pope("--limit", 1, *given)
        assert (code, report, "finished work is kept: run the same command again to resume" in err) == (130, {}, kept)


def test_shards_make_the_whole(pope, whole, tmp_path):
    for part in ("1/2", "2/2"):
        code, report, err = pope("-o", tmp_path, "--shard", part)
        assert (code, report) == (0, {})
        assert f"--answers {tmp_path}" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{method}-pope.{part}-of-2.jsonl" for method in ("greedy", "sira") for part in (1, 2)
    ]
    code, report, _ = pope("--answers", tmp_path)
    assert code == 0
    assert values(report) == values(whole)  # greedy+apc included
    assert report["not_run"] == {"greedy+apc": "greedy"}
    assert report["settings"]["greedy+apc"]["method"] == "greedy+apc"
    assert list(pope("--answers", tmp_path, "--no-controls")[1]["settings"]) == ["greedy", "sira"]
    code, _, err = pope("--answers", *tmp_path.glob("*.1-of-2.jsonl"))
    assert (code, err.count("is it finished, and are all shards given?")) == (2, 1)


def test_pictures_that_fail_are_counted_and_left_out(pope, scenes, tmp_path, loaded):
    images = tmp_path / "images"
    images.mkdir()
    one, two, three, four = sorted((scenes / "images").iterdir())
    for path in (one, four):
        (images / path.name).write_bytes(path.read_bytes())
    (images / two.name).write_bytes(b"no picture")
    code, report, err = pope("-o", tmp_path / "out", images=images)
    assert code == 3
    assert err.count(f"{images / three.name}: no such file") == 2  # once a method
    assert "2 pictures failed; their questions are left out of all figures" in err
    failed = [(row["method"], row["picture"]) for row in report["failures"]]
    assert sorted(failed) == sorted((method, path.name) for method in report["settings"] for path in (two, three))
    asked = (scenes / "pope" / "scenes_pope_random.json").read_text().splitlines()
    here = sum(one.name in line or four.name in line for line in asked)
    row = rows(report)["scenes random", "sira"]
    assert (row["answered"], row["failed"]) == (here, len(asked) - here)
    assert sum(row["counts"][cell] for cell in ("TP", "FP", "TN", "FN")) == here
    scored = pope("--answers", tmp_path / "out")
    assert scored[0] == 3
    shard = pope("-o", tmp_path / "shard", "--shard", "1/1", "--limit", 1, images=images, splits=("random",))
    assert (shard[0], shard[1]) == (0, {})
    shard = pope("-o", tmp_path / "shard", "--shard", "1/1", images=images, splits=("random",))
    assert (shard[0], shard[1]) == (3, {})
    assert rows(scored[1])["scenes random", "sira"] == row | {"differences": row["differences"]}
    for path in (two, three):
        (images / path.name).write_bytes(path.read_bytes())
    loaded.clear()
    # A picture that can be read now has another key, so it is asked about again; one that was missing has, too.
    code, report, _ = pope("-o", tmp_path / "out", "--retry-errors", images=images)
    assert (code, report["failures"]) == (0, [])
    assert rows(report)["scenes random", "sira"]["failed"] == 0


def test_what_failed_is_tried_again_on_request_only(pope, loaded, tmp_path, monkeypatch):
    counted = Lvlm.answer

    def refuses(self, inputs, *args, **options):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Lvlm, "answer", refuses)
    code, report, err = pope("-o", tmp_path, "--limit", 2, "--no-controls", splits=("random",))
    assert (code, report["rows"], len(report["failures"])) == (3, [], 1)
    assert err.count("out of luck") == 1  # two questions about one picture
    monkeypatch.setattr(Lvlm, "answer", counted)
    again = ("-o", tmp_path, "--limit", 2, "--no-controls")
    assert pope(*again, splits=("random",))[0] == 3
    assert loaded.total() == 0
    code, report, _ = pope(*again, "--retry-errors", splits=("random",))
    assert (code, report["failures"], loaded.total()) == (0, [], 2)


def test_answers_in_pope_s_own_form_score_the_same(pope, whole, runs, tmp_path):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    _, report, _ = pope("-o", tmp_path, "--details", tmp_path / "details.jsonl")
    assert report == whole
    said = [json.loads(line) for line in (tmp_path / "details.jsonl").read_text().splitlines()]
    for split in SPLITS:
        own = [row for row in said if (row["method"], row["split"]) == ("sira", f"scenes {split}")]
        lines(
            tmp_path / f"scenes_pope_{split}.jsonl",
            [{name: row[name] for name in ("question", "answer")} for row in own],
        )
    _, again, _ = pope("--answers", *(f"sira={tmp_path}/scenes_pope_{split}.jsonl" for split in SPLITS))
    assert values(again) == {key: value for key, value in values(report).items() if key[1] == "sira"}
    right = [row["right"] for row in said if (row["method"], row["split"]) == ("sira", "scenes random")]
    assert 100 * sum(right) / len(right) == values(report)["scenes random", "sira", "accuracy"]


def test_pictures_of_a_record_are_found_from_its_file(pope, scenes, tmp_path):
    pope("-o", tmp_path, "--limit", 1, splits=("random",))
    record = json.loads((tmp_path / "sira-pope.jsonl").read_text())
    assert (tmp_path / record["file_name"]).resolve() == next((scenes / "images").glob("*000000.png")).resolve()
    assert (record["schema"], record["part"]) == ("sira.ask/1", "pope")
    assert record["id"] == f"{Path(record['file_name']).name}: {record['prompt'].removesuffix(ONE_WORD)}"


def test_all_files_are_checked_before_anything_is_decoded(pope, loaded, tmp_path):
    pope("-o", tmp_path, "--limit", 1, "--no-controls", splits=("random",))
    loaded.clear()
    assert pope("-o", tmp_path, "--method", "greedy,sira", "--alpha", 0.7, splits=("random",))[0] == 2
    assert loaded.total() == 0
