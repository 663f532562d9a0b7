"""`sira eval`: runs on drawn scenes from pictures to figures, resuming, shards, failures, files, what is refused."""

from __future__ import annotations

import csv
import functools
import io
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sira_cli import methods
from sira_cli.cli import eval as cli
from sira_cli.demo.evaluate import Questions, held_out
from sira_cli.demo.export import export
from sira_cli.demo.scenes import TEST_SEEDS
from sira_cli.eval import amber, amber_figures, chair, language
from sira_cli.eval import pope as pope_eval
from sira_cli.eval.answers import SAME
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.run import more_settings
from sira_cli.lvlm import Lvlm, load

SPLITS = ("random", "adversarial")
SCENES = 3


@pytest.fixture(scope="module")
def lvlm() -> Lvlm:
    return load("demo")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sira_cli.demo.export.Questions", functools.partial(Questions, sample=50))
        export([held_out(seed) for seed in TEST_SEEDS[:SCENES]], folder)
    return folder


@pytest.fixture
def loaded(lvlm, monkeypatch) -> Counter:
    """Commands get the model that is loaded already; what it is asked is counted, by method."""
    asked: Counter = Counter()
    answer = Lvlm.answer

    def counted(self, inputs, *args, **options):
        asked[self.method] += len(inputs["input_ids"])
        return answer(self, inputs, *args, **options)

    monkeypatch.setattr(Lvlm, "answer", counted)
    monkeypatch.setattr("sira_cli.cli.eval_run.load_model", lambda preset, model, method: lvlm.under(method, preset))
    return asked


@pytest.fixture
def pope(sira, scenes, loaded):
    """`sira eval pope` on the scenes, as JSON."""

    def run(*args: object, images: Path = scenes / "images", splits=SPLITS) -> tuple[int, dict, str]:
        files = [scenes / "pope" / f"scenes_pope_{split}.json" for split in splits]
        given = [] if "--answers" in args else ["--images", images, "-p", "demo", "-b", 16]
        code, out, err = sira("eval", "pope", "--questions", *files, *given, "--json", *args)
        return code, json.loads(out) if out else {}, err

    return run


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


def rows(report: dict) -> dict[tuple[str, str], dict]:
    return {(row["group"], row["method"]): row for row in report["rows"]}


def values(report: dict) -> dict[tuple[str, str, str], float]:
    return {
        (*key, name): figure["value"] for key, row in rows(report).items() for name, figure in row["figures"].items()
    }


# --- POPE, from pictures to figures


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


def test_controls(pope, loaded):
    _, report, _ = pope("--method", "vcd", splits=("random",))
    assert list(report["settings"]) == ["greedy", "greedy+apc", "vcd"]
    assert report["not_run"] == {"greedy+apc": "greedy"}
    assert loaded["greedy+apc"] == 0
    assert rows(report)["scenes random", "greedy+apc"]["counts"] == rows(report)["scenes random", "greedy"]["counts"]
    _, report, _ = pope("--method", "sira", "--no-controls", splits=("random",))
    assert list(report["settings"]) == ["sira"]
    assert report["tests"] == []


@pytest.mark.parametrize("option", [("--temperature", 1, "--seed", 1), ("--num-beams", 2)])
def test_a_cut_off_is_run_where_it_can_matter(pope, loaded, option):
    _, report, _ = pope("--method", "sira", *option, "--limit", 2, splits=("random",))
    assert report["not_run"] == {}
    assert loaded["greedy+apc"] == loaded["greedy"] == loaded["sira"] == 2


@pytest.mark.parametrize("option", [("--temperature", 1), ("--num-beams", 2)])
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
    assert vcd == known
    assert vcd["prompt"]["pope"].endswith("?" + ONE_WORD)


@pytest.mark.parametrize("option", [("--beta", 0.9), ("--num-beams", 2), ("--top-p", 0.5)])
def test_a_file_keeps_to_its_settings(pope, loaded, tmp_path, option):
    run = ("-o", tmp_path, "--no-controls", "--limit", 1, "--temperature", 1)
    assert pope(*run, splits=("random",))[0] == 0
    loaded.clear()
    name = option[0][2:].replace("-", "_")
    code, _, err = pope(*run, *option, splits=("random",))
    assert (code, f"{name} is " in err, loaded.total()) == (2, True, 0)


