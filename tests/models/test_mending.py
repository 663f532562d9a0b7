"""Checked texts with the colours of their pictures."""

from __future__ import annotations

import pytest

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.language.colors import recolored
from sira_cli.language.wordings import wording_of
from sira_cli.models.look.mending import without_unsupported
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify


@pytest.mark.parametrize(
    ("code", "found", "value", "answer", "expected"),
    [
        ("en", "red", "red", "blue", "blue"),
        ("en", "Grey", "gray", "red", None),  # no form of red ends so
        ("en", "Red", "red", "orange", "Orange"),
        ("de", "rote", "rot", "blau", "blaue"),
        ("de", "Rotes", "rot", "grün", "Grünes"),
        ("de", "rote", "rot", "lila", None),
        ("es", "rojas", "rojo", "negro", "negras"),
        ("ru", "красная", "красный", "белый", "белая"),
        ("zh", "红色的", "红", "绿", "绿色的"),
        ("ko", "빨간", "빨간색", "파란색", "파란"),
    ],
)
def test_the_form_of_another_colour(code, found, value, answer, expected):
    assert recolored(found, value, answer, wording_of(code)) == expected


def claim(text, words, value, answer, kind="colors"):
    start = text.index(words)
    return {"kind": kind, "thing": "car", "value": value, "answer": answer, "spans": [[start, start + len(words)]]}


def test_a_colour_is_put_in_and_an_object_goes():
    text = "There is an orange car by a red bus. There is a cat. An orange tree."
    claims = [
        claim(text, "orange", "orange", "red"),
        claim(text, "red", "red", "orange"),
        {"thing": "cat", "spans": [[text.index("cat"), text.index("cat") + 3]]},
    ]
    fixed = "There is a red car by an orange bus. An orange tree."
    assert without_unsupported(text, claims, {}) == (fixed, ["There is a cat."])


def test_a_form_that_is_not_known_takes_its_sentence_along():
    text = "Das rote Auto. Ein Hund."
    assert without_unsupported(text, [claim(text, "rote", "rot", "lila")], {"language": "de"}) == (
        "Ein Hund.",
        ["Das rote Auto."],
    )


def test_the_answer_is_the_colour_of_the_picture():
    look, hits = SecondLook(load("demo"), Verify(claims="objects,colors")), []
    for number in range(6):
        scene = held_out(VALIDATION_SEEDS[500_000 + number])
        thing = max(
            scene.things, key=lambda each: each.strength * (each.box[2] - each.box[0]) * (each.box[3] - each.box[1])
        )
        wrong = "red" if thing.color != "red" else "blue"
        check = look.check(render(scene)[0], f"The {thing.name} is {wrong}.")
        hits += [each.answer == thing.color for each in check.claims or ()]
    assert len(hits) >= 5
    assert sum(hits) >= len(hits) - 1
