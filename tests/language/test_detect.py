"""Texts in another language than the one asked for: found where sure, and nowhere else."""

from __future__ import annotations

import pytest

from sira_cli.language.detect import other_language

CAPTIONS = {
    "en": "A man is standing on a bridge with his dog, and a boat is in the water.",
    "de": "Ein Mann steht mit seinem Hund auf der Brücke, und ein Boot ist im Wasser zu sehen.",
    "fr": "Un homme est sur le pont avec son chien, et un bateau est dans l'eau.",
    "es": "Un hombre está en el puente con su perro, y un barco está en el agua.",
    "pt": "Um homem está na ponte com o seu cão, e um barco está na água.",
    "it": "Un uomo è sul ponte con il suo cane, e una barca è nell'acqua della baia.",
    "ja": "男性が犬を連れて橋の上に立っていて、水の上にはボートがあります。",
    "zh": "一个男人带着他的狗站在桥上，水里有一条船，天空是蓝色的。",  # noqa: RUF001
    "ko": "한 남자가 개와 함께 다리 위에 서 있고 물 위에는 배가 있습니다.",
    "ru": "Мужчина стоит на мосту со своей собакой, а на воде видна лодка.",  # noqa: RUF001
}


@pytest.mark.parametrize("written", CAPTIONS)
def test_a_caption_is_in_its_own_language_and_in_no_other(written):
    found = {expected: other_language(CAPTIONS[written], expected) for expected in CAPTIONS}
    assert found == {expected: None if expected == written else written for expected in CAPTIONS}


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("dog, car, tree, person, house", "de", None),  # labels in Latin letters
        ("dog, car, tree, person, house", "ja", ""),
        ("Toyota", "ja", None),
        ("放在水槽上的牙刷，上面写着 mystery toothbrush 字样", "zh", None),  # noqa: RUF001
        ("自転車、消防車、信号機、目的地、存在感", "ja", None),
        ('Ein Schild mit "The end of the road"', "de", None),
        ("Een man staat met zijn hond op de brug.", "nl", None),  # no such language here
        ("A man on a bridge with his dog.", "nl", None),
        ("", "de", None),
    ],
)
def test_what_is_not_sure_is_not_said(text, expected, found):
    assert other_language(text, expected) == found