def test_a_preset_of_the_same_name_is_another(pope, lvlm, tmp_path, monkeypatch):
    """Whatever else of it decides a text."""
    run = ("-o", tmp_path, "--no-controls", "--limit", 1)
    assert pope(*run, splits=("random",))[0] == 0
    preset = lvlm.preset.model_copy(update={"image": lvlm.preset.image.model_copy(update={"max_pixels": 10_000})})
    monkeypatch.setattr("sira_cli.cli.eval_run.choose_preset", lambda model, decoding: preset)
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
    code, _, err = pope("-o", tmp_path, "--no-suffix", "--no-controls", splits=("random",))
    assert code == 2
    assert "was asked as" in err
    assert "give another --output, or --overwrite" in err
    assert (tmp_path / "sira-pope.jsonl").read_text() == kept


def test_a_prompt_with_a_placeholder_is_refused_before_anything_is_decoded(pope, loaded):
    code, _, err = pope("--suffix", "<image>", splits=("random",))
    assert (code, loaded.total()) == (2, 0)
    assert "<image>' about scene_" in err


def test_all_files_are_checked_before_anything_is_decoded(pope, loaded, tmp_path):
    pope("-o", tmp_path, "--limit", 1, "--no-controls", splits=("random",))
    loaded.clear()
    assert pope("-o", tmp_path, "--method", "greedy,sira", "--alpha", 0.7, splits=("random",))[0] == 2
    assert loaded.total() == 0


def test_a_part_of_a_run_can_be_scored(pope, tmp_path):
    for part in ("1/2", "2/2"):
        assert pope("-o", tmp_path, "--limit", 6, "--shard", part)[0] == 0
    code, report, _ = pope("--answers", tmp_path, "--limit", 6)
    assert (code, report["rows"][0]["answered"]) == (0, 6)
    elsewhere = [tmp_path / f"{split}.json" for split in SPLITS]
    for path in elsewhere:
        path.write_text('{"answer": "Yes"}')
    code, _, err = pope("--answers", tmp_path, *elsewhere, "--limit", 6)
    assert (code, "--limit is for runs, and for what they wrote" in err) == (2, True)


def test_an_interrupted_run_keeps_what_is_finished(pope, loaded, tmp_path, monkeypatch):
    counted = Lvlm.answer

    def interrupted(self, *args, **options):
        if self.method == "sira":
            raise KeyboardInterrupt
        return counted(self, *args, **options)

    monkeypatch.setattr(Lvlm, "answer", interrupted)
    code, report, err = pope("--limit", 1)
    assert (code, "what is finished is kept" in err) == (130, False)  # nothing is, without -o
    code, report, err = pope("-o", tmp_path)
    assert (code, report) == (130, {})
    assert "run the same command again to go on" in err
    monkeypatch.setattr(Lvlm, "answer", counted)
    loaded.clear()
    code, report, _ = pope("-o", tmp_path)
    assert (code, set(loaded)) == (0, {"sira"})


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
    one, two, three = sorted((scenes / "images").iterdir())
    (images / one.name).write_bytes(one.read_bytes())
    (images / two.name).write_bytes(b"no picture")
    code, report, err = pope("-o", tmp_path / "out", "--export", "official", images=images)
    assert code == 3
    assert err.count(f"{images / three.name}: no such file") == 2  # once a method
    assert "sira: not exported, as pictures failed" in err
    assert "2 pictures failed; what was asked about them is in no figure" in err
    failed = [(row["method"], row["picture"]) for row in report["failures"]]
    assert sorted(failed) == sorted((method, path.name) for method in report["settings"] for path in (two, three))
    asked = (scenes / "pope" / "scenes_pope_random.json").read_text().splitlines()
    here = sum(one.name in line for line in asked)
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


