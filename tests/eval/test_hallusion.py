"""HallusionBench: the figures of utils.py on the real questions, VLMEvalKit's reading, a run on drawn pictures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.answers.texts import Answers
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.hallusion import CARD, EVERYTHING, KEY, extracted
from sira_cli.eval.report import EvalReport
from tests.support.eval.drawn import hallusion
from tests.support.eval.writing import save

SAID = (
    *("Yes, it is.", "No.", "I am not sure.", "Yes and no, it depends.", "no, the two differ (slightly)", "yes"),
    *("It is not.", "Yes."),
)
FIGURES = (
    *("qAcc", "fAcc", "easy", "hard", "aAcc", "inconsistent", "wrong", "per figure", "yes diff", "FP ratio"),
    *("LH", "VI", "mixed"),
)
# Made with the authors' utils.py at 744007c from the answers of `text`: its GPT-4 says correct (1), incorrect (0) or
# unclear (2) as the words do, and `same` where both are yes or both no. qAcc of "with pictures" is VLMEvalKit's.
GOLDEN = """
0 | all questions | 7.4725 4.3353 26.1538 23.2558 33.8353 54.3353 41.3295 27.5169 14.2604 60.7764 13.7885 73.494 12.7175
0 | all questions of VS | 6.7416 4.3103 21.3483 22.4359 40.8922 58.6207 37.069 28.556 14.4981 62.2642 32.3899 46.2264 21.3836
0 | VD | 7.9422 4.3478 29.2419 23.7226 27.4112 52.1739 43.4783 26.9928 14.044 59.6737 0.0 93.7063 6.2937
0 | with pictures | 8.5714 4.3353 29.3065 23.2558 28.286 54.3353 41.3295 27.5169 16.6141 61.5836 - - -
0 | VS | - 4.3103 29.4118 22.4359 29.7222 58.6207 37.069 28.556 20.8333 64.8221 - - -
0 | VD ocr | 9.3023 6.9767 32.5581 27.907 30.3371 48.8372 44.186 31.0078 0.0 50.0 0.0 91.9355 8.0645
3 | all questions | 7.9121 5.4913 28.1319 25.5814 35.961 56.6474 37.8613 30.5515 15.1461 61.8257 16.3209 70.9544 12.7248
3 | all questions of VS | 7.3034 4.3103 21.9101 22.4359 40.3346 55.1724 40.5172 28.8434 10.9665 59.19 36.7601 41.433 21.8069
3 | VD | 8.3032 6.087 32.13 27.3723 31.9797 57.3913 36.5217 31.413 18.9509 63.9303 0.0 94.5274 5.4726
3 | with pictures | 9.011 5.4913 30.8725 25.5814 31.4406 56.6474 37.8613 30.5515 17.6656 62.8834 - - -
3 | VS | - 4.3103 28.8235 22.4359 30.5556 55.1724 40.5172 28.8434 15.5556 61.2 - - -
3 | VD ocr | 11.6279 6.9767 37.2093 20.9302 30.3371 44.186 48.8372 29.845 6.7416 54.8387 0.0 96.7742 3.2258
"""  # noqa: E501


def text(key: str, shift: int) -> str:
    """An answer that looks random, and is the same in the script that made GOLDEN."""
    return SAID[(int(hashlib.sha256(key.encode()).hexdigest(), 16) + shift) % len(SAID)]


@pytest.fixture(scope="module")
def real(benchmarks) -> Path:
    return benchmarks / "hallusionbench"


def answered(real: Path, tmp_path: Path, shift: int, *, blind: bool = True) -> Path:
    """HallusionBench_result.json as the authors ask for it."""
    data = json.loads((real / "HallusionBench.json").read_text())
    found = [row | {"model_prediction": text("_".join(row[name] for name in KEY), shift)} for row in data]
    return save(tmp_path / "result.json", [row for row in found if blind or row["visual_input"] != "0"])


@pytest.mark.parametrize("golden", GOLDEN.strip().splitlines())
def test_figures_are_the_script_s(real, tmp_path, golden):
    shift, group, expected = golden.split(" | ")
    benchmark = CARD.read(real, Asking())
    texts = benchmark.read([answered(real, tmp_path, int(shift))])
    assert {name: len(of) for name, of in texts.items()} == {"hallusionbench": 951, EVERYTHING: 1129}
    part = next(part for part in benchmark.parts if group in part.groups)
    found = benchmark.figures(group, benchmark.score(part, texts[part.name])[group].total())
    known = {name: float(value) for name, value in zip(FIGURES, expected.split(), strict=True) if value != "-"}
    assert {name: round(found[name], 4) for name in known} == known
    assert ("LH" in found) == (group.startswith(("all", "VD")))


def test_answers_about_pictures_alone(real, tmp_path):
    """As VLMEvalKit and lmms-eval ask: 951 questions, with no second part."""
    benchmark = CARD.read(real, Asking())
    path = answered(real, tmp_path, 0, blind=False)
    assert {name: len(of) for name, of in benchmark.read([path]).items()} == {"hallusionbench": 951}
    assert [part.name for part in benchmark.parts] == ["hallusionbench"]
    kit = [
        {
            "index": f"{row['category']}_{row['subcategory']}_{row['visual_input']}_"
            f"{row['set_id']}_{row['figure_id']}_{row['question_id']}",
            "question": row["question"],
            "category": row["category"],
            "prediction": row["model_prediction"],
        }
        for row in json.loads(path.read_text())
    ]
    harness = [
        {"filtered_resps": [row["model_prediction"]], "doc": {name: row[name] for name in KEY}}
        for row in json.loads(path.read_text())
    ]
    expected = benchmark.read([path])
    assert benchmark.read([save(tmp_path / "kit.json", kit)]) == expected
    assert benchmark.read([save(tmp_path / "harness.json", harness)]) == expected
    (file,) = benchmark.export(expected, tmp_path)
    assert benchmark.read([file]) == expected


def test_methods_with_and_without_blind_answers_stand_in_one_report(real, tmp_path):
    benchmark = CARD.read(real, Asking())
    first = Answers("seen", benchmark.read([answered(real, tmp_path, 0, blind=False)]))
    second = Answers("all", benchmark.read([answered(real, tmp_path, 3)]))
    report = EvalReport.of(benchmark, [first, second])
    groups = {(row.group, row.method) for row in report.rows}
    assert {("with pictures", "seen"), ("with pictures", "all"), (EVERYTHING, "all")} <= groups
    assert (EVERYTHING, "seen") not in groups
    assert set(report.stand_ins) == {"hallusionbench", EVERYTHING}
    for part in benchmark.parts:
        assert len(list(benchmark.details(part, second.texts[part.name]))) == len(part.asks)
    limited = CARD.read(real, Asking(limit=2))
    limited.read([answered(real, tmp_path, 3)])
    assert [part.name for part in limited.parts] == ["hallusionbench"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Yes, it is.", "yes"),
        ("No.yes", ""),
        ("yes/no", ""),
        ("Yes and no: it depends", "yes"),
        ("Yes, or no?", ""),
        ("yes-man - no", "no"),
        ("", ""),
    ],
)
def test_answers_are_read_as_by_vlmevalkit(answer, expected):
    assert extracted(answer) == expected


def test_prompts_limits_and_pictures(real):
    benchmark = CARD.read(real, Asking())
    asks = benchmark.parts[0].asks
    assert (len(asks), len({ask.picture for ask in asks})) == (951, 346)
    assert asks[0].picture == "VS/chart/0_1.png"
    assert not any(ask.prompt.endswith(ONE_WORD) for ask in asks)
    ours = CARD.read(real, Asking("ours", 2))
    assert all(ask.prompt.endswith(ONE_WORD) for ask in ours.parts[0].asks)
    assert len({ask.picture.rsplit("_", 1)[0] for ask in ours.parts[0].asks}) == 2


def test_a_missing_answer_leaves_out_its_whole_set(real, tmp_path):
    benchmark = CARD.read(real, Asking())
    texts = benchmark.read([answered(real, tmp_path, 0)])["hallusionbench"]
    one = next(iter(texts))
    gone = [key for key in texts if key.split("_")[:3] == one.split("_")[:3]]
    del texts[one]
    (tally,) = [
        found for group, found in benchmark.score(benchmark.parts[0], texts).items() if group == "with pictures"
    ]
    assert len(tally.right) == 951 - len(gone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gt_answer": "2"}, "row 1: expected gt_answer 0 or 1"),
        ({"question_id": "1"}, "row 2: VD_drawn_0_0_1 stands twice"),
    ],
)
def test_damaged_files_end_in_one_line(tmp_path, change, message):
    folder = hallusion(tmp_path)
    path = folder / "HallusionBench.json"
    data = json.loads(path.read_text())
    save(path, [data[0] | change, *data[1:]])
    with pytest.raises(DataError, match=message):
        CARD.read(folder, Asking())
    save(path, [row | {"visual_input": "0"} for row in data])
    with pytest.raises(DataError, match="no questions about pictures"):
        CARD.read(folder, Asking())
