"""Alternative texts: within the length, at sentences, clauses and words, without words about the picture."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from sira_cli import SettingsError, load
from sira_cli.data.records.record import Answer
from sira_cli.models.answering.texts import TextSettings
from sira_cli.models.loading.preset_parts import Prompts
from sira_cli.models.schemas.schema import Schema

PICTURE = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[0]
WORDS = re.findall(r"\S+", "a dog, and the red car sits on grass; while two people (both smiling) look at it with joy")
CHINESE = ("一只棕色的狗坐在草地上\uff0c旁边有一只猫", "\uff0c远处有一座山。天空是蓝色的。")


def short(text: str, length: int, reason: str = "stop") -> str:
    return TextSettings(alt=length).finished(Answer(text, reason)).text


@pytest.mark.parametrize(("text", "length", "expected"), [
    ("A dog sits on grass. A cat sleeps. A bird sings.", 125, "A dog sits on grass. A cat sleeps."),
    ("A dog sits on grass. A cat sleeps under the old tree.", 40, "A dog sits on grass."),
    ("The image shows a dog. The image also shows a cat.", 125, "A dog. A cat."),
    ("This is a photo of a red car.", 125, "A red car."),
    ("In this picture, there are two cats.", 125, "Two cats."),
    ("An image of an image of a cat.", 125, "A cat."),
    ("A photograph hangs on the wall.", 125, "A photograph hangs on the wall."),
    ("Das Bild zeigt eine Katze. Das Bild zeigt einen Hund.", 125, "Eine Katze. Das Bild zeigt einen Hund."),
    ("Auf dem Foto sind zwei Hunde zu sehen, die spielen.", 125, "Zwei Hunde, die spielen."),
    ("L'image montre un chien. Une photo d'un chat.", 125, "Un chien. Un chat."),
    ("Sur cette photo, on voit deux chats.", 125, "Deux chats."),
    ("L'image montre que le chien dort.", 125, "L'image montre que le chien dort."),
    ("La imagen muestra a un hombre. En la foto se ven dos gatos.", 125, "Un hombre. Dos gatos."),
    ("La imagen muestra al presidente.", 125, "La imagen muestra al presidente."),
    ("Nell'immagine si vede un cane. Una foto di due gatti.", 125, "Un cane. Due gatti."),
    ("A imagem mostra um cão. Na imagem, há dois gatos.", 125, "Um cão. Dois gatos."),
    ("На фотографии изображена собака.", 125, "Собака."),  # noqa: RUF001
    ("この画像には、犬と猫が写っています。", 125, "犬と猫が写っています。"),
    ("这张图片显示了一只狗。", 125, "一只狗。"),
    ("이 사진에는 개가 있습니다.", 125, "개가 있습니다."),
    ("Ein Hund sitzt auf der großen grünen Wiese im Park", 25, "Ein Hund sitzt."),
    ("A dog sits on the green grass, next to a house, while people walk by.", 50,
     "A dog sits on the green grass, next to a house."),
    ("A very large brown dog sits on the green grass of the park", 34, "A very large brown dog sits."),
    ("Donaudampfschiff", 125, "Donaudampfschiff"),
    ("Donaudampfschifffahrtsgesellschaft", 20, ""),
    ("".join(CHINESE), 20, f"{CHINESE[0]}。"),
])  # fmt: skip
def test_whole_sentences_then_parts_then_words(text, length, expected):
    assert short(text, length) == expected


def test_a_sentence_that_the_limit_of_tokens_ended_is_left_out():
    assert short("A dog sits. A cat is on", 125, "length") == "A dog sits."
    assert short("A dog sits. A cat is on", 125) == "A dog sits. A cat is on"


@pytest.mark.parametrize("seed", range(200))
def test_no_word_is_cut_and_none_is_added(seed):
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices(WORDS, k=draw.randint(3, 40))).capitalize() + "." for _ in range(3)]
    text, length = " ".join(sentences), draw.randint(20, 200)
    found = short(text, length)
    assert 0 < len(found) <= length
    assert found.endswith(".")
    outside = re.sub(r"\([^)]*(\)|$)", "", found)  # a sentence does not end inside parentheses
    assert outside.count(".") <= 2
    words, kept = re.findall(r"\w+", text), re.findall(r"\w+", found)
    assert words[: len(kept)] == kept
    assert short(found, length) == found


def test_the_length_is_asked_for_and_kept(sira):
    usual, own = load("demo").preset.prompts, ("--set", "alternative=Look, {length}.")
    for prompt, more in ((usual.caption, []), ("Look, 30.", own), ("Look.", [*own, "--prompt", "Look."])):
        code, out, _ = sira("caption", PICTURE, "-p", "demo", "--alt", 30, "--json", *more)
        record = json.loads(out)
        assert (code, record["prompt"], record["text_settings"]) == (0, prompt, {"alt": 30})
        whole = load("demo").caption(PICTURE, prompt=prompt).text
        assert record["text"] == short(whole, 30)
        assert record["text"] != whole or prompt != usual.caption
    assert "{length} characters" in Prompts().alternative
    for other in (["--words"],):
        code, _, err = sira("caption", PICTURE, "-p", "demo", "--alt", 30, *other)
        assert (code, "--alt shortens texts when they are decoded" in err) == (2, True)


def test_the_schema_with_both_texts_shortens_one():
    schema = Schema.of("alt+description:40")
    assert "in at most 40 characters" in schema.prompt
    data = {"alt": "The image shows a dog on the grass. It is a sunny day in May.", "description": "A dog. " * 30}
    answer = schema.answer(Answer(json.dumps(data), "stop"))
    assert answer.data == json.loads(answer.text) == data | {"alt": "A dog on the grass."}
    assert "in at most 125 characters" in Schema.of("alt+description").prompt
    with pytest.raises(SettingsError, match="has no list of tags"):
        Schema.of("objects:20")


def test_python_asks_as_the_command_line_does():
    lvlm = load("demo", alt=30)
    asked = lvlm.preset.prompts.alternative.replace("{length}", "30")
    for result in (lvlm.caption(PICTURE), *lvlm.caption_many([PICTURE])):
        assert result.prompt == asked
        assert len(result.text) <= 30
