"""AMBER: cases counted by hand, its whole rule in other words, and files that are not what they should be."""

from __future__ import annotations

import json
import random
import zlib
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sira_cli.errors import SettingsError, SiraError
from sira_cli.eval.amber import Amber
from sira_cli.eval.amber_words import Judged, Lexicon
from sira_cli.eval.base import ONE_WORD, Ask
from sira_cli.eval.similarity import Exact, Similarity

SHARED = Path(__file__).parents[3] / "shared" / "data" / "amber"

RELATION = {
    "sky": [],
    "cloud": [],
    "sun": [],
    "forest": ["tree", "bush"],
    "tree": ["forest", "bush"],
    "ship": ["boat"],
    "person": ["man", "woman"],
    "dog": ["puppy"],
    "puppy": ["dog"],
    "light": [],
}
CAPTIONS = [
    (["sky", "forest", "tree", "ship", "ship"], ["cloud", "dog"]),
    (["person"], ["sun"]),
    (["cloud", "sky"], ["ship"]),
]
QUESTIONS = [  # from id 4 on
    ("discriminative-attribute-state", "yes", "a.jpg"),
    ("discriminative-attribute-state", "no", "a.jpg"),
    ("discriminative-attribute-number", "no", "b.jpg"),
    ("discriminative-attribute-action", "yes", "b.jpg"),
    ("discriminative-hallucination", "no", "a.jpg"),
    ("discriminative-hallucination", "no", "c.jpg"),
    ("discriminative-relation", "yes", "c.jpg"),
    ("relation", "no", "c.jpg"),
]
SAID = {"1": "A sky over a boat, a ship and a tree.", "2": "The sun and the light: a dog, a man.", "3": "The sun."}
ANSWERED = {"4": "Yes", "5": "No", "6": "Yes", "7": "No", "8": "No", "9": "No.", "10": "yes", "11": "No"}


class Nouns:
    official = True

    def nouns(self, text):
        return [word.strip(".,:") for word in text.split()]

    def facts(self):
        return {"name": "words"}


class Near(Similarity):
    """Words are near themselves and whatever `pairs` say; without pairs about every twelfth word."""

    name = "near"
    official = True

    def __init__(self, *pairs):
        self.pairs = pairs

    def above(self, one, other):
        if self.pairs or one == other:
            return one == other or {one, other} in self.pairs
        return zlib.crc32(" ".join(sorted((one, other))).encode()) % 12 == 0

    def facts(self):
        return {"name": self.name}


