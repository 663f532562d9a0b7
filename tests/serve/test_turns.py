"""Conversations of several turns by the official client, against transformers' own rendering and decoding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

import sira_cli
from sira_cli.models.presets import BUNDLED_FOLDER
from tests.serve.helpers import PICTURES, PROMPT, ask, said, streamed, text

FOLLOWING = [{"role": "assistant", "content": "There is a dog."}, {"role": "user", "content": "What is on the left?"}]
AGAIN = [*FOLLOWING, {"role": "assistant", "content": [{"type": "text", "text": "A cup."}]}]
AGAIN += [{"role": "user", "content": [{"type": "text", "text": "Is there a tree?"}]}]


def shown(*pictures: Path) -> list[dict]:
    """One message with several pictures."""
    parts = [said(picture=picture)[0]["content"][0] for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": PROMPT}]}]


def mixed(*texts: str) -> list[dict]:
    """One message with a picture after each of some texts, but for the last one."""
    images = shown(*PICTURES[: len(texts) - 1])[0]["content"]  # and a text, which is cut off
    pairs = zip(({"type": "text", "text": text} for text in texts), images, strict=True)
    return [{"role": "user", "content": [part for pair in pairs for part in pair][:-1]}]


def reference(lvlm, messages: list[dict], *pictures: Path, method: str = "greedy") -> str:
    """What plain `generate` says behind the prompt that transformers makes of the messages."""
    processor = AutoProcessor.from_pretrained(BUNDLED_FOLDER)
    images = iter([Image.open(picture).convert("RGB") for picture in pictures or PICTURES[:1]])
    chat = []
    for message in messages:
        parts = message["content"]
        parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
        parts = [{"type": "image", "image": next(images)} if part["type"] == "image_url" else part for part in parts]
        chat.append({"role": message["role"], "content": parts})
    inputs = processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with sira_cli.attach(lvlm.model, lvlm.sira, method=method), torch.no_grad():
        output = lvlm.model.generate(**inputs, do_sample=False, max_new_tokens=24)
    return processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


CONVERSATIONS = {  # with their pictures
    "five turns": ([*said(), *AGAIN], PICTURES[:1]),
    "a later picture": ([{"role": "user", "content": "Hello."}, FOLLOWING[0], *said()], PICTURES[:1]),
    "a picture per turn": ([*said(), FOLLOWING[0], *said("What is new?", PICTURES[1])], PICTURES[:2]),
    "two pictures in a message": (shown(*PICTURES[:2]), PICTURES[:2]),
    "five pictures": ([*shown(*PICTURES[:3]), FOLLOWING[0], *shown(*PICTURES[:2])], [*PICTURES[:3], *PICTURES[:2]]),
    "between words": (mixed("A dog?", "Or here", "a cat?"), PICTURES[:2]),
}


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_answers_are_those_of_transformers(client, lvlm, method):
    """The stream that does not see sees none of the pictures; conversations with one to five share batches."""
    expected = [reference(lvlm, each, *seen, method=method) for each, seen in CONVERSATIONS.values()]
    with ThreadPoolExecutor(len(expected)) as pool:
        answers = list(pool.map(lambda each: ask(client, each[0], {"method": method}), CONVERSATIONS.values()))
    assert [text(answer) for answer in answers] == expected
    assert len(set(expected)) > 4  # of six
    counts = [answer.sira["image_tokens"] for answer in answers]
    assert counts == [64 * len(seen) for _, seen in CONVERSATIONS.values()]
    messages = CONVERSATIONS["five turns"][0]
    assert "".join(streamed(ask(client, messages, {"method": method}, stream=True))) == expected[0]


def test_seeds_know_all_pictures(client):
    one, other = ([*said(picture=first), FOLLOWING[0], *said("And here?", PICTURES[2])] for first in PICTURES[:2])
    drawn = [text(ask(client, each, temperature=1.0, seed=0, max_tokens=12)) for each in (one, other, one)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_question_is_worded_and_the_caption_asked_for_as_by_the_commands(client, lvlm):
    """In the last turn, and where the picture came without words; a picture after all words comes first."""
    messages = [*said(), *FOLLOWING]
    del messages[0]["content"][1]
    question = {"role": "user", "content": lvlm.preset.prompts.asking("What is on the left?")}
    worded = [*said(lvlm.preset.prompts.caption), FOLLOWING[0], question]
    assert text(ask(client, messages, {"task": "ask", "method": "greedy"})) == reference(lvlm, worded)
    assert text(ask(client, said("Is there a dog?"), {"task": "ask"})) == lvlm.ask(PICTURES[0], "Is there a dog?").text
    assert text(ask(client, [{"role": "user", "content": said()[0]["content"][::-1]}])) == text(ask(client))


@pytest.mark.parametrize("verify", ["flag", "guide"])
def test_a_second_look_is_at_all_pictures(client, lvlm, verify):
    answer = ask(client, CONVERSATIONS["a picture per turn"][0], {"verify": verify})
    expected = lvlm.check(PICTURES[:2], text(answer))
    found = [(each["thing"], each["image"]) for each in answer.sira["objects"]]
    assert found == [(claim.thing, claim.image) for claim in expected.objects] != []


def test_a_template_without_the_assistant_is_refused(client, lvlm, monkeypatch):
    old = lvlm.processor.chat_template
    monkeypatch.setattr(
        lvlm.processor, "chat_template", "{% set messages = messages | selectattr('role', 'eq', 'user') %}" + old
    )
    with pytest.raises(openai.BadRequestError, match="does not take the turns user, assistant, user"):
        ask(client, [*said(), *FOLLOWING])
    assert text(ask(client))
