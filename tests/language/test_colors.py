"""The colours that texts give to things, and those that they do not clearly give to any."""

from __future__ import annotations

import pytest

from sira_cli.language.colors import colored
from sira_cli.language.listed import PlainWords
from sira_cli.language.things import Thing, shipped
from sira_cli.language.wordings import shipped as rows
from sira_cli.language.wordings import wording_of

THINGS = {  # a car, a dog and a table
    "de": {"Auto": "Auto", "Hund": "Hund", "Tisch": "Tisch"},
    "fr": {"voiture": "voiture", "chien": "chien", "table": "table"},
    "es": {"coche": "coche", "perro": "perro"},
    "pt": {"carro": "carro", "cachorro": "cachorro"},
    "it": {"auto": "auto", "cane": "cane"},
    "ru": {"машина": "машина", "машину": "машина", "собака": "собака"},
    "ja": {"車": "車", "犬": "犬"},
    "zh": {"汽车": "汽车", "狗": "狗"},
    "ko": {"자동차": "자동차", "개": "개"},
}


def found(text, code="en"):
    words = shipped() if code == "en" else PlainWords(THINGS[code], "test", wording_of(code))
    return [
        (thing.name, thing.value, [text[start:end] for start, end in thing.spans])
        for thing in colored(text, words.things(text), wording_of(code))
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A red car next to a blue bus.", [("car", "red", "red"), ("bus", "blue", "blue")]),
        ("There is a dog on the left, which is brown.", [("dog", "brown", "brown")]),
        ("There are two dogs, which are GREY.", [("dog", "gray", "GREY")]),
        ("The dog is brown and the cat is black.", [("dog", "brown", "brown"), ("cat", "black", "black")]),
        ("a dark red umbrella", [("umbrella", "red", "red")]),
        ("a large green wooden chair", [("chair", "green", "green")]),
        ("On the table there are red apples.", [("apple", "red", "red")]),
        ("A gray\ncat.", [("cat", "gray", "gray")]),
        ("a green traffic light", [("traffic light", "green", "green")]),
        ("The car next to the tree is red.", []),  # or the tree?
        ("A house and a car, which is red.", []),
        ("The dog's bowl is red.", []),
        ("a black and white cat", []),
        ("The cat is black, white and brown.", []),
        ("a red car and a blue car", []),  # one question cannot ask about both
        ("a red glow on the car", []),
        ("Something red behind cars.", []),
        ("Everything is red. Cars drive by.", []),
        ("It is all red\n\nCars drive by.", []),
        ("orange juice and an orange", []),
        ("a white man in a black hat", [("hat", "black", "black")]),
        ("a red-haired dog", []),
        ("no red cars", []),
        ("The cup is not red.", []),
        ("Reddish cars, credit cards", []),
    ],
)
def test_colours_of_things(text, expected):
    assert found(text) == [(thing, color, [word]) for thing, color, word in expected]


def test_a_colour_that_is_named_twice():
    assert found("A red car. The car is red.") == [("car", "red", ["red", "red"])]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("de", "Ein rotes Auto neben einem Hund. Der Hund ist braun.", [("Auto", "rot"), ("Hund", "braun")]),
        ("de", "Auf dem Tisch sind keine roten Autos.", []),
        ("fr", "Une voiture rouge et un chien noir.", [("voiture", "rouge"), ("chien", "noir")]),
        ("fr", "La voiture est verte.", [("voiture", "vert")]),
        ("es", "Un coche rojo. El perro es de color marrón.", [("coche", "rojo"), ("perro", "marrón")]),
        ("pt", "Um carro azul. O cachorro é preto.", [("carro", "azul"), ("cachorro", "preto")]),
        ("it", "Un'auto rossa e un cane nero.", [("auto", "rosso"), ("cane", "nero")]),
        ("ru", "Красную машину видно. Собака белая.", [("машина", "красный"), ("собака", "белый")]),
        ("ja", "赤い車があります。犬は白い。", [("車", "赤"), ("犬", "白")]),
        ("zh", "红色的汽车旁边有一只狗。狗是黑色的。", [("汽车", "红"), ("狗", "黑")]),
        ("ko", "빨간 자동차가 있습니다. 개는 흰색입니다.", [("자동차", "빨간색"), ("개", "흰색")]),
    ],
)
def test_other_languages(code, text, expected):
    assert [(thing, color) for thing, color, _ in found(text, code)] == expected


@pytest.mark.parametrize(
    ("code", "person", "text"),
    [
        ("de", "Frau", "Eine schwarze Frau steht da."),
        ("fr", "femme", "Une femme noire est là."),
        ("es", "mujer", "Una mujer negra está ahí."),
        ("it", "donna", "Una donna nera è lì."),
        ("pt", "mulher", "Uma mulher negra está ali."),
        ("ru", "женщина", "Там чёрная женщина."),
        ("ko", "여자", "검은 여자가 있다."),
    ],
)
def test_colours_of_people_are_left_out(code, person, text):
    assert colored(text, PlainWords({person: person}, "test", wording_of(code)).things(text), wording_of(code)) == []


@pytest.mark.parametrize(
    ("code", "form", "expected"),
    [
        ("de", "pinke", "rosa"),
        ("es", "rosados", "rosa"),
        ("es", "violetas", "morado"),
        ("pt", "violetas", "roxo"),
        ("ru", "красными", "красный"),
        ("ru", "синему", "синий"),
    ],
)
def test_every_form_of_a_colour_is_known(code, form, expected):
    forms = {form: row.split()[0] for row in wording_of(code).of("colors").answers.values() for form in row.split()}
    assert forms[form] == expected


@pytest.mark.parametrize("code", rows())
def test_every_language_has_all_parts(code):
    row, colors = wording_of(code), wording_of(code).of("colors")
    assert [*colors.answers] == [*wording_of("en").of("colors").answers]
    assert row.list
    assert colors.before is not None or colors.after is not None
    assert {*row.yes}.isdisjoint(row.no)
    spellings = [
        word.casefold() for words in row.answers("colors").values() for word in {each.casefold() for each in words}
    ]
    assert len(spellings) == len({*spellings})  # no word of two colours
    assert all(row.question(Thing("dog", (), "dog", kind)).count("dog") == 1 for kind in ("objects", "colors"))


def test_questions_in_english_have_articles():
    umbrella = shipped().things("Under an umbrella.")[0]
    scissors, color = (Thing(name, (), name, "colors") for name in ("scissors", "umbrella"))
    assert wording_of("en").question(scissors) == "What color is the pair of scissors?"
    assert wording_of("en").question(color) == "What color is the umbrella?"
    assert wording_of("en").question(umbrella) == "Is there an umbrella in the image?"
    assert wording_of("de").question(umbrella).startswith('Ist auf dem Bild "umbrella" zu sehen?')
