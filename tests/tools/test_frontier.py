"""Trivial ways to say less, next to methods: figures by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import OBJECTS, TEST_SEEDS
from tools.frontier import GREEDY, LENGTHS, SHARES, Said, at_coverage, baselines, compare, equal_length, measure, table


def said(text: str, *probabilities: float, scene: int = 0) -> Said:
    """A caption whose {a} and {b} are objects of the scene, and {x} and {y} are not in it, with names of one word."""
    drawn = held_out(TEST_SEEDS[scene])
    present = [name for name in drawn.objects if " " not in name]
    absent = [name for name in OBJECTS if name not in drawn.objects and " " not in name]
    return Said(drawn, text.format(a=present[0], b=present[1], x=absent[0], y=absent[1]), probabilities)


def test_least_probable_objects_are_left_out():
    """Of ten mentions the two least probable, 20 %: both absent, so that CHAIRi falls from 30 % to 1 in 8."""
    captions = [
        said("a {a} and a {b} and a {x} and a {a} and a {b}", 0.9, 0.8, 0.1, 0.95, 0.85),
        said("a {a} and a {y} and a {b} and a {x} and a {a}", 0.7, 0.05, 0.6, 0.75, 0.65, scene=1),
    ]
    figures = compare(baselines(captions)).figures("greedy, 20 % out")
    assert figures["CHAIRi"].value == pytest.approx(100 / 8)
    assert figures["words"].value == 14


def test_captions_are_cut_after_words():
    captions = [said(f"{'so ' * 14}a {{x}} and a {{a}}", 0.5, 0.5)]
    rows = compare(baselines(captions))
    assert [rows.figures(f"greedy, {words} words")["words"].value for words in LENGTHS] == [19, 19, 19, 19, 15, 10]
    assert rows.figures("greedy, 20 words")["CHAIRi"].value == 50
    assert rows.figures("greedy, 10 words")["CHAIRi"].value == 0


def test_at_equal_length_the_longer_caption_is_cut():
    """The hallucination stands where the other caption has ended."""
    short = [said("There is a {a}.", 0.9)]
    long = [said("There is a {a} and also a {x}.", 0.9, 0.4)]
    assert equal_length(short, long).value == 0
    assert equal_length(long, short).value == 0
    assert equal_length(long, [said("There is a {x} and also a {a}.", 0.9, 0.4)]).value == 0
    assert equal_length([said("A {a} and a {b}", 1, 1)], [said("A {a} and a {x}", 1, 1)]).value == 50


def test_a_curve_is_read_by_straight_lines():
    curve = [(90.0, 12.0), (70.0, 2.0), (80.0, 4.0)]
    assert [at_coverage(curve, x) for x in (90, 85, 80, 72, 95, 60)] == [12, 8, 4, pytest.approx(2.4), None, None]


def test_the_table_has_methods_among_the_baselines():
    """By falling coverage; a method's row says what thinned greedy captions have at its coverage."""
    greedy = [said("a {a} and a {b} and a {x}", 0.9, 0.8, 0.1), said("a {a} and a {x}", 0.7, 0.2, scene=1)]
    sira = [said("a {a} and a {b}", 0.9, 0.8), said("a {a} and a {x}", 0.7, 0.2, scene=1)]
    found = json.loads(json.dumps(measure({GREEDY: greedy, "sira": sira}), default=dataclasses.asdict))
    assert len(found["rows"]) == 2 + len(LENGTHS) + len(SHARES)
    assert found["rows"]["sira"]["CHAIRi"]["value"] == pytest.approx(25)
    assert found["methods"]["sira"]["least probable out"] is not None
    lines = table(found).splitlines()[2:]
    coverage = [float(line.split("|")[3].split("±")[0]) for line in lines]
    assert coverage == sorted(coverage, reverse=True)
