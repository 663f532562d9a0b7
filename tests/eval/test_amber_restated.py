"""AMBER's whole rule in other words."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial

from sira_cli.eval.amber.benchmark import Amber
from sira_cli.eval.base import ONE_WORD, Ask
from tests.support.eval.amber_data import Near, Nouns, benchmark, figures


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


def test_ambers_data_under_the_rule_in_other_words(benchmarks):
    amber = benchmark(benchmarks / "amber", similarity=Near())
    assert [len(part.asks) for part in amber.parts] == [1_004, 14_216]
    assert len(amber.lexicon.vocabulary) == 418
    assert amber.parts[0].asks[-1] == Ask("1004", "AMBER_1004.jpg", "Describe this image.")
    assert amber.parts[1].asks[0].prompt == f"Is the sky sunny in this image?{ONE_WORD}"
    compare(amber, rounds=2)