def test_exported_answers_score_the_same(pope, whole, runs, tmp_path):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    _, report, _ = pope("-o", tmp_path, "--export", "official", "--details", tmp_path / "details.jsonl")
    assert report == whole
    files = [f"sira={tmp_path}/official/sira/scenes_pope_{split}.jsonl" for split in SPLITS]
    _, again, _ = pope("--answers", *files)
    assert values(again) == {key: value for key, value in values(report).items() if key[1] == "sira"}
    details = [json.loads(line) for line in (tmp_path / "details.jsonl").read_text().splitlines()]
    right = [row["right"] for row in details if (row["method"], row["split"]) == ("sira", "scenes random")]
    assert 100 * sum(right) / len(right) == values(report)["scenes random", "sira", "accuracy"]


def test_pictures_of_a_record_are_found_from_its_file(pope, scenes, tmp_path):
    pope("-o", tmp_path, "--limit", 1, splits=("random",))
    record = json.loads((tmp_path / "sira-pope.jsonl").read_text())
    assert (tmp_path / record["file_name"]).resolve() == next((scenes / "images").glob("*000000.png")).resolve()
    assert (record["schema"], record["part"]) == ("sira.ask/1", "pope")
    assert record["id"] == f"{Path(record['file_name']).name}: {record['prompt'].removesuffix(ONE_WORD)}"


# --- CHAIR and AMBER


