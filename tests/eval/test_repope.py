"""RePOPE: POPE's answers under corrected labels, to the digit, from one run."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.pope import Pope
from tests.support.eval.writing import lines

SAID = ("Yes", "No", "I see one, yes", "There is not", "Maybe", "", "NO", "nothing, yes?", "a cat")
SPLITS = ("random", "popular", "adversarial")


def corrected(path: Path, folder: Path) -> Path:
    """Write a file like RePOPE's: some labels turned, some questions left out, ids and texts kept."""
    draw = random.Random(path.name)
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if (fate := draw.random()) < 0.08:
            continue
        row["label"] = {"yes": "no", "no": "yes"}[row["label"]] if fate < 0.2 else row["label"]
        kept.append(row)
    return lines(folder / path.name.replace("_pope_", "_repope_"), kept)


def official(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """The figures of (label, answer), by RePOPE's rules: an answer without yes and no is in no cell."""
    read = [(label, "yes" if "yes" in said.lower() else "no") for label, said in pairs if _says(said)]
    tp, fp, tn, fn = (read.count(pair) for pair in (("yes", "yes"), ("no", "yes"), ("no", "no"), ("yes", "no")))
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    found = {"accuracy": (tp + tn) / len(read), "precision": precision, "recall": recall, "yes": (tp + fp) / len(read)}
    return {name: 100 * share for name, share in (found | {"F1": 2 / (1 / precision + 1 / recall)}).items()}


def _says(text: str) -> bool:
    return any(word in text.lower() for word in ("yes", "no"))


@pytest.fixture(scope="module")
def files(benchmarks: Path, tmp_path_factory) -> tuple[list[Path], list[Path]]:
    pope = [benchmarks / "pope" / "coco" / f"coco_pope_{split}.json" for split in SPLITS]
    folder = tmp_path_factory.mktemp("repope")
    return pope, [corrected(path, folder) for path in pope]


def test_both_from_the_same_answers_to_the_digit(files):
    pope, repope = files
    benchmark = Pope(pope, rule="repope", repope=repope[::-1])
    (part,) = benchmark.parts
    assert part.groups == (*(f"coco {split}" for split in SPLITS), *(f"coco {split}, RePOPE" for split in SPLITS))
    assert part.asks == Pope(pope).parts[0].asks  # nothing more is asked
    said = itertools.cycle(SAID)
    texts = {ask.id: next(said) for ask in part.asks}
    tallies = benchmark.score(part, texts)
    for split, path, new in zip(SPLITS, pope, repope, strict=True):
        for group, file in ((f"coco {split}", path), (f"coco {split}, RePOPE", new)):
            questions = [json.loads(line) for line in file.read_text().splitlines()]
            expected = official([(row["label"], texts[f"coco {split}/{row['question_id']}"]) for row in questions])
            found = benchmark.figures(group, tallies[group].total())
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-13)
            assert len(tallies[group].right) == len(questions)


def test_a_limit_is_on_pope_s_questions(files):
    pope, repope = files
    limited = Pope(pope[:1], repope=repope[:1], limit=30)
    tallies = limited.score(limited.parts[0], {ask.id: "Yes" for ask in limited.parts[0].asks})
    assert 20 < len(tallies["coco random, RePOPE"].right) < len(tallies["coco random"].right) == 30


def test_files_of_other_questions_name_the_first(files, tmp_path):
    pope, repope = files
    with pytest.raises(DataError, match=r"coco_repope_popular.json: question \d+, 'Is there .* is not in any of the"):
        Pope(pope[:1], repope=repope[1:2])
    with pytest.raises(SettingsError, match="another file is also of coco random"):
        Pope(pope, repope=[repope[0], repope[0]])
    with pytest.raises(DataError, match="line 1 is not JSON"):
        Pope(pope, repope=[lines(tmp_path / "a.json", []), *_damaged(tmp_path)])


def _damaged(folder: Path) -> list[Path]:
    (folder / "a.json").write_text('{"question_id": 1')
    return []