def lay_out(folder: Path) -> Path:
    annotations = [
        {"id": number, "type": "generative", "truth": truth, "hallu": hallu}
        for number, (truth, hallu) in enumerate(CAPTIONS, start=1)
    ] + [{"id": number, "type": kind, "truth": truth} for number, (kind, truth, _) in enumerate(QUESTIONS, start=4)]
    captions = [{"id": n, "image": f"{name}.jpg", "query": "Describe this image."} for n, name in enumerate("abc", 1)]
    questions = [{"id": n, "image": image, "query": f"Is it {n}?"} for n, (_, _, image) in enumerate(QUESTIONS, 4)]
    (folder / "query").mkdir(parents=True)
    write(folder / "annotations.json", annotations)
    write(folder / "relation.json", RELATION)
    (folder / "safe_words.txt").write_text("orange\nlight", encoding="utf-8")
    write(folder / "query" / "query_generative.json", captions)
    write(folder / "query" / "query_discriminative.json", questions)
    return folder


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def edit(path: Path, place: object, **changes: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content[place].update(changes)
    write(path, content)


def benchmark(folder: Path, **options) -> Amber:
    return Amber.of(folder, **{"language": Nouns(), "similarity": Near({"sun", "cloud"}), **options})


@pytest.fixture
def data(tmp_path):
    return lay_out(tmp_path / "amber")


@pytest.fixture
def amber(data):
    return benchmark(data)


def figures(amber: Amber, *texts: dict[str, str]) -> dict[str, dict[str, float]]:
    scored = [amber.score(part, given) for part, given in zip(amber.parts, texts, strict=True)]
    return {group: amber.figures(group, tally.total()) for tallies in scored for group, tally in tallies.items()}


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
    with pytest.raises(SettingsError, match=r"query_all.json: holds no queries of discriminative"):
        benchmark(data)
    write(data / "query" / "query_all.json", edited)
    assert [[ask.picture for ask in part.asks][:2] for part in benchmark(data).parts] == [
        ["1.jpg", "2.jpg"],
        ["4.jpg", "5.jpg"],
    ]


def judge(nouns: str, truth: str, hallu: str = "", near: Similarity | None = None) -> Judged:
    lexicon = Lexicon({word: tuple(related) for word, related in RELATION.items()}, frozenset({"light"}))
    return lexicon.judge(nouns.split(), truth.split(), hallu.split(), (near or Exact()).above)


@pytest.mark.parametrize(
    ("nouns", "truth", "hallu", "expected"),
    [
        ("", "sky", "dog", ("", "", "", "")),
        ("view sky", "sky", "", ("sky", "", "sky", "")),  # no word of AMBER's, no mention
        ("dog dog", "sky", "", ("dog dog", "dog dog", "", "")),  # every mention counts
        ("light", "sky", "light", ("light", "", "", "")),  # safe: counted, but neither wrong nor marked
        ("light", "light", "", ("light", "", "", "")),  # nor covered
        ("woman", "sky person", "", ("woman", "", "person", "")),  # a related word stands for the annotated one
        ("tree", "tree forest", "", ("tree", "", "forest", "")),  # related words come before the words themselves
        ("bush", "tree forest", "", ("bush", "", "tree", "")),  # of two, the first
        ("ship boat", "ship ship", "", ("ship boat", "", "ship", "")),  # annotated twice, covered once
        ("puppy", "sky", "dog", ("puppy", "puppy", "", "dog")),
        ("puppy", "dog", "puppy", ("puppy", "", "dog", "")),  # what is in the picture is not marked
    ],
)
def test_equal_words(nouns, truth, hallu, expected):
    assert judge(nouns, truth, hallu) == Judged(*(tuple(words.split()) for words in expected))


@pytest.mark.parametrize(
    ("nouns", "truth", "hallu", "expected"),
    [
        ("sun", "sky cloud", "", ("sun", "", "cloud", "")),  # near a word of the picture: no hallucination
        ("sun", "sky", "cloud", ("sun", "sun", "", "cloud")),  # near an annotated hallucination: marked
        ("sun", "cloud", "sun", ("sun", "", "cloud", "sun")),  # marked, then cleared
        ("sun", "sky", "cloud sun", ("sun", "sun", "", "cloud sun")),  # the equal word and the first near one
        ("sun", "sky", "sun cloud", ("sun", "sun", "", "sun")),  # which may be the equal one
        ("cloud", "cloud sun", "sun", ("cloud", "", "cloud", "")),  # an equal word of the picture settles it
        ("sun", "cloud cloud", "", ("sun", "", "cloud", "")),
        ("man", "sky tree", "", ("man", "", "tree", "")),  # near `forest`, which stands for `tree`
    ],
)
def test_similar_words(nouns, truth, hallu, expected):
    near = Near({"sun", "cloud"}, {"man", "forest"})
    judged = judge(nouns, truth, hallu, near)
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
    assert detail == {
        "id": "9",
        "image": "c.jpg",
        "query": query,
        "truth": "no",
        "response": "No.",
        "right": False,
    }


def test_existence_has_a_constant_of_its_own(amber):
    counts = {"answers": 10_000, "right": 5_000, "no": 10_000, "answered no": 5_000, "rightly no": 5_000}
    assert amber.figures("existence", counts)["F1"] == 66.6
    assert amber.figures("discriminative", counts)["F1"] == 66.7


def test_numpys_sums_are_rounded_as_pythons(amber):
    for right in range(2_000):
        counts = {"answers": 2_000.0, "right": float(right), "no": 1_000.0, "answered no": 990.0, "rightly no": 333.0}
        plain = amber.figures("attribute", counts)
        numpys = amber.figures("attribute", {name: np.float64(count) for name, count in counts.items()})
        assert numpys == plain
        assert {type(value) for value in numpys.values()} == {float}


def test_nothing_answered(amber):
    every = figures(amber, {}, {})
    assert every["generative"] == {"CHAIR": 0.0, "Cover": 0.0, "Hal": 100.0, "Cog": 0.0, "words": 0.0}
    assert set(every["state"].values()) == {0.0}


@pytest.mark.parametrize("answer", ["No.", "NO", "no", " No", "", "Not", "No, it is not"])
@pytest.mark.parametrize("id_", ["4", "5"])
def test_only_yes_and_no_are_answers(amber, answer, id_):
    tally = amber.score(amber.parts[1], {id_: answer})["state"]
    assert tally.right == {id_: False}
    assert (tally.total()["answered no"], tally.total()["neither"]) == (0, 1)


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        ("Yes", "Yes"),
        ("yes.", "Yes"),
        (" NO!\n", "No"),
        ("No, it is not.", "No"),
        ("Yes it is", "Yes"),
        ("Not at all", "Not at all"),
        ("It is. Yes", "It is. Yes"),
        ("Yes;", "Yes;"),
        ("", ""),
    ],
)
def test_what_sira_answers_is_reduced_to_its_first_word(amber, answer, counted):
    captions, questions = amber.parts
    assert amber.reduce(questions, answer) == counted
    assert amber.reduce(captions, answer) == answer