def test_chair(sira, scenes, loaded, lvlm, tmp_path):
    coco = scenes / "coco"
    run = ("eval", "chair", "--annotations", coco, "-o", tmp_path, "--details", tmp_path / "d.jsonl", "--json")
    run += ("--language", "fallback")
    code, out, _ = sira(
        *run, "--images", scenes / "images", "--ids", coco / "ids.txt", "-p", "demo", "-b", 4, "--lengths", "12,64"
    )
    report = json.loads(out)
    assert code == 0
    assert not report["official"]
    assert list(report["stand_ins"]) == ["12", "64"]
    found = rows(report)
    assert list(found) == [
        (f"{length} tokens", method) for length in (12, 64) for method in ("greedy", "greedy+apc", "sira")
    ]
    texts = [json.loads(line) for line in (tmp_path / "sira-12.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in texts] == 3 * [12]
    assert {row["prompt"] for row in texts} == {"Please describe this image in detail."}
    single = lvlm.under(methods.find("sira"), lvlm.preset.with_settings(max_new_tokens=12))
    image = scenes / "images" / Path(texts[0]["file_name"]).name
    assert single.caption(image, "Please describe this image in detail.").text == texts[0]["text"]
    details = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    for (group, method), row in found.items():
        of = [one for one in details if (one["method"], one["part"]) == (method, group.removesuffix(" tokens"))]
        wrong = [bool(one["mscoco_hallucinated_words"]) for one in of]
        assert row["figures"]["CHAIRs"]["value"] == pytest.approx(100 * sum(wrong) / SCENES)
        assert row["answered"] == SCENES
    loaded.clear()
    code, out, _ = sira(*run, "--answers", tmp_path)
    assert values(json.loads(out)) == values(report)
    _, out, _ = sira(*run, "--answers", tmp_path, "--lengths", 64)
    assert values(json.loads(out)) == {key: value for key, value in values(report).items() if key[0] == "64 tokens"}
    assert loaded.total() == 0
    # Methods of one length each, and captions of unknown length beside them, are scored as they are.
    files = [f"short={tmp_path}/sira-12.jsonl", f"long={tmp_path}/sira-64.jsonl"]
    elsewhere = [{"image_id": int(row["id"]), "caption": row["text"]} for row in texts]
    (tmp_path / "elsewhere.jsonl").write_text("".join(json.dumps(row) + "\n" for row in elsewhere))
    code, _, err = sira(*run, "--answers", tmp_path / "elsewhere.jsonl", "--lengths", "12,64")
    assert (code, "only what sira eval chair ran has several lengths" in err) == (2, True)
    _, out, _ = sira(*run, "--answers", *files, tmp_path / "elsewhere.jsonl")
    scored = values(json.loads(out))
    for method, group in (("short", "12 tokens"), ("long", "64 tokens"), ("elsewhere", "12 tokens")):
        for figure in ("CHAIRs", "CHAIRi", "recall", "length"):
            assert scored["captions", method, figure] == values(report)[group, "sira", figure]
    code, _, err = sira(*run, "--answers", tmp_path, tmp_path / "elsewhere.jsonl")
    assert (code, "some files hold captions of several lengths" in err) == (2, True)
    (tmp_path / "unknown.jsonl").write_text('{"image_id": 987654321, "caption": "A dog."}\n')
    code, _, err = sira(*run, "--answers", tmp_path / "unknown.jsonl")
    assert (code, "unknown.jsonl: line 1: image 987654321 is not in " in err) == (2, True)
    _, out, _ = sira(*run, "--answers", tmp_path / "elsewhere.jsonl", "--lengths", 64, "--paper", "-p", "llava-1.5-7b")
    assert [row["group"] for row in json.loads(out)["rows"]] == ["64 tokens"]


def test_captions_of_sira_caption(sira, scenes, loaded, tmp_path, monkeypatch, lvlm):
    """CHAIR and AMBER know them by their pictures."""
    monkeypatch.setattr("sira_cli.cli.pictures.load_model", lambda preset, *others: lvlm)
    assert sira("caption", scenes / "images", "-p", "demo", "-b", 4, "-o", tmp_path / "c.jsonl", "-q")[0] == 0
    records = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    texts = {Path(record["file_name"]).name: record["text"] for record in records}
    details = ("--answers", tmp_path / "c.jsonl", "--language", "fallback", "--details", tmp_path / "d.jsonl")
    assert (
        sira("eval", "chair", "--annotations", scenes / "coco", "--ids", scenes / "coco" / "ids.txt", *details)[0] == 0
    )
    found = [json.loads(line)["caption"] for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert sorted(found) == sorted(texts.values())
    assert sira("eval", "amber", "--data", scenes / "amber", "--similarity", "exact", *details)[0] == 0
    details = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert {row["image"]: row["response"] for row in details} == texts


def test_answers_of_another_benchmark(sira, scenes, pope, tmp_path):
    pope("-o", tmp_path, "--limit", 2, "--no-controls", splits=("random",))
    for command in (
        ("eval", "amber", "--data", scenes / "amber", "--similarity", "exact", "--language", "fallback"),
        ("eval", "chair", "--annotations", scenes / "coco", "--language", "fallback"),
    ):
        code, out, err = sira(*command, "--answers", tmp_path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "sira-pope.jsonl" in err


def test_chair_of_one_length(sira, scenes, loaded):
    coco = scenes / "coco"
    code, out, _ = sira(
        *("eval", "chair", "--annotations", coco, "--images", scenes / "images", "--ids", coco / "ids.txt"),
        *(
            "-p",
            "demo",
            "--max-new-tokens",
            5,
            "--limit",
            1,
            "--no-controls",
            "--format",
            "csv",
            "--language",
            "fallback",
        ),
    )
    (row,) = csv.DictReader(io.StringIO(out))
    assert (code, row["group"], row["method"], row["official"], row["answered"]) == (
        0,
        "5 tokens",
        "sira",
        "False",
        "1",
    )
    assert loaded == {"sira": 1}


def test_amber(sira, scenes, loaded, tmp_path):
    run = ("eval", "amber", "--data", scenes / "amber", "--similarity", "exact", "--language", "fallback", "--json")
    code, out, _ = sira(
        *(*run, "--images", scenes / "images", "-p", "demo", "-b", 8, "-o", tmp_path),
        *("--export", "official", "--no-controls"),
    )
    report = json.loads(out)
    assert code == 0
    assert list(report["stand_ins"]) == ["generative"]
    groups = ["generative", "discriminative", "existence", "attribute", "state", "number", "action", "relation"]
    assert list(dict.fromkeys(group for group, _ in rows(report))) == groups
    truth = {row["id"]: row for row in json.loads((scenes / "amber" / "annotations.json").read_text())}
    said = json.loads((tmp_path / "official" / "sira" / "discriminative.json").read_text())
    right = [{"yes": "Yes", "no": "No"}[truth[row["id"]]["truth"]] == row["response"] for row in said]
    assert values(report)["discriminative", "sira", "accuracy"] == pytest.approx(
        100 * sum(right) / len(right), abs=0.06
    )
    elsewhere = [f"sira={tmp_path}/official/sira/{part}.json" for part in ("generative", "discriminative")]
    _, out, _ = sira(*run, "--answers", *elsewhere)
    assert values(json.loads(out)) == values(report)
    parts = {
        "generative": ["generative"],
        "discriminative": groups[1:],
        "existence": ["existence"],
        "attribute": ["attribute", "state", "number", "action"],
        "relation": ["relation"],
    }
    for task, groups in parts.items():
        _, out, _ = sira(*run, "--task", task, "--answers", *elsewhere)
        expected = {key: value for key, value in values(report).items() if key[0] in groups}
        assert list(dict.fromkeys(group for group, _ in rows(json.loads(out)))) == groups
        assert values(json.loads(out)) == expected
    code, out, _ = sira(*run, "--task", "discriminative", "--answers", f"{elsewhere[1]}", "--similarity", "spacy")
    assert (code, json.loads(out)["official"]) == (0, True)  # questions need no vectors


def test_amber_on_the_first_pictures(sira, scenes, loaded):
    code, out, _ = sira(
        *("eval", "amber", "--data", scenes / "amber", "--images", scenes / "images", "-p", "demo", "--limit", 1),
        *("--task", "discriminative", "--no-suffix", "--no-controls", "--json", "--max-new-tokens", 1),
    )
    assert json.loads(out)["settings"]["sira"]["max_new_tokens"] == {"discriminative": 1}
    first = json.loads((scenes / "amber" / "query" / "query_discriminative.json").read_text())[0]["image"]
    queries = json.loads((scenes / "amber" / "query" / "query_discriminative.json").read_text())
    assert code == 0
    assert rows(json.loads(out))["discriminative", "sira"]["answered"] == sum(row["image"] == first for row in queries)


# --- answers from elsewhere


@pytest.fixture
def elsewhere(tmp_path):
    """A question file and two methods' answers to it."""
    labels = ["yes", "no"] * 4
    (tmp_path / "coco_pope_random.json").write_text(
        "".join(
            json.dumps({"question_id": n, "image": f"{n // 4}.jpg", "text": f"Is there a {n}?", "label": label}) + "\n"
            for n, label in enumerate(labels)
        )
    )
    for name, said in (("base", ["Yes"] * 8), ("better", ["Yes", "No"] * 3 + ["No", "No"])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"answer": text}) + "\n" for text in said))
    return tmp_path


def test_methods_side_by_side(sira, elsewhere):
    run = ("eval", "pope", "--questions", elsewhere / "coco_pope_random.json")
    files = (elsewhere / "base.jsonl", f"sira={elsewhere / 'better.jsonl'}")
    code, out, err = sira(*run, "--answers", *files)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines() if "±" in line][:2] == [["sira", "87.5"], ["base", "50.0"]]
    assert "only one of sira and the method is right" in out  # labelled files come first
    report = json.loads(sira(*run, "--answers", files[0], "--answers", files[1], "--json")[1])
    assert list(report["settings"]) == ["sira", "base"]
    (test,) = report["tests"]
    # Of eight answers four are right only under sira, one only under base: 2 (1 + 5) / 2^5.
    assert test == {
        "group": "coco random", "first": "sira", "second": "base", "only_first": 4, "only_second": 1, "p": 0.375
    }  # fmt: skip
    difference = report["rows"][1]["differences"]["accuracy"]
    assert difference["value"] == -37.5
    assert difference["low"] <= -37.5 <= difference["high"]


