"""MME: the script's figures, its files of results, and a run on drawn pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.base import ONE_WORD
from sira_cli.eval.card import Asking
from sira_cli.eval.mme import CARD, COGNITION, PERCEPTION, Mme
from tests.support.eval.helpers import rows, values
from tests.support.eval.writing import lines, save

SAID = (
    "Yes",
    "No",
    "no.",
    "The answer is yes",
    "Yes, no",
    " yes",
    "",
    "nay",
    "oyes",
    "I do not know",
    "NO",
    "\nNo",
    "   no",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All subsets, with five pictures each, which need not be there."""
    for subset in (*PERCEPTION, *COGNITION):
        for number in range(5):
            questions = (
                f"Is it {number}? Please answer yes or no.\tYes",
                f"Is it {number + 9}? Please answer yes or no.\tNo",
            )
            save(tmp_path / "mme" / subset / f"{number}.txt", "\n".join(questions) + "\n")
    return tmp_path / "mme"


def answers(benchmark: Mme, shift: int) -> dict[str, str]:
    return {
        each.id: each.expected if (7 * place + shift) % 10 < 6 else SAID[(place + shift) % len(SAID)]
        for place, each in enumerate(benchmark.questions)
    }


def official(file: Path) -> tuple[float, float]:
    """acc and acc_plus of a file of results, as process_result counts: two lines per picture."""
    right = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        _, _, truth, said = line.split("\t")
        said = said.lower()
        label = said if said in ("yes", "no") else next((word for word in ("yes", "no") if word in said[:4]), "other")
        right.append(label == truth.lower())
    pairs = [right[at : at + 2] for at in range(0, len(right), 2)]
    return sum(right) / len(right), sum(pair == [True, True] for pair in pairs) / len(pairs)


@pytest.fixture
def drawn(scenes: Path, tmp_path: Path) -> Path:
    """The four subsets of drawn scenes, and `posters` with its two folders."""
    folder = shutil.copytree(scenes / "mme", tmp_path / "drawn")
    for inside, suffix in (("images", ".png"), ("questions_answers_YN", ".txt")):
        (folder / "posters" / inside).mkdir(parents=True)
        for path in (folder / "existence").glob(f"*{suffix}"):
            shutil.copy(path, folder / "posters" / inside)
    return folder


@pytest.mark.parametrize("shift", [0, 6])
def test_figures_are_the_script_s(folder, tmp_path, shift):
    benchmark = CARD.read(folder, Asking())
    texts = answers(benchmark, shift)
    files = benchmark.export({"mme": texts}, tmp_path)
    assert [file.stem for file in files] == [*PERCEPTION, *COGNITION]
    tallies = benchmark.score(benchmark.parts[0], texts)
    scores = {}
    for file in files:
        accuracy, plus = official(file)
        found = benchmark.figures(file.stem, tallies[file.stem].total())
        scores[file.stem] = 100 * accuracy + 100 * plus
        expected = {"accuracy": 100 * accuracy, "accuracy+": 100 * plus, "score": scores[file.stem]}
        assert {name: found[name] for name in expected} == pytest.approx(expected)
    for total, subsets in (("perception", PERCEPTION), ("cognition", COGNITION), ("hallucination", PERCEPTION[:4])):
        found = benchmark.figures(total, tallies[total].total())
        assert found["score"] == pytest.approx(sum(scores[subset] for subset in subsets))
        assert found["accuracy"] + found["accuracy+"] == pytest.approx(found["score"] / len(subsets))


def test_files_of_results_are_read(folder, tmp_path):
    benchmark = CARD.read(folder, Asking())
    texts = {each.id: "Yes" for each in benchmark.questions}
    assert benchmark.read(benchmark.export({"mme": texts}, tmp_path)) == {"mme": texts}
    given = [
        {"question_id": each.picture, "prompt": f"{each.text}\nAnswer the question using a single word.", "text": "Yes"}
        for each in benchmark.questions
    ]
    assert benchmark.read([lines(tmp_path / "llava.jsonl", given)]) == {"mme": texts}
    samples = [
        {"doc": {"question_id": each.picture}, "filtered_resps": ["Yes"], "input": each.text.partition(" Please")[0]}
        for each in benchmark.questions
    ]
    assert benchmark.read([lines(tmp_path / "samples_mme.jsonl", samples)]) == {"mme": texts}


def test_subsets_that_are_missing_are_left_out(drawn):
    benchmark = CARD.read(drawn, Asking())
    assert benchmark.parts[0].groups == ("existence", "count", "position", "color", "posters", "hallucination")
    assert benchmark.questions[-1].picture.startswith("posters/images/")
    assert benchmark.questions[0].picture.endswith(".png")


def test_prompts_and_limit(folder):
    benchmark, ours = (CARD.read(folder, Asking(wording, limit=1)) for wording in ("official", "ours"))
    assert len(benchmark.questions) == 2 * 14
    assert benchmark.parts[0].asks[0].prompt == "Is it 0? Please answer yes or no."
    assert ours.parts[0].asks[0].prompt == "Is it 0?" + ONE_WORD


def test_damaged_results_name_the_line(folder, tmp_path):
    benchmark = CARD.read(folder, Asking())
    with pytest.raises(DataError, match=r"count.txt: line 1: expected image, question, label, text with tabs"):
        benchmark.read([save(tmp_path / "count.txt", "0.jpg\tIs it?\n")])
    with pytest.raises(DataError, match=r"count.txt: line 1: answers no question of mme"):
        benchmark.read([save(tmp_path / "count.txt", "7.jpg\tIs it?\tYes\tNo\n")])


def test_a_run_on_drawn_pictures(sira, drawn, loaded, tmp_path):
    folder = drawn
    command = ("eval", "mme", folder, "--json", "--option", "wording=ours", "--no-controls")
    code, out, _ = sira(
        *command, "--images", folder, "-p", "demo", "-b", 8, "-o", tmp_path / "out", "--export", "official"
    )
    report = json.loads(out)
    assert code == 0
    assert [group for group, method in rows(report) if method == "sira"][-1] == "hallucination"
    found = values(report)
    for subset in ("existence", "posters"):
        accuracy, plus = official(tmp_path / "out" / "official" / "sira" / f"{subset}.txt")
        assert found[subset, "sira", "score"] == pytest.approx(100 * (accuracy + plus))
    asked = loaded.total()
    code, out, _ = sira(*command, "--answers", tmp_path / "out")
    assert (values(json.loads(out)), loaded.total()) == (found, asked)
