"""MMHal-Bench and HaloQuest: asked and exported, and summed up when a judge has read the answers."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from sira_cli.cli.eval.table import print_report
from sira_cli.errors import DataError
from sira_cli.eval import haloquest, mmhal
from sira_cli.eval.answers.texts import Answers
from sira_cli.eval.card import Asking
from sira_cli.eval.formats import to_csv, to_latex
from sira_cli.eval.judged import JUDGED
from sira_cli.eval.report import EvalReport
from tests.support.eval import drawn
from tests.support.eval.helpers import rows, values
from tests.support.eval.writing import save

MADE = {"mmhal": (mmhal.CARD, drawn.mmhal), "haloquest": (haloquest.CARD, drawn.haloquest)}
VERDICTS = (
    "Explanation: it is right.\nRating: 6, very informative",
    "rating: 2",
    "I cannot tell.",  # no rating counts 0
    "Rating: 1 or Rating: 4",  # two count 0
)


def reply(text: str) -> dict:
    """What openai.ChatCompletion.create returned, as eval_gpt_mmhal.py saves it."""
    return {"id": "a", "model": "gpt-4-0314", "choices": [{"index": 0, "message": {"role": "a", "content": text}}]}


def test_ratings_are_summed_up_as_by_summarize_gpt_mmhal(sira, tmp_path):
    """By hand: ratings 6, 2, 0, 0; three of four below 3; each of another type."""
    folder = drawn.mmhal(tmp_path)
    path = save(tmp_path / "judged.json", [reply(text) for text in VERDICTS])
    code, out, _ = sira("eval", "mmhal", folder, "--answers", f"sira={path}", "--json")
    assert code == 0
    report = json.loads(out)
    found = values(report)
    expected = {JUDGED: 2, "attribute": 6, "adversarial": 2, "counting": 0, "environment": 0}
    assert {group: found[group, "sira", "rating"] for group in expected} == expected
    assert (found[JUDGED, "sira", "hallucination"], found["counting", "sira", "hallucination"]) == (75, 100)
    assert found[JUDGED, "sira", "unclear"] == 50
    assert [row["part"] for row in report["rows"]] == 5 * [JUDGED]


def test_verdicts_of_two_methods_are_compared(sira, tmp_path):
    folder = drawn.haloquest(tmp_path)
    with (folder / "haloquest-eval.csv").open(encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(file))
    for label, right in (("greedy", "TFF" * 4), ("sira", "TTF" * 3 + "TFF")):
        judged = [
            {"image_name": row["image_name"], "question": row["question"], "is_prediction_correct": letter == "T"}
            for row, letter in zip(table, right, strict=True)
        ]
        save(tmp_path / f"{label}.json", judged)
    answers = [f"{label}={tmp_path / label}.json" for label in ("greedy", "sira")]
    code, out, _ = sira("eval", "haloquest", folder, "--answers", *answers, "--json")
    assert code == 0
    report = json.loads(out)
    found = values(report)
    assert [found[JUDGED, name, "accuracy"] for name in ("greedy", "sira")] == pytest.approx([400 / 12, 700 / 12])
    assert [found["false premises", name, "accuracy"] for name in ("greedy", "sira")] == [100, 100]
    assert [found["visual challenge", name, "accuracy"] for name in ("greedy", "sira")] == [0, 75]
    assert rows(report)[JUDGED, "sira"]["differences"]["accuracy"]["value"] == pytest.approx(25)
    (test,) = [test for test in report["tests"] if test["group"] == JUDGED]
    assert (test["only_first"], test["only_second"]) == (0, 3)


@pytest.mark.parametrize("name", MADE)
def test_answers_that_no_judge_has_read_have_no_p(tmp_path, capsys, name):
    """They are neither right nor wrong: a p value of 1 would say that two methods do not differ."""
    card, draw = MADE[name]
    benchmark = card.read(draw(tmp_path), Asking())
    (part,) = benchmark.parts
    texts = {method: {ask.id: f"{method} A dog." for ask in part.asks} for method in ("greedy", "sira")}
    report = EvalReport.of(benchmark, [Answers(method, {name: texts[method]}) for method in texts])
    assert (report.tests, [row.p for row in report.rows]) == ((), [None, None])
    print_report(report)
    assert not re.search(r"\bp\b|McNemar", capsys.readouterr().out)
    assert "$p$" not in to_latex(report)
    assert [row["p"] for row in csv.DictReader(io.StringIO(to_csv(report)))] == ["", "", ""]


@pytest.mark.parametrize("name", MADE)
def test_a_run_is_exported_for_the_judge(sira, tmp_path, loaded, lvlm, name):
    card, draw = MADE[name]
    folder = draw(tmp_path / "data")
    command = ("eval", name, folder, "--json")
    ask = (*command, "--images", folder / "images", "-p", "demo", "-b", 8, "-o", tmp_path / "out", "--no-controls")
    ask = (*ask, "--export", "official")
    code, out, _ = sira(*ask)
    assert code == 0
    report = json.loads(out)
    assert list(rows(report)) == [("all", "sira")]
    assert report["stand_ins"][name].startswith("not judged")
    benchmark = card.read(folder, Asking())
    under = lvlm.under(lvlm.preset.method("sira"))
    texts = {ask.id: under.ask(folder / "images" / ask.picture, ask.prompt).text for ask in benchmark.parts[0].asks}
    (exported,) = (tmp_path / "out" / "official" / "sira").iterdir()
    assert benchmark.read([exported]) == {name: texts}
    if name == "mmhal":
        template = json.loads((folder / "response_template.json").read_text())
        judge_reads = json.loads(exported.read_text())
        assert [{**row, "model_answer": ""} for row in judge_reads] == template
        assert [row["model_answer"] for row in judge_reads] == list(texts.values())
    else:
        judge_reads = list(csv.DictReader(exported.open(newline="")))
        assert [row["model_response"] for row in judge_reads] == list(texts.values())
        for row in judge_reads:
            row["is_prediction_correct"] = "True"
        with exported.open("w", newline="") as file:
            writer = csv.DictWriter(file, judge_reads[0])
            writer.writeheader()
            writer.writerows(judge_reads)
        found = benchmark.read([exported])  # answers, and what the judge says of them
        assert (found[name], {*found[JUDGED].values()}) == (texts, {"true"})
    loaded.clear()
    assert json.loads(sira(*ask)[1]) == report
    assert loaded.total() == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mmhal", [{"choices": []}], r"row 1: expected a reply with choices\[0\].message.content"),
        ("mmhal", [reply("Rating: 1")], "question 1 is missing: 3 of the 4 rows are"),
        ("mmhal", [reply("Rating: 1")] * 5, "row 5: too many rows: MMHal-Bench has 4 questions"),
        ("mmhal", [{"question": "Why?", "model_answer": "a"}], "row 1: is about 'Why.', but question 0 is"),
        ("mmhal", [{"model_answer": ""}] * 4, "all answers are empty: is it the template, not yet filled"),
        ("mmhal", [{"question_type": "a"}], "row 1: has neither an answer nor a verdict"),
        ("haloquest", [{"image_name": "a.png", "question": "b"}], "row 1: 'b' about 'a.png' is no question"),
        ("haloquest", [{"is_prediction_correct": "maybe"}], "row 1: is_prediction_correct must be true or false"),
        ("haloquest", [{"is_prediction_correct": True}] * 2, "row 2: question 0 stands twice"),
        ("haloquest", [], "holds neither answers nor verdicts"),
    ],
)
def test_damaged_judgements_end_in_one_line(tmp_path, name, content, message):
    card, draw = MADE[name]
    benchmark = card.read(draw(tmp_path), Asking())
    if name == "haloquest":
        first = {"image_name": benchmark.questions[0].picture, "question": benchmark.questions[0].text}
        content = [first | row for row in content]
    with pytest.raises(DataError, match=message):
        benchmark.read([save(tmp_path / "judged.json", content)])


@pytest.mark.parametrize("name", MADE)
def test_a_limit_takes_pictures(tmp_path, name):
    card, draw = MADE[name]
    limited = card.read(draw(tmp_path), Asking(limit=2))
    assert len({question.picture for question in limited.questions}) == 2