def test_the_papers_row_is_beside(sira, elsewhere):
    run = ("eval", "pope", "--questions", elsewhere / "coco_pope_random.json", "--answers")
    run += (f"sira={elsewhere / 'better.jsonl'}", "--paper")
    code, out, _ = sira(*run, "-p", "llava-1.5-7b")
    assert code == 0
    assert "in the paper" in out
    assert "89.27" in out  # Table 1
    (row,) = json.loads(sira(*run, "-m", "Qwen/Qwen2.5-VL-7B-Instruct", "--json")[1])["rows"]
    assert row["paper"]["accuracy"] == 91.13
    lines = list(csv.DictReader(io.StringIO(sira(*run, "-p", "llava-1.5-7b", "--format", "csv")[1])))
    assert [(line["source"], line["accuracy"]) for line in lines] == [("measured", "87.5"), ("paper", "89.27")]
    code, out, err = sira(*run, "-p", "demo")
    assert (code, out) == (2, "")
    assert err == "sira: --paper: the paper has no figures of demo, only of qwen2.5-vl-7b, llava-1.5-7b (-p)\n"


def test_the_papers_model_is_that_of_the_records(pope, tmp_path, elsewhere, sira, loaded):
    pope("-o", tmp_path, "--limit", 2, splits=("random",))
    for path in tmp_path.glob("*-pope.jsonl"):
        path.write_text(path.read_text().replace('"preset": "demo"', '"preset": "llava-1.5-7b"'))
    code, report, _ = pope("--answers", tmp_path, "--limit", 2, "--paper", splits=("random",))
    assert (code, report["paper"]) == (0, "llava-1.5-7b")
    run = ("eval", "pope", "--questions", elsewhere / "coco_pope_random.json", "--paper")
    code, _, err = sira(*run, "--answers", elsewhere / "base.jsonl")
    assert (code, err) == (2, "sira: --paper: of which model are these answers? give -p PRESET\n")
    files = (f"greedy={elsewhere}/base.jsonl", f"mine={elsewhere}/better.jsonl")
    _, out, _ = sira(*run, "--answers", *files, "-p", "llava-1.5-7b")
    assert "in the paper: llava-1.5-7b; nothing there of mine" in out
    assert "83.29" in out
    loaded.clear()
    code, _, err = pope("--paper", "-o", tmp_path / "new")
    assert (code, loaded.total()) == (2, 0)  # before anything is decoded
    assert not (tmp_path / "new").exists()


