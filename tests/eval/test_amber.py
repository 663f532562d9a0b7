"""AMBER: cases counted by hand, its files, and similar words."""

from __future__ import annotations

import json
import math
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import Answers
from sira_cli.eval.benchmark import ONE_WORD, Ask
from sira_cli.eval.report import EvalReport
from sira_cli.eval.similarity import OFFICIAL, find_similarity, vectors
from sira_cli.eval.statistics import MethodFigures
from tests.support.eval.benchmarks import ANSWERED, SAID, benchmark, figures, near
from tests.support.eval.writing import save

# What is asked.


def test_what_is_asked(amber, data):
    captions, questions = amber.parts
    assert captions.name == "generative"
    assert captions.task == "caption"
    assert captions.settings == {"max_new_tokens": 512}
    assert questions.name == "discriminative"
    assert questions.task == "ask"
    assert questions.settings == {"max_new_tokens": 16}
    (only,) = benchmark(data, task="discriminative", suffix="").parts
    assert only.asks[0].prompt == "Is it 4?"
    assert {ask.prompt for ask in benchmark(data, prompt="What?").parts[0].asks} == {"What?"}


# Counts.


def test_captions_counted_by_hand(amber):
    (part, _) = amber.parts
    (tally,) = amber.score(part, SAID).values()
    assert tally.right == {"1": True, "2": False, "3": True}
    assert amber.figures("generative", tally.total()) == {
        "CHAIR": 22.2,  # 2 of 9: sun and dog of the second
        "Cover": 62.5,  # 5 of 8
        "Hal": 33.4,  # 100 - 2 of 3.001
        "Cog": 25.0,  # 1 of 4
        "words": 7.0,
    }


def test_questions_counted_by_hand(amber):
    part = amber.parts[1]
    tallies = amber.score(part, ANSWERED)
    names = ("accuracy", "precision", "recall", "F1", "yes", "neither")
    own = {group: amber.figures(group, tally.total()) for group, tally in tallies.items()}
    assert {group: tuple(found[name] for name in names) for group, found in own.items()} == {
        "discriminative": (50.0, 75.0, 60.0, 66.7, 25.0, 25.0),
        "existence": (50.0, 99.9, 50.0, 66.6, 0.0, 50.0),
        "attribute": (50.0, 49.9, 49.9, 49.9, 50.0, 0.0),  # 1 of 2.003
        "state": (100.0, 99.9, 99.9, 99.9, 50.0, 0.0),
        "number": (0.0, 0.0, 0.0, 0.0, 100.0, 0.0),
        "action": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        "relation": (50.0, 99.9, 99.9, 99.9, 0.0, 50.0),
    }
    assert [id_ for id_, right in tallies["discriminative"].right.items() if right] == ["4", "5", "8", "11"]
    assert tallies["discriminative"].counts["c.jpg"]["answers"] == 3


def test_constants_of_the_script(amber):
    """Existence has its own; they show where nothing is answered."""
    counts = {"answers": 10_000, "right": 5_000, "no": 10_000, "answered no": 5_000, "rightly no": 5_000}
    assert [amber.figures(group, counts)["F1"] for group in ("existence", "discriminative")] == [66.6, 66.7]
    assert figures(amber, {}, {})["generative"] == {"CHAIR": 0.0, "Cover": 0.0, "Hal": 100.0, "Cog": 0.0, "words": 0.0}


@pytest.mark.parametrize(
    ("answer", "counted"), [("yes.", "Yes"), (" NO!\n", "No"), ("No, it is not.", "No"), ("It is. Yes", "It is. Yes")]
)
def test_only_yes_and_no_are_answers_and_those_of_sira_are_reduced(amber, answer, counted):
    captions, questions = amber.parts
    tally = amber.score(questions, {"4": answer})["state"]
    assert tally.right == {"4": False}
    assert tally.total()["answered no"] == 0
    assert tally.total()["neither"] == 1
    assert amber.reduce(questions, answer) == counted
    assert amber.reduce(captions, answer) == answer


