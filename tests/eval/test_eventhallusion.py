"""EventHallusion: the figures of the authors' eval.py for three models' published predictions, and a run on clips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.eventhallusion import CARD, SPLITS, EventHallusion
from tests.support.clips import write_clip
from tests.support.eval.writing import save

# True answers, and the beginnings of answers in the authors' predictions: y, n, - for neither.
SAID = json.loads((Path(__file__).parents[1] / "data" / "eventhallusion.json").read_text())
WORDS = {"y": "Yes, it is.", "n": "NO", "-": "I see no cat."}
# Printed by eval.py: right answers, questions and accuracy by split, and in all.
FIGURES = {
    "video_llava": {
        "entire": (35, 114, 0.30701754385964913),
        "interleave": (130, 193, 0.6735751295336787),
        "misleading": (42, 102, 0.4117647058823529),
        "overall": (207, 409, 0.5061124694376528),
    },
    "gpt4o": {
        "entire": (75, 114, 0.6578947368421053),
        "interleave": (175, 193, 0.9067357512953368),
        "misleading": (94, 102, 0.9215686274509803),
        "overall": (344, 409, 0.8410757946210269),
    },
    "gemini": {
        "entire": (80, 114, 0.7017543859649122),
        "interleave": (150, 193, 0.7772020725388601),
        "misleading": (98, 102, 0.9607843137254902),
        "overall": (328, 409, 0.8019559902200489),
    },
}


def folder_of(root: Path, labels: dict[str, str]) -> Path:
    """Questions in the authors' form, with words of our own: two about the first clip of a split."""
    for split, answers in labels.items():
        clips = [answers[:2], *answers[2:]]
        rows = [
            {
                "id": f"{split}_{number}",
                "questions": [
                    {"question": f"Is it {number}{letter}?", "answer": {"y": "Yes.", "n": "No."}[each]}
                    for letter, each in zip("ab", clip, strict=False)
                ],
            }
            for number, clip in enumerate(clips)
        ]
        save(root / "questions" / f"{split}_questions.json", rows)
    return root


@pytest.fixture
def benchmark(tmp_path) -> EventHallusion:
    return CARD.read(folder_of(tmp_path, {split: SAID[split]["labels"] for split in SPLITS}), Asking())


@pytest.mark.parametrize("model", FIGURES)
def test_figures_are_those_of_the_authors_script(benchmark, tmp_path, model):
    said = "".join(SAID[split][model] for split in SPLITS)
    texts = {each.id: WORDS[letter] for each, letter in zip(benchmark.questions, said, strict=True)}
    (file,) = benchmark.export({"eventhallusion": texts}, tmp_path)
    assert benchmark.read([file]) == {"eventhallusion": texts}
    tallies = benchmark.score(benchmark.parts[0], texts)
    for group, (right, asked, accuracy) in FIGURES[model].items():
        total = tallies[group].total()
        assert (sum(tallies[group].right.values()), total["answers"]) == (right, asked)
        assert benchmark.figures(group, total)["accuracy"] == pytest.approx(100 * accuracy, abs=1e-12)
    assert benchmark.figures("overall", tallies["overall"].total())["neither"] == pytest.approx(
        100 * said.count("-") / 409
    )


def test_files_of_predictions(benchmark, tmp_path):
    (file,) = benchmark.export({"eventhallusion": {each.id: "Yes" for each in benchmark.questions}}, tmp_path)
    found = json.loads(file.read_text())
    assert {split: len(clips) for split, clips in found.items()} == {
        "entire": 113,
        "interleave": 192,
        "misleading": 101,
    }
    assert found["entire"]["entire_0"]["qa"][1] == {"question": "Is it 0b?", "answer": "No.", "prediction": "Yes"}
    found["entire"]["entire_0"]["qa"][0]["prediction"] = None  # as where a model failed
    assert benchmark.read([save(file, found)])["eventhallusion"]["entire_0/1"] == ""
    with pytest.raises(DataError, match="expected splits with clips"):
        benchmark.read([save(file, {"entire": {"entire_0": {}}})])


def test_clips_are_asked_about(sira, tmp_path):
    folder = folder_of(tmp_path / "eh", dict.fromkeys(SPLITS, "yn"))
    for split in SPLITS:
        (folder / "videos" / split).mkdir(parents=True)
        write_clip(folder / "videos" / split / f"{split}_0.mp4", frames=5)
    command = ("eval", "eventhallusion", folder, "--images", folder / "videos", "-p", "demo", "--set", "clip.frames=2")
    code, out, err = sira(*command, "--json", "--method", "greedy", "-o", tmp_path / "out")
    assert code == 0, err
    assert json.loads(out)["benchmark"] == "eventhallusion"
    (records,) = (tmp_path / "out").rglob("*.jsonl")
    asked = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(each["media"], len(each["frames"])) for each in asked] == [("video", 2)] * 6
    assert asked[0]["prompt"] == "Is it 0a?\nPlease answer yes or no:"
    assert CARD.read(folder, Asking("ours", limit=1)).parts[0].asks[1].prompt == f"Is it 0b?{ONE_WORD}"