def test_exports_stay_in_their_folder(sira, elsewhere):
    for folder in ("one", "two"):
        (elsewhere / folder).mkdir()
        (elsewhere / folder / "base.jsonl").write_text((elsewhere / "base.jsonl").read_text())
    before = sorted(elsewhere.rglob("*"))
    files = [elsewhere / "one" / "base.jsonl", elsewhere / "two" / "base.jsonl", f"../../x={elsewhere}/better.jsonl"]
    run = ("eval", "pope", "--questions", elsewhere / "coco_pope_random.json", "--answers", *files)
    assert sira(*run, "-o", elsewhere / "out", "--export", "official")[0] == 0
    new = [path for path in sorted(elsewhere.rglob("*")) if path not in before]
    assert all(path.is_relative_to(elsewhere / "out") for path in new)
    assert sorted(path.name for path in (elsewhere / "out" / "official").iterdir()) == ["_.._x", "one-base", "two-base"]
    both = [f"{label}={elsewhere / name}.jsonl" for label, name in (("a b", "base"), ("a_b", "better"))]
    run = (*run[: run.index("--answers") + 1], *both, "-o", elsewhere / "new", "--export", "official")
    code, _, err = sira(*run)
    assert (code, err) == (2, "sira: --export: 'a b' and another label would both go to a_b: rename one\n")


def test_details_replace_details_only(sira, elsewhere):
    answers, questions = elsewhere / "base.jsonl", elsewhere / "coco_pope_random.json"
    details = ("eval", "pope", "--questions", questions, "--answers", answers, "--details")
    lines = elsewhere / "questions.jsonl"
    lines.write_text(questions.read_text())
    for path, why in (
        (answers, "holds something else than details of sira eval: give another"),
        (lines, "holds something else than details of sira eval: give another"),
        (questions, "expected a name that ends in .jsonl"),
    ):
        content = path.read_text()
        code, _, err = sira(*details, path)
        assert (code, err) == (2, f"sira: --details {path}: {why}\n")
        assert path.read_text() == content
    (elsewhere / "details.jsonl").touch()
    for _ in range(2):
        assert sira(*details, elsewhere / "details.jsonl")[0] == 0
        assert len((elsewhere / "details.jsonl").read_text().splitlines()) == 8