def test_facts(data):
    amber = benchmark(data)
    assert amber.facts() == {"language": {"name": "words"}, "similarity": {"name": "near"}}
    assert benchmark(data, similarity=Exact(), parts=["discriminative"]).facts() == {}


def test_one_dimension_of_the_questions(amber):
    attribute = amber.only("attribute")
    (part,) = attribute.parts
    assert part.groups == ("attribute", "state", "number", "action")
    assert [ask.id for ask in part.asks] == ["4", "5", "6", "7"]
    found = attribute.score(part, ANSWERED)
    whole = amber.score(amber.parts[1], ANSWERED)
    assert found == {group: whole[group] for group in part.groups}
    assert amber.only("relation").parts[0].groups == ("relation",)
    with pytest.raises(SettingsError, match="--task relation: no question of AMBER's folder is about it"):
        attribute.only("relation")


def test_the_repository_does_for_its_folder_data(tmp_path):
    lay_out(tmp_path / "AMBER" / "data")
    assert len(benchmark(tmp_path / "AMBER").parts[1].asks) == len(QUESTIONS)


def test_only_captions_have_stand_ins(data):
    assert benchmark(data).stand_ins() == {}
    assert benchmark(data, similarity=Exact()).stand_ins() == {"generative": "similarity exact"}
    assert benchmark(data, similarity=Exact(), parts=["discriminative"]).stand_ins() == {}


# The whole rule in other words.


def restated(amber: Amber, nouns: list[str], id_: str) -> tuple[int, int, int, int]:
    """Mentions, hallucinated mentions, covered and marked words."""
    relation, truth, hallu = amber.lexicon.relation, amber.annotations[id_].truth, amber.annotations[id_].hallu
    known = {*relation, *(word for related in relation.values() for word in related)}

    def hit(words, matches):
        flat = [other for word in words for other in relation[word]] + list(words)
        owner = [place for place, word in enumerate(words) for _ in relation[word]] + list(range(len(words)))
        hits = [place for place, word in enumerate(flat) if matches(word)]
        return {owner[min(hits)]} if hits else set()

    equal = {noun: hit(truth, noun.__eq__) for noun in nouns}
    near = {noun: hit(truth, partial(amber.similarity.above, noun)) for noun in nouns}
    counted = [noun for noun in nouns if noun in known - amber.lexicon.safe]
    doubtful = [noun for noun in counted if not equal[noun]]
    covered = set().union(*(equal[noun] or near[noun] for noun in counted))
    marked = set().union(
        *(hit(hallu, noun.__eq__) | hit(hallu, partial(amber.similarity.above, noun)) for noun in doubtful)
    )
    return (
        sum(noun in known for noun in nouns),
        sum(not near[noun] for noun in doubtful),
        len(covered),
        len(marked),
    )


def share(count: int, of: int, start: Fraction = Fraction(1, 1000)) -> Fraction:
    return 100 * Fraction(count) / (of + start)


def one_decimal(value: Fraction) -> float:
    return float(round(value, 1))


def restated_captions(amber: Amber, texts: dict[str, str]) -> dict[str, float]:
    rows = [restated(amber, Nouns().nouns(text), id_) for id_, text in texts.items()]
    mentions, bad, covered, marked = map(sum, zip(*rows, strict=True))
    truth, hallu = (sum(len(getattr(amber.annotations[id_], name)) for id_ in texts) for name in ("truth", "hallu"))
    clean = sum(row[1] == 0 for row in rows)
    return {
        "CHAIR": one_decimal(share(bad, mentions)),
        "Cover": one_decimal(share(covered, truth)),
        "Hal": one_decimal(100 - share(clean, len(texts))),
        "Cog": one_decimal(share(marked, hallu)),
        "words": sum(len(text.split()) for text in texts.values()) / len(texts),
    }