def test_ambers_own_files(benchmarks):
    """Random answers, whose figures a restatement of the whole rule gave, too."""
    amber = benchmark(benchmarks / "amber", similarity=near())
    captions, questions = amber.parts
    assert len(captions.asks) == 1_004
    assert len(questions.asks) == 14_216
    assert len(amber.lexicon.vocabulary) == 418
    assert captions.asks[-1] == Ask("1004", "AMBER_1004.jpg", "Describe this image.")
    assert questions.asks[0].prompt == f"Is the sky sunny in this image?{ONE_WORD}"
    draw, texts = random.Random(0), {}
    words = [*sorted(amber.lexicon.vocabulary), *sorted(amber.lexicon.safe), "view"]
    for ask in captions.asks:
        pools = amber.annotations[ask.id].truth * 3, amber.annotations[ask.id].hallu, words
        texts[ask.id] = " ".join(draw.choice(draw.choice(pools)) for _ in range(draw.randint(0, 20)))
    found = figures(amber, texts, {ask.id: draw.choice(["Yes", "No", "No", "Yes.", ""]) for ask in questions.asks})
    assert {group: [*map(float, each.values())][:4] for group, each in found.items()} == {
        "generative": [21.3, 59.4, 68.0, 60.3],
        "discriminative": [33.5, 65.8, 40.5, 50.1],
        "existence": [40.7, 100.0, 40.7, 57.8],
        "attribute": [30.0, 49.5, 40.6, 44.6],
        "state": [30.0, 49.6, 41.1, 44.9],
        "number": [31.4, 50.7, 41.9, 45.9],
        "action": [26.6, 45.4, 33.8, 38.7],
        "relation": [27.9, 39.6, 38.6, 39.1],
    }


def test_rounded_figures_have_the_intervals_of_exact_ones(amber):
    tally = amber.score(amber.parts[1], ANSWERED)["discriminative"]
    compared = MethodFigures.of({"x": tally}, lambda of: {"a": 100 * of["right"] / of["answers"]}, {"a": ["answers"]})
    expected = compared.figures("x")["a"]
    rows = EvalReport.of(amber, [Answers("x", {"discriminative": ANSWERED})]).rows
    (found,) = (row.figures["accuracy"] for row in rows if row.group == "discriminative")
    assert [found.value, found.low, found.high] == pytest.approx([50, expected.low, expected.high], abs=0.05)


# AMBER's own files.


@pytest.mark.parametrize(
    ("file", "place", "changes", "message"),
    [
        ("annotations", 1, {"id": 3}, r"annotations.json: row 2: expected id 2, got 3"),
        ("annotations", 1, {"truth": ["man"]}, r"row 2: truth: 'man' is not in relation.json"),
        ("annotations", 3, {"truth": "Yes"}, r"row 4: truth must be yes or no, got 'Yes'"),
        ("query/query_generative", 1, {"id": 4}, r"row 2: id 4 is annotated as discriminative-attribute-state, expec"),
    ],
)
def test_data_that_are_not_ambers_are_named(data, file, place, changes, message):
    path = data / f"{file}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content[place].update(changes)
    save(path, content)
    with pytest.raises(DataError, match=message):
        benchmark(data)


# Similar words.


@pytest.mark.parametrize(("cosine", "above"), [(0.8, False), (math.nextafter(0.8, 1), True)])
def test_similar_is_above_the_threshold_not_at_it(cosine, above):
    pytest.importorskip("spacy", reason="the extra `eval` is not installed")
    word = SimpleNamespace(similarity=lambda other: cosine)
    nlp = type("Nlp", (), {"meta": {"lang": "en", "name": "x", "version": "1"}, "__call__": lambda self, text: word})
    assert vectors(nlp()).above("sky", "cloud") == above


def test_the_official_pipeline_or_none(tmp_path, monkeypatch, recwarn):
    spacy = pytest.importorskip("spacy", reason="the extra `eval` is not installed")
    nlp, load = spacy.blank("en", meta={"name": "core_web_lg", "version": "3.8.0"}), spacy.load
    nlp.vocab.set_vector("sky", np.array([1.0, 0.0], dtype="f"))
    nlp.to_disk(tmp_path)
    monkeypatch.setattr(spacy, "load", lambda name: load({OFFICIAL: tmp_path}[name]))
    official = find_similarity("spacy")
    facts = {"name": OFFICIAL, "version": "3.8.0", "spacy": spacy.__version__, "threshold": 0.8}
    assert official.facts() == facts
    assert official.official is True
    assert official.above("unknown", "unknown")  # a word without a vector
    assert not official.above("unknown", "sky")
    assert not recwarn.list
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(SettingsError, match=r"pip install 'nltk>=.* 'spacy>=.*spacy download en_core_web_lg.*exact"):
        find_similarity("spacy")
    exact = find_similarity("auto")
    assert exact.above("sky", "sky") is True
    assert exact.above("sky", "skies") is False
    assert exact.facts() == {"name": "exact"}