def test_details_never_replace_records(pope, loaded, tmp_path):
    run = ("-o", tmp_path, "--no-controls", "--limit", 1, "--details", tmp_path / "sira-pope.jsonl")
    code, _, err = pope(*run, splits=("random",))
    assert (code, "sira-pope.jsonl: is where answers are kept" in err, loaded.total()) == (2, True, 0)
    assert pope(*run[:-2], splits=("random",))[0] == 0
    kept = (tmp_path / "sira-pope.jsonl").read_text()
    code, _, err = pope(*run, splits=("random",))
    assert (code, "holds something else than details" in err) == (2, True)
    new = ("-o", tmp_path / "new", *run[2:-1], tmp_path / "new" / "details.jsonl")  # in a folder that will be made
    assert pope(*new, splits=("random",))[0] == 0
    assert len((tmp_path / "new" / "details.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "sira-pope.jsonl").read_text() == kept


def test_a_glob_behind_a_label(sira, elsewhere):
    run = ("eval", "pope", "--questions", elsewhere / "coco_pope_random.json", "--json", "--answers")
    _, out, _ = sira(*run, f"mine={elsewhere}/bet*.jsonl")
    assert list(json.loads(out)["settings"]) == ["mine"]


def test_latex(sira, elsewhere):
    run = ("eval", "pope", "--questions", elsewhere / "coco_pope_random.json", "--format", "latex", "--answers")
    _, out, _ = sira(*run, f"a_b={elsewhere / 'better.jsonl'}", elsewhere / "base.jsonl")
    lines = out.splitlines()
    assert (lines[0], lines[-1]) == (r"\begin{tabular}{llrrrrrrrr}", r"\end{tabular}")
    body = [line for line in lines if line.endswith(r"\\")]
    assert all(line.count("&") == 9 for line in body)
    assert body[0].startswith(r" & Method & accuracy$\uparrow$ & F1$\uparrow$")
    assert body[1].startswith(r"coco random & a\_b & \textbf{87.50} & \textbf{85.71} & \textbf{100.00} & 75.00 &")
    assert body[2].startswith(r" & base & 50.00 & 66.67 & 50.00 & \textbf{100.00} & 100.00 & 100.00 & ")


def test_records_of_two_settings_are_not_one_method(pope, tmp_path):
    for alpha in (0.5, 3):
        pope("-o", tmp_path / str(alpha), "--limit", 2, "--no-controls", "--alpha", alpha, splits=("random",))
    files = [tmp_path / str(alpha) / "sira-pope.jsonl" for alpha in (0.5, 3)]
    code, _, err = pope("--answers", *files, splits=("random",))
    assert (code, "alpha is 3.0 here and 0.5 before: label what is to be compared: LABEL=FILE" in err) == (2, True)


# --- what is refused


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--images", "x", "--answers", "y"], "give --images FOLDER to ask the model, or --answers FILE"),
        ([], "give --images FOLDER to ask the model, or --answers FILE to score answers: one of the two"),
        (["--answers", "missing.json"], "--answers missing.json: no such file"),
        (["--answers", "{q}", "--limit", 1], "--limit is for runs, and for what they wrote"),
        (["--answers", "{q}", "--method", "vcd"], "--method is for runs: leave it out"),
        (["--answers", "{q}", "--max-new-tokens", 4], "--max-new-tokens is for runs"),
        (["--answers", "{q}", "--retry-errors"], "--retry-errors is for runs"),
        (["--answers", "{q}", "--overwrite"], "--overwrite is for runs"),
        (["--answers", "{q}", "--shard", "1/2"], "--shard is for runs"),
        (["--images", "{i}", "--shard", "3/2", "-o", "out"], "shard '3/2': expected I/N with I from 1 to N"),
        (["--answers", "{q}", "-b", 8], "--batch-size is for runs"),
        (["--answers", "{q}", "--device", "cuda:7"], "--device is for runs"),
        (["--answers", "{q}", "--details", "no/d.jsonl"], "--details no/d.jsonl: the folder no does not exist"),
        (["--images", "{i}", "--method", "vcd", "--num-beams", 2], "--method vcd follows one text a picture"),
        (["--images", "{i}", "--shard", "1/2"], "--shard needs --output FOLDER"),
        (["--answers", "{q}", "--export", "official"], "--export needs --output FOLDER"),
        (["--images", "{i}", "-o", "out.jsonl"], "--output out.jsonl: expected a folder"),
        (["--images", "{q}"], "is not a folder"),
        (["--images", "{i}", "--method", "opera"], "no method named 'opera'"),
        (
            ["--images", "{i}", "--method", "dola", "--k", 2],
            "--k: none of the methods has it: greedy, ",
        ),
        (["--images", "{i}", "--json", "--format", "csv"], "give --json or --format csv, not both"),
        (["--images", "{i}", "--suffix", "x", "--no-suffix"], "give --suffix or --no-suffix, not both"),
        (["--answers", "{i}"], "no file in this folder holds records of sira"),
        (["--answers", "{q}"], "line 1: is a question, expected an answer"),
    ],
)
def test_refusals(sira, scenes, args, message):
    names = {"{q}": scenes / "pope" / "scenes_pope_random.json", "{i}": scenes / "images"}
    given = [names.get(arg, arg) for arg in args]
    code, out, err = sira("eval", "pope", "--questions", names["{q}"], *given, "-p", "demo")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--images", "{i}"], "--ids FILE is needed: the images to caption, one id a line"),
        (["--images", "{i}", "--ids", "{ids}", "--lengths", "64,²"], "--lengths 64,²: expected numbers of tokens"),
        (["--images", "{i}", "--ids", "{ids}", "--lengths", "64,0"], "--lengths 64,0: expected numbers of tokens"),
        (
            ["--images", "{i}", "--ids", "{ids}", "--lengths", "64", "--max-new-tokens", 5],
            "give --lengths or --max-new-tokens, not both",
        ),
    ],
)
def test_refusals_of_chair(sira, scenes, args, message):
    names = {"{ids}": scenes / "coco" / "ids.txt", "{i}": scenes / "images"}
    given = [names.get(arg, arg) for arg in args]
    code, out, err = sira("eval", "chair", "--annotations", scenes / "coco", *given, "-p", "demo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_options_offer_what_there_is():
    """They are listed twice, so that --help is quick."""
    assert [*cli.Rule] == [*pope_eval.RULES]
    assert [*cli.TextRule] == [*chair.RULES]
    assert {*cli.Task} == {*amber.PARTS, "all", "existence", "attribute", "relation"}
    assert {*cli.Task} - {"all"} < {*amber_figures.GROUPS["generative"], *amber_figures.GROUPS["discriminative"]}
    assert [*cli.Language] == [*language.CHOICES]
    assert cli.LENGTHS == (64, 512)  # of the paper's Table 2


def test_a_record_holds_all_that_a_method_must_keep_to(lvlm):
    assert {*more_settings(lvlm)} < {*SAME}


def test_no_picture_at_all_is_known_before_the_model_is_loaded(sira, scenes, tmp_path):
    files = scenes / "pope" / "scenes_pope_random.json"
    code, out, err = sira("eval", "pope", "--questions", files, "--images", tmp_path, "-p", "llava-1.5-7b")
    assert (code, out) == (1, "")
    assert err.endswith(f"no such file, nor any of the other {SCENES - 1}: is --images right?\n")


def test_a_mistake_is_said_before_torch_is_imported(scenes, tmp_path):
    files = ["--questions", str(scenes / "pope" / "scenes_pope_random.json"), "--images", str(tmp_path), "-p", "demo"]
    script = f"""
import sys; sys.argv = ["sira", "eval", "pope", *{files}]
from sira_cli.cli import main
try: main()
except SystemExit as stop: print(stop.code, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "1 []\n"
