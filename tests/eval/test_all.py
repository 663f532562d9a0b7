"""Several benchmarks that a folder holds, asked of one loaded model."""

from __future__ import annotations

import json

import pytest

from tests.support.eval.helpers import rows, values

RUN = ("-p", "demo", "-b", 16, "--limit", 2, "--max-new-tokens", 12)


def test_a_folder_of_benchmarks(sira, scenes, loaded, tmp_path):
    run = ("eval", "pope,chair,amber", scenes, *RUN, "-o", tmp_path)
    code, out, err = sira(*run)
    assert (code, "NOT the official figures" in out, "not run, because without sampling" in out) == (0, True, True)
    assert [line for line in out.splitlines() if line.isupper()] == ["POPE", "CHAIR", "AMBER"]
    asked = loaded.total()
    code, printed, _ = sira(*run, "--json")
    assert (code, loaded.total()) == (0, asked)  # nothing is asked again
    reports = [json.loads(line) for line in printed.splitlines()]
    assert [report["benchmark"] for report in reports] == ["pope", "chair", "amber"]
    for report in reports:
        assert report == json.loads((tmp_path / report["benchmark"] / "report.json").read_text())
    assert not any("RePOPE" in group for group, _ in rows(reports[0]))  # only on request
    assert {group for group, _ in rows(reports[1])} == {"12 tokens"}
    corrected = ("--option", f"repope={scenes / 'repope'}")
    assert "scenes random, RePOPE" in sira("eval", "pope", scenes, *RUN, *corrected, "-o", tmp_path)[1]
    assert loaded.total() == asked
    own = ("eval", "pope", scenes / "pope", "--images", scenes / "images")
    assert values(json.loads(sira(*own, *RUN, "--json")[1])) == values(reports[0])  # the figures of its own command
    code, _, err = sira(*run, "--dtype", "bfloat16")
    assert (code, "holds records of another configuration" in err) == (2, True)


def test_options_are_given_by_name(sira, scenes, loaded):
    command = ("eval", "chair,pope", scenes, *RUN, "--no-controls", "--json")
    code, out, err = sira(*command, "--option", "rule=strict", "--option", "chair.rule=singular")
    assert (code, "--option rule=strict: expected lemma, singular" in err) == (2, True)  # both have a rule
    code, out, _ = sira(*command, "--option", "pope.rule=strict", "--option", "language=fallback")
    reports = {report["benchmark"]: report for report in map(json.loads, out.splitlines())}
    assert (code, [*reports], "rule strict" in str(reports["pope"]["stand_ins"])) == (0, ["chair", "pope"], True)


def test_one_that_is_not_there(sira, scenes):
    code, _, err = sira("eval", "pope", scenes / "coco", "-p", "demo")
    assert (code, "has no folder pope with POPE's files of questions" in err) == (2, True)
    assert "add --images FOLDER to ask" in err


@pytest.mark.parametrize(
    ("name", "made", "message"),
    [
        ("chair", "coco/annotations/", "--option ids=FILE is needed"),
        ("pope", "pope/", "pope: holds no .json file"),
        ("amber", "amber/", "amber: has no annotations.json"),
    ],
)
def test_a_benchmark_that_lacks_its_files(sira, tmp_path, name, made, message):
    (tmp_path / made).mkdir(parents=True)
    code, _, err = sira("eval", name, tmp_path, "-p", "demo")
    assert (code, message in err) == (2, True)
