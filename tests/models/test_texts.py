"""What is done to decoded texts, and settings against repetition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.errors import SettingsError
from sira_cli.models.sampling import NoRepeatedNgrams
from sira_cli.models.texts import Answer, TextSettings, repetition, sentence_ends
from sira_cli.pictures.sources import open_picture
from tests.support.helpers import under

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "Please describe this image in detail."


def parts_of(text: str) -> list[str]:
    ends = sentence_ends(text)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["A dog."],
        ["A dog.", " A cat!", " A bird?", ' "A fish..."', " And a"],
        ["It costs 3.50 dollars in St. Paul, e.g. at Dr. No's.", " Mr. Smith (left) waits."],
        ["It is 5 p.m. in the picture.", " People eat."],
        ["He says 'stop.'", " (A sign reads “Go!”)", " **Bold.**", " Next"],
        ["1. A dog sits.\n", "2. A cat sleeps.\n", "3. Nothing"],
        ["一只狗。", "「两只猫。」", "没有"],
        ["No.", " There is none."],
        ["no full stop at all"],
        ["Really?!", " Yes…", " See www.example.com there."],
    ],
)
def test_sentences(sentences):
    text = "".join(sentences)
    expected = [part for part in sentences if part.strip()[-1] in ".!?…。”\"')*」"]
    assert [part.strip() for part in parts_of(text)] == [part.strip() for part in expected]


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["The no. 5 bus is red.", " A dog (approx. 3 kg) sits.", " It is 3 m.", " A cat."]),
        ("de", ["Das ist z. B. ein Hund.", " Dr. Müller steht da.", " Am 3. Oktober steht er da."]),
        ("es", ["El Sr. Pérez tiene un perro.", " Es rojo."]),
        ("fr", ["M. Dupont et Mme. Durand sont là.", " Un chien est avec M. Dupont."]),
        ("pt", ["O Sr. Silva tem um cão.", " É vermelho."]),
        ("it", ["Il sig. Rossi ha un cane.", " È rosso."]),
    ],
)
def test_abbreviations_end_no_sentence(language, sentences):
    assert parts_of("".join(sentences)) == sentences


def test_a_texts_own_language_decides_what_an_abbreviation_is():
    text = "Auf dem Bild ist ein Hund bzw. Wolf. Er ist auf der Wiese. Er schl"
    assert TextSettings(max_sentences=1).finished(Answer(text, "stop")).text == "Auf dem Bild ist ein Hund bzw. Wolf."


TEXT = "A dog sits. It is red. There is a"


@pytest.mark.parametrize(
    ("settings", "reason", "expected"),
    [
        ({}, "length", TEXT),
        ({"prefix": "ohwx, ", "suffix": "!"}, "stop", f"ohwx, {TEXT}!"),
        ({"max_sentences": 1}, "stop", "A dog sits."),
        ({"max_sentences": 2}, "length", "A dog sits. It is red."),
        ({"max_sentences": 3}, "stop", TEXT),
        ({"complete_sentences": True}, "length", "A dog sits. It is red."),
        ({"complete_sentences": True}, "stop", TEXT),
        ({"complete_sentences": True, "max_sentences": 1, "prefix": "p ", "suffix": " s"}, "length", "p A dog sits. s"),
    ],
)
def test_texts_are_finished(settings, reason, expected):
    words = [{"word": word, "start": TEXT.index(word), "end": TEXT.index(word) + len(word)} for word in ("dog", "red.")]
    answer = TextSettings(**settings).finished(Answer(TEXT, reason, words=words))
    assert (answer.text, answer.finish_reason) == (expected, reason)
    assert [expected[word["start"] : word["end"]] for word in answer.words] == [
        word for word in ("dog", "red.") if word in expected
    ]
    assert TextSettings(**settings).finished(Answer(error="is damaged")).text == ""
    unfinished = TextSettings(complete_sentences=True).finished(Answer("A dog that", "length"))
    assert unfinished.text == "A dog that"


@pytest.mark.parametrize(
    "method", ["sira", "vcd", *(pytest.param(each, marks=pytest.mark.slow) for each in ("greedy", "sid"))]
)
def test_settings_against_repetition_are_those_of_transformers(demo, method):
    settings = {"repetition_penalty": 1.5}
    if method in ("sira", "greedy"):  # the others' cut-offs sometimes leave one token only: see below
        settings["no_repeat_ngram_size"] = 3
    plain = under(demo, method, max_new_tokens=24)
    lvlm, inputs = under(plain, **settings), plain.prepare([Image.open(EXAMPLES[0])], [PROMPT])
    expected = plain.decode(inputs, 24, do_sample=False, **settings)
    assert torch.equal(lvlm.generate(inputs), expected[:, inputs["input_ids"].shape[1] :])
    assert not torch.equal(plain.generate(inputs), lvlm.generate(inputs))


@pytest.mark.parametrize("num_beams", [1, 2])
def test_padding_is_no_repetition(num_beams, photos, qwen_folder):
    """Left padding of a batch must not be punished: in Qwen's checkpoints it is an end token."""
    settings = {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2, "num_beams": num_beams}
    lvlm = load(qwen_folder, dtype="float32", max_new_tokens=8, **settings)
    pictures = [open_picture(str(photos[name])).image for name in ("coffee", "tall")]
    prompts = ["What?", "Describe this picture with many words, please, and then once more."]
    together = [answer.text for answer in lvlm.answer(lvlm.prepare(pictures, prompts))]
    alone = [lvlm.answer(lvlm.prepare([one], [prompt]))[0].text for one, prompt in zip(pictures, prompts, strict=True)]
    assert together == alone