def restated_answers(kinds: str, pairs: list[tuple[str, str, str]]) -> dict[str, float]:
    """The figures of all questions whose type ends with one of some words."""
    own = [(truth, said) for kind, truth, said in pairs if kind.endswith(tuple(kinds.split()))]
    start = Fraction(3 if kinds == "state number action" else 1, 1000)
    found = own.count(("no", "No"))
    precision, recall = (
        round(share(found, of, start), 1)
        for of in (sum(said == "No" for _, said in own), sum(truth == "no" for truth, _ in own))
    )
    small = Fraction(1, 1000 if kinds == "hallucination" else 10_000)
    return {
        "accuracy": one_decimal(share(found + own.count(("yes", "Yes")), len(own), start)),
        "precision": float(precision),
        "recall": float(recall),
        "F1": one_decimal(2 * precision * recall / (precision + recall + 100 * small)),
    }


KINDS = {
    "discriminative": "state number action hallucination relation",
    "existence": "hallucination",
    "attribute": "state number action",
    "state": "state",
    "number": "number",
    "action": "action",
    "relation": "relation",
}


def compare(amber: Amber, rounds: int) -> None:
    rng = random.Random(0)
    words = [*sorted(amber.lexicon.vocabulary), *amber.lexicon.safe, "view"]
    captions, questions = amber.parts
    for _ in range(rounds):
        texts, answers = {}, {}
        for ask in captions.asks:
            annotated = amber.annotations[ask.id]
            pools = annotated.truth * 3, annotated.hallu, words
            texts[ask.id] = " ".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, 20)))
        weights = [rng.random(), rng.random(), 0.1]
        for ask in questions.asks:
            (answers[ask.id],) = rng.choices(["Yes", "No", rng.choice(["Yes.", "no", ""])], weights)
        every = figures(amber, texts, answers)
        assert every["generative"] == restated_captions(amber, texts)
        pairs = [(amber.annotations[id_].kind, amber.annotations[id_].truth[0], said) for id_, said in answers.items()]
        for group, kinds in KINDS.items():
            mine = {name: value for name, value in every[group].items() if name not in ("yes", "neither")}
            assert mine == restated_answers(kinds, pairs), group


def test_made_up_data_under_the_rule_in_other_words(data):
    compare(benchmark(data, similarity=Near()), rounds=200)


@pytest.mark.skipif(not SHARED.is_dir(), reason="AMBER's files are not here")
def test_ambers_data_under_the_rule_in_other_words():
    amber = benchmark(SHARED, similarity=Near())
    assert [len(part.asks) for part in amber.parts] == [1_004, 14_216]
    assert len(amber.lexicon.vocabulary) == 418
    assert amber.parts[0].asks[-1] == Ask("1004", "AMBER_1004.jpg", "Describe this image.")
    assert amber.parts[1].asks[0].prompt == f"Is the sky sunny in this image?{ONE_WORD}"
    compare(amber, rounds=2)


# Answers from files.


def rows(texts: dict[str, str]) -> list[dict]:
    return [{"id": int(id_), "response": text} for id_, text in texts.items()]


def test_export_is_read_again(amber, tmp_path):
    backwards = dict(reversed(ANSWERED.items()))
    files = amber.export({"discriminative": backwards, "generative": SAID}, tmp_path)
    assert [file.name for file in files] == ["generative.json", "discriminative.json"]
    assert json.loads(files[1].read_text()) == rows(ANSWERED)
    assert amber.read(files) == {"generative": SAID, "discriminative": ANSWERED}
    assert amber.read(files[:1]) == {"generative": SAID}
    odd = {"1": "a \N{SNOWMAN}", "2": "", "3": "\n"}
    assert amber.read(amber.export({"generative": odd}, tmp_path)) == {"generative": odd}


def test_a_folder_that_cannot_be_written_is_named(amber, tmp_path):
    with pytest.raises(SiraError, match=r"missing/generative\.json: cannot be written"):
        amber.export({"generative": SAID}, tmp_path / "missing")


