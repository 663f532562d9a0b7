"""What greedy decoding should give: the bands of published figures, and where a measured figure lies."""

from __future__ import annotations

import json

import pytest

from sira_cli import methods
from sira_cli.eval.answers import Answers
from sira_cli.eval.evaluation import Evaluation
from sira_cli.eval.published import LEFT_OUT, SOURCE, expected, published
from sira_cli.eval.report import EvalReport
from sira_cli.eval.statistics import Figure
from tests.support.eval.benchmarks import IMAGES
from tests.support.eval.writing import lines, values

# Of the tables that were read, without sampled rows, other scripts, and the levels that only one paper has.
BANDS = {
    ("llava-1.5-7b", "chair", "512 tokens"): {"CHAIRs": (45.0, 56.6), "CHAIRi": (13.6, 15.9), "recall": (75.0, 80.4)},
    ("llava-1.5-7b", "chair", "64 tokens"): {"CHAIRs": (20.4, 20.6), "CHAIRi": (6.2, 7.1)},
    ("llava-1.5-7b", "amber", "generative"): {
        "CHAIR": (6.9, 7.8),
        "Cover": (50.0, 51.0),
        "Hal": (32.0, 36.4),
        "Cog": (3.3, 4.2),
    },
    ("llava-1.5-7b", "pope", "coco random"): {"F1": (85.7, 87.3)},
    ("llava-1.5-7b", "pope", "coco popular"): {"F1": (84.98, 86.1)},
    ("llava-1.5-7b", "pope", "coco adversarial"): {"F1": (82.21, 84.2)},
    ("qwen2.5-vl-7b", "chair", "512 tokens"): {"CHAIRs": (21.2, 35.2), "CHAIRi": (8.4, 12.3), "recall": (55.0, 55.0)},
    ("qwen2.5-vl-7b", "amber", "generative"): {},
}
FIGURES = ("CHAIRs", "CHAIRi", "recall", "CHAIR", "Cover", "Hal", "Cog", "F1", "accuracy")


def test_bands_are_ranges_of_the_rows_that_compare():
    found = {}
    for model, benchmarks in published()["models"].items():
        for benchmark, groups in benchmarks.items():
            for group in groups:
                figures = dict.fromkeys(FIGURES, Figure(0, 0, 0))
                bands = expected(model, benchmark, group, figures)
                found[model, benchmark, group] = {each.figure: (each.low, each.high) for each in bands}
    assert found == BANDS


def test_every_published_row_has_its_source():
    models = published()["models"].values()
    rows = [row for groups in models for by in groups.values() for each in by.values() for row in each]
    assert {type(value) for row in rows for name, value in row.items() if name not in (SOURCE, LEFT_OUT)} == {float}
    assert all(len(row[SOURCE]) > 3 and row.get(LEFT_OUT, "why") for row in rows)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure(45.0, 41.0, 49.0), "inside"),
        (Figure(56.6, 52.0, 60.0), "inside"),
        (Figure(44.9, 41.0, 49.0), "near"),
        (Figure(60.0, 56.6, 64.0), "near"),
        (Figure(40.0, 36.0, 44.9), "outside"),
        (Figure(62.0, 56.7, 66.0), "outside"),
    ],
)
def test_where_a_figure_lies(figure, verdict):
    (found,) = expected("llava-1.5-7b", "chair", "512 tokens", {"CHAIRs": figure, "words": figure})
    assert found.verdict == verdict
    assert found.value == figure.value
    assert len(found.sources) == 10


def answered(name: str, **settings: object) -> Answers:
    preset = {"preset": "mine", "model": "llava-hf/llava-1.5-7b-hf", "temperature": 0.0, "num_beams": 1}
    return Answers(name, {"64": dict.fromkeys(map(str, IMAGES), "A dog.")}, settings={**preset, **settings})


@pytest.fixture
def official(coco, monkeypatch):
    """A benchmark of captions that counts as official; without NLTK's data nothing is compared."""
    from sira_cli.eval.chair import Chair

    chair = Chair(coco, ids=list(IMAGES), language="fallback", lengths=[64])
    assert EvalReport.of(chair, [answered("greedy")]).expected == ()
    monkeypatch.setattr(Chair, "stand_ins", lambda self: {})
    return chair


