"""AMBER: cases counted by hand."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.amber import Judged, Lexicon, opened
from sira_cli.eval.benchmark import ONE_WORD, Ask, Asking
from sira_cli.eval.similarity import EQUAL, Similarity
from tests.support.eval.amber_data import ANSWERED, QUESTIONS, RELATION, SAID, benchmark, figures, lay_out, near, write


def test_what_is_asked(amber, data):
    captions, questions = amber.parts
    assert amber.name == "amber"
    assert (captions.name, captions.task, captions.settings) == ("generative", "caption", {"max_new_tokens": 512})
    assert (questions.name, questions.task, questions.settings) == ("discriminative", "ask", {"max_new_tokens": 16})
    assert captions.asks[0] == Ask("1", "a.jpg", "Describe this image.")
    assert questions.asks[0] == Ask("4", "a.jpg", "Is it 4? Please answer this question with one word.")
    assert [len(part.asks) for part in amber.parts] == [3, 8]
    (only,) = benchmark(data, parts=["discriminative"], suffix="").parts
    assert only.asks[0].prompt == "Is it 4?"


def test_one_file_of_queries_does_for_both_parts(amber, data):
    files = [data / "query" / f"query_{part.name}.json" for part in amber.parts]
    both = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    edited = [{**row, "image": f"{row['id']}.jpg"} for row in both]
    write(data / "query" / "query_all.json", edited)
    assert benchmark(data).parts == amber.parts  # the files of their own come first
    for file in files:
        file.unlink()
    write(data / "query" / "query_all.json", edited[:3])
    with pytest.raises(DataError, match=r"query_all.json: holds no queries of discriminative"):
        benchmark(data)
    write(data / "query" / "query_all.json", edited)
    assert [[ask.picture for ask in part.asks][:2] for part in benchmark(data).parts] == [
        ["1.jpg", "2.jpg"],
        ["4.jpg", "5.jpg"],
    ]


def judge(nouns: str, truth: str, hallu: str = "", similar: Similarity = EQUAL) -> Judged:
    lexicon = Lexicon({word: tuple(related) for word, related in RELATION.items()}, frozenset({"light"}))
    return lexicon.judge(nouns.split(), truth.split(), hallu.split(), similar.above)


@pytest.mark.parametrize(
    ("nouns", "truth", "hallu", "expected"),
    [
        ("dog dog", "sky", "", ("dog dog", "dog dog", "", "")),
        ("light", "sky", "light", ("light", "", "", "")),
        ("woman", "sky person", "", ("woman", "", "person", "")),
        ("bush", "tree forest", "", ("bush", "", "tree", "")),
        ("ship boat", "ship ship", "", ("ship boat", "", "ship", "")),
        ("puppy", "dog", "puppy", ("puppy", "", "dog", "")),
    ],
)
def test_equal_words(nouns, truth, hallu, expected):
    assert judge(nouns, truth, hallu) == Judged(*(tuple(words.split()) for words in expected))


@pytest.mark.parametrize(
    ("nouns", "truth", "hallu", "expected"),
    [
        ("sun", "sky cloud", "", ("sun", "", "cloud", "")),
        ("sun", "cloud", "sun", ("sun", "", "cloud", "sun")),
        ("sun", "sky", "cloud sun", ("sun", "sun", "", "cloud sun")),
        ("man", "sky tree", "", ("man", "", "tree", "")),
    ],
)
def test_similar_words(nouns, truth, hallu, expected):
    similar = near({"sun", "cloud"}, {"man", "forest"})
    judged = judge(nouns, truth, hallu, similar)
    assert (*map(" ".join, (judged.mentions, judged.hallucinated, judged.covered, judged.cognitive)),) == expected


def test_captions_counted_by_hand(amber):
    (part, _) = amber.parts
    (tally,) = amber.score(part, SAID).values()
    assert tally.counts["a.jpg"] == {
        "answers": 1,
        "clean answers": 1,
        "mentions": 4,
        "hallucinated mentions": 0,
        "truth": 5,
        "covered truth": 3,
        "hallu words": 2,
        "marked hallu words": 0,
        "words": 10,
    }
    assert tally.right == {"1": True, "2": False, "3": True}
    assert amber.figures("generative", tally.total()) == {
        "CHAIR": 22.2,  # 2 of 9: sun and dog of the second
        "Cover": 62.5,  # 5 of 8
        "Hal": 33.4,  # 100 - 2 of 3.001
        "Cog": 25.0,  # 1 of 4
        "words": 7.0,
    }
    assert list(amber.details(part, SAID))[1:] == [
        {
            "id": "2",
            "image": "b.jpg",
            "response": SAID["2"],
            "mentions": ["sun", "light", "dog", "man"],
            "hallucinated": ["sun", "dog"],
            "covered": ["person"],
            "cognitive": ["sun"],
        },
        {
            "id": "3",
            "image": "c.jpg",
            "response": "The sun.",
            "mentions": ["sun"],
            "hallucinated": [],
            "covered": ["cloud"],
            "cognitive": [],
        },
    ]


def test_questions_counted_by_hand(amber):
    part = amber.parts[1]
    tallies = amber.score(part, ANSWERED)
    names = ("accuracy", "precision", "recall", "F1", "yes", "neither")
    expected = {
        "discriminative": (50.0, 75.0, 60.0, 66.7, 25.0, 25.0),
        "existence": (50.0, 99.9, 50.0, 66.6, 0.0, 50.0),
        "attribute": (50.0, 49.9, 49.9, 49.9, 50.0, 0.0),  # 1 of 2.003
        "state": (100.0, 99.9, 99.9, 99.9, 50.0, 0.0),
        "number": (0.0, 0.0, 0.0, 0.0, 100.0, 0.0),
        "action": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        "relation": (50.0, 99.9, 99.9, 99.9, 0.0, 50.0),
    }
    assert {group: amber.figures(group, tally.total()) for group, tally in tallies.items()} == {
        group: dict(zip(names, values, strict=True)) for group, values in expected.items()
    }
    assert list(tallies) == list(part.groups)
    assert [id_ for id_, right in tallies["discriminative"].right.items() if right] == ["4", "5", "8", "11"]
    assert set(tallies["relation"].counts) == {"c.jpg"}
    assert tallies["discriminative"].counts["c.jpg"]["answers"] == 3
    detail = list(amber.details(part, ANSWERED))[5]
    query = next(ask.prompt for ask in part.asks if ask.id == "9")
    assert detail == {"id": "9", "image": "c.jpg", "query": query, "truth": "no", "response": "No.", "right": False}


def test_existence_has_a_constant_of_its_own(amber):
    counts = {"answers": 10_000, "right": 5_000, "no": 10_000, "answered no": 5_000, "rightly no": 5_000}
    assert amber.figures("existence", counts)["F1"] == 66.6
    assert amber.figures("discriminative", counts)["F1"] == 66.7


def test_nothing_answered(amber):
    every = figures(amber, {}, {})
    assert every["generative"] == {"CHAIR": 0.0, "Cover": 0.0, "Hal": 100.0, "Cog": 0.0, "words": 0.0}
    assert set(every["state"].values()) == {0.0}


@pytest.mark.parametrize(("answer", "id_"), [("No.", "4"), ("no", "5"), (" No", "4"), ("", "5")])
def test_only_yes_and_no_are_answers(amber, answer, id_):
    tally = amber.score(amber.parts[1], {id_: answer})["state"]
    assert tally.right == {id_: False}
    assert (tally.total()["answered no"], tally.total()["neither"]) == (0, 1)


@pytest.mark.parametrize(
    ("answer", "counted"), [("yes.", "Yes"), (" NO!\n", "No"), ("No, it is not.", "No"), ("It is. Yes", "It is. Yes")]
)
def test_what_sira_answers_is_reduced_to_its_first_word(amber, answer, counted):
    captions, questions = amber.parts
    assert amber.reduce(questions, answer) == counted
    assert amber.reduce(captions, answer) == answer


def test_facts(data):
    amber = benchmark(data)
    assert amber.facts() == {"language": {"name": "words"}, "similarity": {"name": "near"}}
    assert benchmark(data, similarity=EQUAL, parts=["discriminative"]).facts() == {}


def test_one_dimension_of_the_questions(amber, data, tmp_path):
    attribute = opened(data, Asking(options={"task": "attribute"}))
    (part,) = attribute.parts
    assert [ask.id for ask in part.asks] == ["4", "5", "6", "7"]
    scored = {group: tally for group, tally in attribute.score(part, ANSWERED).items() if tally.counts}
    whole = amber.score(amber.parts[1], ANSWERED)
    assert scored == {group: whole[group] for group in ("attribute", "state", "number", "action")}
    (tmp_path / "ids.txt").write_text("4")
    with pytest.raises(SettingsError, match="`task=` relation: no such question in AMBER's folder"):
        opened(data, Asking(options={"task": "relation", "ids": str(tmp_path / "ids.txt")}))


def test_the_repository_does_for_its_folder_data(tmp_path):
    lay_out(tmp_path / "AMBER" / "data")
    assert len(benchmark(tmp_path / "AMBER").parts[1].asks) == len(QUESTIONS)


def test_ambers_own_files(benchmarks):
    """Random answers, whose figures a restatement of the whole rule gave, too."""
    amber = benchmark(benchmarks / "amber", similarity=near())
    captions, questions = amber.parts
    assert (len(captions.asks), len(questions.asks), len(amber.lexicon.vocabulary)) == (1_004, 14_216, 418)
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


def test_numpys_sums_are_rounded_as_pythons(amber):
    for right in range(2_000):
        counts = {"answers": 2_000.0, "right": float(right), "no": 1_000.0, "answered no": 990.0, "rightly no": 333.0}
        plain = amber.figures("attribute", counts)
        numpys = amber.figures("attribute", {name: np.float64(count) for name, count in counts.items()})
        assert numpys == plain
        assert {type(value) for value in numpys.values()} == {float}
