"""`sira eval` of answers from elsewhere: labels, the paper's row, details."""

from __future__ import annotations

import json

import pytest


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
    run = ("eval", "pope", elsewhere / "coco_pope_random.json")
    files = (elsewhere / "base.jsonl", f"sira={elsewhere / 'better.jsonl'}")
    code, out, err = sira(*run, "--answers", *files)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines() if ".." in line][:2] == [["sira", "87.50"], ["base", "50.00"]]
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
    run = ("eval", "pope", elsewhere / "coco_pope_random.json", "--answers")
    run += (f"sira={elsewhere / 'better.jsonl'}", "--paper")
    code, out, _ = sira(*run, "-p", "llava-1.5-7b")
    assert code == 0
    assert "in the paper" in out
    assert "89.27" in out  # Table 1
    (row,) = json.loads(sira(*run, "-m", "Qwen/Qwen2.5-VL-7B-Instruct", "--json")[1])["rows"]
    assert row["paper"]["accuracy"] == 91.13
    code, out, err = sira(*run, "-p", "demo")
    assert (code, out) == (2, "")
    assert err == "sira: --paper: the paper has no figures for demo, only for qwen2.5-vl-7b, llava-1.5-7b (-p)\n"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_row_of_the_paper_that_does_not_compare_is_marked(sira, elsewhere, form):
    run = ("eval", "pope", elsewhere / "coco_pope_random.json", "--paper", *form)
    _, out, _ = sira(*run, "--answers", f"greedy={elsewhere / 'base.jsonl'}", "-p", "llava-1.5-7b")
    (row,) = [line for line in out.splitlines() if "83.29" in line]
    assert "T = 1" in row
    assert "87.3" in out
    assert "by its authors" in out
    assert "T = 1: sampled at T = 1" in out or '"T = 1": "sampled at T = 1' in out
    assert "arXiv 2310.03744" in out
    _, out, _ = sira(*run, "--answers", f"vcd={elsewhere / 'base.jsonl'}", "-m", "Qwen/Qwen2.5-VL-7B-Instruct")
    (row,) = [line for line in out.splitlines() if "88.63" in line]
    assert "Qwen-VL" in row


def test_the_papers_model_is_that_of_the_records(pope, tmp_path, elsewhere, sira, loaded):
    pope("-o", tmp_path, "--limit", 2, splits=("random",))
    for path in tmp_path.glob("*-pope.jsonl"):
        path.write_text(path.read_text().replace('"preset": "demo"', '"preset": "llava-1.5-7b"'))
    code, report, _ = pope("--answers", tmp_path, "--limit", 2, "--paper", splits=("random",))
    assert (code, report["paper"]) == (0, "llava-1.5-7b")
    run = ("eval", "pope", elsewhere / "coco_pope_random.json", "--paper")
    code, _, err = sira(*run, "--answers", elsewhere / "base.jsonl")
    assert (code, err) == (2, "sira: --paper: the answers' model is unknown: give -p PRESET\n")
    files = (f"greedy={elsewhere}/base.jsonl", f"mine={elsewhere}/better.jsonl")
    _, out, _ = sira(*run, "--answers", *files, "-p", "llava-1.5-7b")
    assert "in the paper: llava-1.5-7b; no figures for mine" in out
    assert "83.29" in out
    loaded.clear()
    code, _, err = pope("--paper", "-o", tmp_path / "new")
    assert (code, loaded.total()) == (2, 0)  # before anything is decoded
    assert not (tmp_path / "new").exists()


def test_details_replace_details_only(sira, elsewhere):
    answers, questions = elsewhere / "base.jsonl", elsewhere / "coco_pope_random.json"
    details = ("eval", "pope", questions, "--answers", answers, "--details")
    lines = elsewhere / "questions.jsonl"
    lines.write_text(questions.read_text())
    for path, why in (
        (answers, "holds something other than details of sira eval: give another"),
        (lines, "holds something other than details of sira eval: give another"),
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
    assert (code, "sira-pope.jsonl: answers are kept in this file" in err, loaded.total()) == (2, True, 0)
    assert pope(*run[:-2], splits=("random",))[0] == 0
    kept = (tmp_path / "sira-pope.jsonl").read_text()
    code, _, err = pope(*run, splits=("random",))
    assert (code, "holds something other than details" in err) == (2, True)
    new = ("-o", tmp_path / "new", *run[2:-1], tmp_path / "new" / "details.jsonl")  # in a folder that will be made
    assert pope(*new, splits=("random",))[0] == 0
    assert len((tmp_path / "new" / "details.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "sira-pope.jsonl").read_text() == kept


def test_a_glob_behind_a_label(sira, elsewhere):
    run = ("eval", "pope", elsewhere / "coco_pope_random.json", "--json", "--answers")
    _, out, _ = sira(*run, f"mine={elsewhere}/bet*.jsonl")
    assert list(json.loads(out)["settings"]) == ["mine"]