@pytest.mark.parametrize(
    ("answers", "figures"),
    [
        (answered("greedy"), ["CHAIRs", "CHAIRi"]),
        (answered("greedy", model="another/model"), []),
        (answered("greedy", model="another/model", preset="llava-1.5-7b"), ["CHAIRs", "CHAIRi"]),
        (answered("greedy", temperature=1.0), []),
        (answered("greedy", num_beams=5), []),
        (answered("sira"), []),
    ],
)
def test_only_greedy_decoding_of_a_known_model_is_compared(official, answers, figures):
    report = EvalReport.of(official, [answers])
    assert [each.figure for each in report.expected] == figures
    told = [each["figure"] for each in json.loads(report.to_json()).get("expected", [])]
    assert told == figures


def test_a_line_per_figure_and_the_remark_stand_below_the_table(official):
    report = EvalReport.of(official, [answered("greedy")])
    told = [line for line in report.table() if isinstance(line, str)]
    value = report.rows[0].figures["CHAIRs"].value
    verdict = {"near": "outside, but its interval reaches it"}[report.expected[0].verdict]
    assert f"greedy, 64 tokens, CHAIRs {value:.1f}: published 20.4 to 20.6 (2 rows): {verdict}" in told
    assert sum("`complete_sentences=` yes" in line for line in told) == 1
    assert EvalReport.from_json(report.to_json()).expected == report.expected


def test_answers_of_others_take_the_given_model(sira, tmp_path):
    """Each question answered yes: precision 50 %, recall 100 %, F1 66.7; the files are those of pope-audit."""
    labels = ["yes", "no"] * 4
    questions = [{"image": "0.jpg", "text": f"A {n}?", "label": label} for n, label in enumerate(labels)]
    path = lines(tmp_path / "coco_pope_random.json", questions)
    rows = [
        {"question_id": f"{n}", "label": label, "pred_2tok": "no", "pred_8tok": "yes", "top_token_id": 3869}
        for n, label in enumerate(labels, start=1)
    ]
    answers = tmp_path / "pope_random_2tok_vs_8tok.json"
    answers.write_text(json.dumps({"summary": {"n": 8}, "results": rows}, indent=2))
    run = ("eval", "pope", path, "--answers", f"greedy={answers}", "--json")
    report = json.loads(sira(*run, "-p", "llava-1.5-7b")[1])
    assert values(report)["coco random", "greedy", "F1"] == pytest.approx(200 / 3)
    assert [(each["figure"], each["verdict"]) for each in report["expected"]] == [("F1", "near")]
    assert "expected" not in json.loads(sira(*run)[1])


def test_two_files_of_answers_are_compared_one_by_one(sira, tmp_path):
    """McNemar's counts are the answers that only one of them gives rightly."""
    labels = ["yes", "no", "yes", "no"]
    questions = [{"image": f"{n}.jpg", "text": f"A {n}?", "label": label} for n, label in enumerate(labels)]
    path = lines(tmp_path / "coco_pope_random.json", questions)
    mine = lines(tmp_path / "mine.json", [{"answer": text} for text in ("Yes", "Yes", "Yes", "No")])
    rows = [
        {"question_id": n, "pred_2tok": "no", "pred_8tok": text} for n, text in enumerate(("yes", "no", "no", "no"), 1)
    ]
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps({"results": rows}, indent=1))
    run = ("eval", "pope", path, "--answers", f"pope-audit={audit}", f"greedy={mine}", "--json")
    (test,) = json.loads(sira(*run)[1])["tests"]
    assert test["first"] == "greedy"
    assert test["second"] == "pope-audit"
    assert test["only_first"] == 1
    assert test["only_second"] == 1


def test_an_unfinished_sentence_of_a_caption_can_be_left_out(scenes, demo):
    """As OPERA does; nothing else that a preset changes in texts is scored."""
    from sira_cli.eval.chair import Chair

    ids = [int(line) for line in (scenes / "coco" / "ids.txt").read_text().split()][:2]
    chair = Chair(scenes / "coco", ids=ids, language="fallback", lengths=[12])
    found = {}
    for complete in (False, True):
        preset = demo.preset.with_settings(complete_sentences=complete, suffix=" dog")
        asked = {"greedy": (preset, preset.method("greedy"))}
        run = Evaluation(chair, scenes / "images", asked)
        list(run.events(demo))
        found[complete] = run.answers[0].texts["12"]
    whole = demo.under(methods.find("greedy"), demo.preset.with_settings(max_new_tokens=12))
    for image, text in found[False].items():
        assert (
            text == whole.caption(scenes / "images" / chair.truth.names[int(image)], chair.parts[0].asks[0].prompt).text
        )
        ended = text.rfind(".") + 1
        assert found[True][image] == (text[:ended] if ended else text)
    assert found[True] != found[False]