def test_where_a_cut_off_leaves_one_token_it_is_taken_even_if_it_repeats():
    tokens, inf = torch.tensor([[5, 6, 5], [5, 6, 5]]), torch.inf
    scores = torch.full((2, 8), -inf)
    scores[0, 6] = 1.0  # all that a plausibility cut-off left
    scores[1, 5:7] = 1.0
    allowed = NoRepeatedNgrams(2)(tokens, scores)
    assert torch.equal(allowed[0], scores[0])
    assert allowed[1].tolist() == [-inf] * 5 + [1.0, -inf, -inf]


def test_one_token_is_no_ngram():
    with pytest.raises(SettingsError, match=r"`no_repeat_ngram_size=` 1: must be 0 \(off\) or at least 2"):
        load("demo", no_repeat_ngram_size=1)


FAST = ("-p", "demo", "--max-new-tokens", 8)


@pytest.mark.parametrize(
    ("option", "keys"),
    [
        ("text.prefix=ohwx, ", {"text_settings": {"prefix": "ohwx, "}}),
        ("suffix= (drawn)", {"text_settings": {"suffix": " (drawn)"}}),
        ("generation.repetition_penalty=9.5", {"repetition_penalty": 9.5}),
    ],
)
def test_an_option_changes_text_key_and_record_and_is_kept_apart(sira, tmp_path, option, keys):
    (value,) = keys["text_settings"].values() if "text_settings" in keys else keys.values()
    output, given = tmp_path / "captions.jsonl", ("--set", option)
    plain = json.loads(sira("caption", EXAMPLES[0], *FAST, "--json")[1])
    assert sira("caption", EXAMPLES[0], *FAST, *given, "-o", output)[0] == 0
    record, before = json.loads(output.read_text()), output.read_bytes()
    assert record["key"] != plain["key"]
    assert record["text"] != plain["text"]
    assert record.keys() - plain.keys() == keys.keys()
    assert keys.items() <= record.items()
    code, _, err = sira("caption", EXAMPLES[0], *FAST, "-o", output)
    assert (code, f"is {value!r} there and None now" in err) == (2, True)
    assert sira("caption", EXAMPLES[0], *FAST, *given, "-o", output)[0] == 0
    assert output.read_bytes() == before


def test_benchmarks_get_answers_as_the_model_gave_them(sira, tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("model: bundled\nsira: {k: 7}\ntext: {prefix: 'ohwx, '}\n")
    sira("demo", "--export", tmp_path / "scenes", "--limit", 2)
    asked = (*(tmp_path / "scenes/pope").glob("*random*.json"), "--images", tmp_path / "scenes/images")
    assert sira("eval", "pope", *asked, "-p", preset, "--no-controls", "-o", tmp_path / "out")[0] == 0
    (answers,) = (tmp_path / "out").glob("sira-*.jsonl")
    assert {json.loads(line)["text"].rstrip(".") for line in answers.read_text().splitlines()} <= {"Yes", "No"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A dog. There There There", "there"),
        ("It is a dog, a dog, a dog, a dog.", "a dog"),
        ("我看到猫猫猫", "猫"),
        ("A very, very big dog and a dog and a cat.", ""),
        ("The plate says 0 0 0 0, room 1, room 2, room 3.", ""),
    ],
)
def test_a_text_that_repeats_itself_is_known(text, said):
    assert repetition(text) == said