def test_lines_are_read(amber, tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(SAID)))
    assert amber.read([path]) == {"generative": SAID}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([{"id": 99, "response": ""}], r"row 1: id 99 is not AMBER's: expected 1 to 11"),
        ([{"id": 0, "response": ""}], r"row 1: id 0 is not AMBER's"),
        ([{"id": "one", "response": ""}], r"row 1: id is no whole number: 'one'"),
        ([{"id": True, "response": ""}], r"row 1: id is no whole number"),
        ([{"response": ""}], r"row 1: expected id, found response"),
        ([{"id": 1}], r"row 1: expected response or text, found id"),
        ([{"id": 1, "response": None}], r"row 1: response is no text: None"),
        (["Yes"], r"row 1: expected a JSON object, got 'Yes'"),
        ([*rows(SAID), {"id": 2, "response": ""}], r"row 4: id 2 is answered already: .*row 2: keep one"),
        (rows(SAID)[::2], r"answers.json: id 2 is not answered: 1 of the 3 answers of generative are missing"),
        (rows(SAID | ANSWERED)[:4], r"answers.json: id 5 is not answered: 7 of the 8 answers of discriminative"),
        ([], r"answers.json: no answers of generative or discriminative"),
        ([{"id": 1, "response": "\ud83d"}], r"row 1: response holds half a character"),
    ],
)
def test_answers_that_do_not_fit_are_named(amber, tmp_path, bad, message):
    with pytest.raises(SettingsError, match=message):
        amber.read([write(tmp_path / "answers.json", bad)])


def test_files_together_answer_each_ask_once(amber, tmp_path):
    one, other = write(tmp_path / "one.json", rows(SAID)[:2]), write(tmp_path / "other.json", rows(SAID)[1:])
    with pytest.raises(SettingsError, match=r"other.json: row 1: id 2 is answered already: .*one.json: row 2"):
        amber.read([one, other])
    write(other, rows(SAID)[2:])
    assert amber.read([other, one]) == {"generative": SAID}
    with pytest.raises(SettingsError, match=r"one.json: id 3 is not answered"):
        amber.read([one])


def test_answers_of_what_is_not_asked_are_passed_over(data, tmp_path):
    captions = benchmark(data, parts=["generative"])
    both = write(tmp_path / "both.json", rows(SAID | ANSWERED))
    assert captions.read([both]) == {"generative": SAID}
    with pytest.raises(SettingsError, match=r"answers\.json: no answers of generative: expected rows with id"):
        captions.read([write(tmp_path / "answers.json", rows(ANSWERED))])


# AMBER's own files.


@pytest.mark.parametrize(
    ("file", "place", "changes", "message"),
    [
        ("annotations", 1, {"id": 3}, r"annotations.json: row 2: expected id 2, got 3"),
        ("annotations", 1, {"type": 3}, r"annotations.json: row 2: type is no text"),
        ("annotations", 1, {"truth": "sky"}, r"row 2: truth: expected a list of words, got 'sky'"),
        ("annotations", 1, {"hallu": [1]}, r"row 2: hallu: expected a list of words, got \[1\]"),
        ("annotations", 1, {"truth": ["man"]}, r"row 2: truth: 'man' is not in relation.json"),
        ("annotations", 1, {"hallu": ["man"]}, r"row 2: hallu: 'man' is not in relation.json"),
        ("annotations", 3, {"truth": "Yes"}, r"row 4: truth must be yes or no, got 'Yes'"),
        ("annotations", 3, {"truth": ["yes"]}, r"row 4: truth is no text"),
        ("query/query_generative", 1, {"id": 1}, r"row 2: id 1 is there already"),
        ("query/query_generative", 1, {"id": 12}, r"row 2: id 12 is not in .*annotations.json"),
        ("query/query_generative", 1, {"id": 4}, r"row 2: id 4 is annotated as discriminative-attribute-state, expec"),
        ("query/query_generative", 1, {"image": 4}, r"row 2: image is no text"),
        ("query/query_discriminative", 0, {"query": 4}, r"row 1: query is no text"),
    ],
)
def test_data_that_are_not_ambers_are_named(data, file, place, changes, message):
    edit(data / f"{file}.json", place, **changes)
    with pytest.raises(SettingsError, match=message):
        benchmark(data)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("relation.json", ["sky"], r"relation.json: expected a JSON object of words"),
        ("relation.json", {"sky": "blue"}, r"relation.json: sky: expected a list of related words, got 'blue'"),
        ("query/query_generative.json", [], r"query_generative.json: holds no queries of generative"),
    ],
)
def test_files_of_another_kind_are_named(data, file, content, message):
    write(data / file, content)
    with pytest.raises(SettingsError, match=message):
        benchmark(data)


@pytest.mark.parametrize("file", ["annotations.json", "relation.json", "safe_words.txt", "query/query_generative.json"])
def test_missing_files_are_named(data, file):
    (data / file).unlink()
    with pytest.raises(SettingsError, match=f"{file}: cannot be read: No such file"):
        benchmark(data)
