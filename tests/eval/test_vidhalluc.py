"""VidHalluc: the accuracies that the authors' scripts print for made answers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.card import Asking
from sira_cli.eval.vidhalluc import CARD, FILES, order_in
from tests.support.eval.writing import save

CHOICES = {"A": "Cut a pear", "B": "Peel a pear", "C": "Wash a pan", "D": "None of these"}
SAID = {
    "binary": ["Yes", "yes, it is", "No.", " NO, it's not", "yes it is", "Yes.No", ""],
    "choice": ["A", "B. Peel a pear", "A, B", "AB", "they wash a pan", "c", "It is D and A", "I see nothing"],
    "order": [
        *("AB", "ba", "a", "Action A happens before Action B.", "Action B happens before Action A", "action b"),
        *("First action b, then action a", "Action A comes after action B", "It is not clear", "B. then A.", "?"),
        *(
            "Action A and action B",
            "Action a. They go then to Action B, which is before",
            "action b) after a) action a",
        ),
    ],
}
# Printed by the scripts: right questions, and all.
GOLDEN = {"binary": (10, 80), "choice": (11, 80), "order": (6, 40)}
ORDERS = ["AB", "BA", "A", "AB", "BA", "B", "BA", "AB", "", "", "", "AB", "AB", ")B"]  # "None" is empty here


def folder_of(root: Path, entries: int = 40) -> Path:
    """Questions in the authors' form, with words of our own."""
    draw = random.Random(0)
    binary = {
        f"{key}": [
            {"q": f"Is it {key}{number}?", "a": {f"c{key}_clip_{clip}": draw.choice(("Yes", "No")) for clip in (1, 2)}}
            for number in range(2)
        ]
        for key in range(entries)
    }
    choice = {
        f"{key}": {
            f"c{key}_clip_{clip}": {
                "Question": f"What is {key}?",
                "Choices": CHOICES,
                "Correct Answer": draw.choice(("A", "B", "C", "A, B", "AD")),
            }
            for clip in (1, 2)
        }
        for key in range(entries)
    }
    order = {
        f"{key}": {
            "video": f"t{key}_1",
            "Question": f"A or B {key}? ",
            "Correct Answer": draw.choice(("AB", "BA", "A")),
        }
        for key in range(entries)
    }
    for name, rows in zip(FILES.values(), (binary, choice, order), strict=True):
        save(root / name, rows)
    return root


def test_figures_are_those_of_the_authors_scripts(tmp_path):
    """The scripts were run on the files that `export` writes: eval_bqa.py, eval_mcq.py, eval_tsh.py."""
    benchmark = CARD.read(folder_of(tmp_path), Asking())
    draw = random.Random(1)
    texts = {each.id: draw.choice(SAID[each.group]) for each in benchmark.questions}
    (tmp_path / "said").mkdir()
    files = benchmark.export({benchmark.name: texts}, tmp_path / "said")
    assert [file.name for file in files] == list(FILES.values())
    assert json.loads(files[0].read_text())["3"][1]["a"].keys() == {"c3_clip_1", "c3_clip_2"}
    some = {id_: text for id_, text in texts.items() if not id_.startswith("binary/3/0/")}
    benchmark.export({benchmark.name: some}, tmp_path / "said")
    (row,) = json.loads(files[0].read_text())["3"]
    assert (row["q"], row["a"].keys()) == ("Is it 31?", {"c3_clip_1", "c3_clip_2"})
    tallies = benchmark.score(benchmark.parts[0], texts)
    totals = {group: tally.total() for group, tally in tallies.items()}
    assert {group: (total["right"], total["asked"]) for group, total in totals.items()} == GOLDEN
    assert benchmark.figures("order", totals["order"])["accuracy"] == pytest.approx(100 * GOLDEN["order"][0] / 40)


def test_orders():
    assert [order_in(text) for text in SAID["order"]] == ORDERS


def test_questions_in_the_words_of_the_authors(tmp_path):
    folder = folder_of(tmp_path, entries=2)
    asks = CARD.read(folder, Asking(limit=1)).parts[0].asks
    assert [each.picture for each in asks] == [*["ACH/c0_clip_1.mp4", "ACH/c0_clip_2.mp4"] * 3, "TSH/t0_1.mp4"]
    assert asks[0].prompt == "Is it 00? Only answer with a single word 'Yes' or 'No'."
    assert asks[4].prompt.endswith("ABCD)\nChoices:\nA. Cut a pear\nB. Peel a pear\nC. Wash a pan\nD. None of these\n")
    assert asks[6].prompt.startswith("A or B 0? Sort these two actions in the order they occur in the video")
    save(folder / FILES["order"], {"0": {"video": "t0_1"}})
    with pytest.raises(DataError, match=r"tsh\.json: 0: expected Question"):
        CARD.read(folder, Asking())
