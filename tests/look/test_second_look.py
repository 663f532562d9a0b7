"""A second look: the answers are those of `sira ask`, in every family, at the price of a few rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image
from skimage import data

from sira_cli import load
from sira_cli.core import reference
from sira_cli.core.passes import BIDIRECTIONAL, ImagePrefix
from sira_cli.errors import UnsupportedModelError
from sira_cli.look import second_look
from sira_cli.look.claims import ObjectFinder, Verify
from sira_cli.look.finders import Asked
from sira_cli.look.mask import GivenTokens
from sira_cli.look.second_look import SecondLook, answer_tokens
from sira_cli.models import presets
from sira_cli.models.progress import Start, Trail
from sira_cli.run.task import Caption
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.helpers import learned_vocabulary, loaded, under

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
QUESTIONS = ["Is there a cat on the table?", "Is there snow in the image?", "Is there a very small old wooden boat?"]
CHELSEA = Image.fromarray(data.chelsea())


@pytest.fixture(params=[*REPRESENTATIVES, "Gemma 4 E", "LLaVA-NeXT", "Pixtral (LLaVA)"], scope="module")
def greedy(request, checkpoint_of):
    return load(checkpoint_of(request.param), method="greedy", dtype="float32", max_new_tokens=1)


def asked(lvlm, image, question):
    """The logits of the first token of `lvlm.ask`, taken from the model itself: `[V]`."""
    seen = []
    handle = lvlm.model.register_forward_hook(lambda model, args, output: seen.append(output.logits[0, -1].float()))
    try:
        lvlm.ask(image, question)
    finally:
        handle.remove()
    return seen[0]


def look_of(lvlm) -> SecondLook:
    """A second look whose tokenizer may have no token for yes, as those of tiny models."""
    look = SecondLook.__new__(SecondLook)
    look._lvlm, look._worded, look.finder = lvlm, {}, ObjectFinder(Verify(), lvlm.preset)
    return look


def test_answers_are_those_of_ask_in_every_family(greedy, monkeypatch):
    passes, look = [], look_of(greedy)
    monkeypatch.setattr(second_look, "ImagePrefix", lambda *args: passes.append(args) or ImagePrefix(*args))
    for image in (CHELSEA, CHELSEA.crop((0, 0, 300, 300)).resize((700, 200))):
        found = look.last_logits(image, QUESTIONS)
        expected = torch.stack([asked(greedy, image, question) for question in QUESTIONS])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(found[0], found[1], atol=1e-3)
        torch.testing.assert_close(found, look._whole(image, QUESTIONS), atol=1e-4, rtol=1e-4)
    assert len(passes) == (0 if greedy.model.config.model_type == "paligemma" else 2)


def test_questions_before_the_picture_share_no_rows(llava_folder):
    lvlm = load(llava_folder, method="greedy", dtype="float32", max_new_tokens=1)
    lvlm.processor.chat_template = "{{ messages[-1]['content'][-1]['text'] }} <image> :"
    expected = torch.stack([asked(lvlm, CHELSEA, question) for question in QUESTIONS])
    torch.testing.assert_close(look_of(lvlm).last_logits(CHELSEA, QUESTIONS), expected, atol=1e-4, rtol=1e-4)


def test_a_thing_is_asked_about_once_and_the_picture_is_encoded_once(demo):
    encoded = []
    handle = demo.model.get_encoder(modality="image").register_forward_hook(lambda *args: encoded.append(1))
    try:
        check = demo.check(CHELSEA, "A dog sits beside a cat and a tree. " * 600)
    finally:
        handle.remove()
    assert [(claim.thing, len(claim.spans)) for claim in check.objects] == [("dog", 600), ("cat", 600), ("tree", 600)]
    assert len(encoded) == 1
    alone = demo.check(CHELSEA, "A dog, a cat, a tree.")
    for one, other in zip(check.objects, alone.objects, strict=True):
        assert one.support == pytest.approx(other.support, abs=1e-6)


@pytest.mark.parametrize("mode", ["flag", "guide", "best"])
def test_batches_of_a_task_share_a_second_look(demo, mode):
    task = Caption.of(demo.preset, demo.decoder, verify=mode)
    look = task.second_look(demo)
    picture = [CHELSEA]
    task.way(demo).answers(picture, demo.prepare(picture, [task.prompt]), [0])
    assert task.second_look(demo) is look


@pytest.mark.parametrize("far", [3.0, 300.0])
def test_a_model_that_answers_neither_yes_nor_no(demo, monkeypatch, far):
    """Support is that of the two logits all the same, however improbable both are; `neither` is what lies elsewhere."""
    look, words = SecondLook(demo), [["Yes", "yes", "YES"], ["No", "no", "NO", "Not", "not"]]
    known = [[demo.vocabulary.encode(space + word) for space in ("", " ") for word in each] for each in words]
    yes, no = (sorted({ids[0] for ids in each if len(ids) == 1}) for each in known)
    logits = torch.zeros(1, 100 + max(yes + no))
    logits[0, yes], logits[0, no], logits[0, 0] = -far, -far - 1.0, far
    monkeypatch.setattr(look, "last_logits", lambda image, questions, prefix: logits)
    (claim,) = look.check(CHELSEA, "A cat.").objects
    odds = len(yes) / len(no) * math.e
    assert claim.support == pytest.approx(odds / (1 + odds), abs=1e-5)
    assert claim.neither == pytest.approx(1 - logits[0].double().softmax(0)[yes + no].sum().item(), abs=1e-6)


def test_the_words_of_another_language_are_a_key_of_a_preset(demo):
    """Its yes and no instead of the English ones, and its question without an English article."""
    own = {"prompts": {"verify": 'Is there "{name}"?'}, "verify": {"yes": "No, no", "no": "Yes, yes"}}
    preset = presets.validate({"model": "x", **own}, "test")
    english = demo.preset.verify.model_copy(update={"yes": "Yes, yes", "no": "No, no"})
    changes = ({"prompts": preset.prompts, "verify": words} for words in (preset.verify, english))
    looks = [SecondLook(demo.under(demo.decoder, demo.preset.model_copy(update=each))) for each in changes]
    one, other = (look.check(CHELSEA, "A cat.").objects[0].support for look in looks)
    assert one == pytest.approx(1 - other, abs=1e-5)
    finder = looks[0].finder
    assert [*map(finder.question, finder.words.things("A cat."))] == ['Is there "cat"?']
    expected = {"mode": "flag", "words": "chair+amber/1", "question": preset.prompts.verify, "min_support": 0.5}
    assert Verify().settings(preset) == expected | own["verify"]


def test_the_model_lists_the_objects_itself(demo, monkeypatch):
    text = "A bicycle, a table and a kitsune."
    look = SecondLook(demo, Verify(words=Asked()))
    prompt = "What is in this picture?"
    assert look.answer(CHELSEA, prompt).strip() == under(demo, "greedy", max_new_tokens=256).ask(CHELSEA, prompt).text
    asked = []
    monkeypatch.setattr(look, "answer", lambda image, prompt: asked.append(prompt) or "- a kitsune\n- a dog\n- table")
    found = look.check(CHELSEA, text)
    assert asked == [Asked().request(text)]
    assert [(claim.thing, claim.spans) for claim in found.objects] == [("table", ((13, 18),)), ("kitsune", ((25, 32),))]
    assert found.words == "ask"


YES, NO = ["Yes", "yes", "YES"], ["No", "no", "NO", "Not", "not"]


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize(("yes", "no"), [(YES, NO), (["Ja", "ja"], ["Nein", "nein"]), (["Да"], ["Нет"])])
def test_answers_begin_with_their_tokens(kind, yes, no):
    """Also those that the tokenizer has not learned, where two words do not share their first byte."""
    vocabulary = learned_vocabulary(kind, ["Yes No what color is the dog"] * 9)
    if vocabulary.encode_known(yes[0])[:1] == vocabulary.encode_known(no[0])[:1]:  # the first byte of all such letters
        with pytest.raises(UnsupportedModelError, match="with the same token"):
            answer_tokens(vocabulary, yes, no)
        return
    for_yes, for_no = map(set, answer_tokens(vocabulary, yes, no))
    assert not for_yes & for_no
    if len(vocabulary.encode_known(yes[0])) > 1:
        assert {vocabulary.encode_known(word)[0] for word in yes} <= for_yes
    if (kind, yes) == ("bytes", YES):  # single tokens are enough where there are some: "YES" is letters
        spellings = [vocabulary.encode(text) for word in yes for text in (word, f" {word}")]
        assert for_yes == {ids[0] for ids in spellings if len(ids) == 1} < {ids[0] for ids in spellings}


PICTURES = [CHELSEA, CHELSEA.crop((0, 0, 300, 300)).resize((200, 120))]
PROMPTS = ["Describe this image.", "What is there to be seen in this image? Say all."]
# Some layers of these keep no columns of a prompt for long: windows move on, and states have none.
MOVES_ON = ("gemma3", "qwen3_5", "gemma4")
GIVEN = [[40, 41, 42, 43, 44], [50, 51, 52]]


def kept(steps):
    """A processor that keeps the scores of every step."""
    return lambda input_ids, scores: steps.append(scores.clone()) or scores


@pytest.fixture(params=REPRESENTATIVES, scope="module")
def folder(request, checkpoint_of):
    return checkpoint_of(request.param)


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_given_tokens_and_what_follows_them(folder, method):
    lvlm = load(folder, method=method, dtype="float32", max_new_tokens=7)
    inputs = lvlm.to_device(lvlm.prepare(PICTURES, PROMPTS))
    first, trail = [], Trail([0, 1])
    start = Start(GIVEN, processors=(kept(first), GivenTokens(GIVEN, inputs["input_ids"].shape[1])))
    texts = lvlm.generate(inputs, start=start, trail=trail).tolist()
    trail.end(texts)
    for row, given in enumerate(GIVEN):
        assert texts[row][: len(given)] == given
        case = loaded(lvlm, lvlm.to_device(lvlm.prepare([PICTURES[row]], [PROMPTS[row]])))
        alone = reference.decode(case, max(lvlm.k, 1), 0.0, 6, follow=texts[row])
        expected = alone.full if method == "greedy" else (1 + lvlm.alpha) * alone.full - lvlm.alpha * alone.cf
        torch.testing.assert_close(torch.stack(first)[:6, row], expected, atol=1e-4, rtol=1e-4)
    assert trail.back(inputs, [0], [[texts[0][0] + 1]]) is None  # never decoded
    for rows, counts in (([0, 1], [5, 3]), ([1], [6]), ([1, 0], [0, 0])):
        tokens = [texts[row][:count] for row, count in zip(rows, counts, strict=True)]
        back = trail.back(inputs, rows, tokens)
        assert (back is None) == (lvlm.model.config.model_type in MOVES_ON)
        if back is None:
            continue
        (shorter, start), again = back, []
        given = GivenTokens([text[start.in_inputs :] for text in tokens], shorter["input_ids"].shape[1])
        other = lvlm.generate(shorter, start=replace(start, processors=(kept(again), given))).tolist()
        for place, row in enumerate(rows):
            torch.testing.assert_close(again[0][place], first[start.in_inputs][row], atol=1e-4, rtol=1e-4)
            if counts[place]:
                assert other[place] == texts[row][start.in_inputs :]
                torch.testing.assert_close(again[-1][place], first[-1][row], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("folder", [*REPRESENTATIVES, "Gemma 4 E"], indirect=True)
@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_a_second_look_takes_the_pictures_rows_from_the_caption(folder, method):
    """Its answers are those of prompts of their own; the picture itself is not even opened again."""
    lvlm = load(folder, method=method, dtype="float32", max_new_tokens=3)
    inputs, trail = lvlm.to_device(lvlm.prepare(PICTURES, PROMPTS)), Trail([0, 1])
    trail.end(lvlm.generate(inputs, trail=trail).tolist())
    look, recomputed = look_of(lvlm), lvlm.model.config.model_type in {*MOVES_ON, *BIDIRECTIONAL}
    for at, picture in zip(look.at(PICTURES, inputs, trail), PICTURES, strict=True):
        assert (at._prefix is None) == recomputed
        seen = picture if recomputed else Image.new("RGB", picture.size)
        found = look.last_logits(seen, QUESTIONS, at._prefix)
        torch.testing.assert_close(found, look.last_logits(picture, QUESTIONS), atol=1e-4, rtol=1e-4)
