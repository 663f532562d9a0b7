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
from sira_cli.serve.protocol import ChatRequest
from sira_cli.serve.settings import prompt_of
from tests.serve.helpers import PICTURES, PROMPT, ask, said, streamed

FOLLOWING = [{"role": "assistant", "content": "There is a dog."}, {"role": "user", "content": "What is on the left?"}]
AGAIN = [*FOLLOWING, {"role": "assistant", "content": [{"type": "text", "text": "A cup."}]}]
AGAIN += [{"role": "user", "content": [{"type": "text", "text": "Is there a tree?"}]}]


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


@pytest.mark.parametrize("method", ["greedy", "sira"])
@pytest.mark.parametrize("following", [FOLLOWING, AGAIN], ids=["three turns", "five turns"])
def test_an_answer_is_that_of_transformers(client, lvlm, method, following):
    messages = [*said(), *following]
    expected = reference(lvlm, messages, method=method)
    assert ask(client, messages, {"method": method}).choices[0].message.content == expected
    assert "".join(streamed(ask(client, messages, {"method": method}, stream=True))) == expected
    assert expected != lvlm.caption(PICTURES[0], PROMPT).text


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_each_turn_may_have_a_picture(client, lvlm, method):
    """The stream that does not see sees none of them; conversations with one, two and three pictures share batches."""
    asked = [
        [*said(picture=PICTURES[0]), FOLLOWING[0], *said("What is new?", PICTURES[1])],
        [*said(picture=PICTURES[1]), FOLLOWING[0], *said("What is new?", PICTURES[0])],
        [
            *said(picture=PICTURES[0]),
            FOLLOWING[0],
            *said("And here?", PICTURES[1]),
            *AGAIN[2:3],
            *said("?", PICTURES[2]),
        ],
        [*said(picture=PICTURES[0]), FOLLOWING[0], {"role": "user", "content": "What is new?"}],
    ]
    shown = [PICTURES[:2], PICTURES[1::-1], PICTURES[:3], PICTURES[:1]]
    expected = [reference(lvlm, each, *seen, method=method) for each, seen in zip(asked, shown, strict=True)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda messages: ask(client, messages, {"method": method}), asked))
    assert [answer.choices[0].message.content for answer in answers] == expected
    assert len(set(expected)) == len(expected)
    tokens = [answer.sira["image_tokens"] for answer in answers]
    assert tokens == [2 * tokens[3], 2 * tokens[3], 3 * tokens[3], tokens[3]]


def test_words_seeds_and_other_methods_know_all_pictures(client):
    one, other = ([*said(picture=first), FOLLOWING[0], *said("And here?", PICTURES[2])] for first in PICTURES[:2])
    for sira in ({"method": "vcd"}, {"method": "icd"}, {"words": True}):
        assert ask(client, one, sira, max_tokens=8).choices[0].message.content
    drawn = [
        ask(client, each, temperature=1.0, seed=0, max_tokens=12).choices[0].message.content
        for each in (one, other, one)
    ]
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_question_is_worded_and_the_caption_asked_for_as_by_the_commands(client, lvlm):
    """In the last turn, and where the picture came without words."""
    messages = [*said(), *FOLLOWING]
    del messages[0]["content"][1]
    told = [
        *said(lvlm.preset.prompts.caption),
        FOLLOWING[0],
        said(lvlm.preset.prompts.asking("What is on the left?"))[0],
    ]
    told[2]["content"] = told[2]["content"][1]["text"]
    answer = ask(client, messages, {"task": "ask", "method": "greedy"}).choices[0].message.content
    assert answer == reference(lvlm, told)


@pytest.mark.parametrize("sira", [{"method": "icd"}, {"verify": "guide"}])
def test_other_methods_and_a_second_look_take_turns(client, sira):
    text = ask(client, [*said(), *FOLLOWING], sira, max_tokens=8).choices[0].message.content
    assert text
    assert text != ask(client, said(), sira, max_tokens=8).choices[0].message.content


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([*said(), FOLLOWING[0]], "expected the user's as the last one"),
        ([*said(), FOLLOWING[0], {"role": "user", "content": ""}], "neither text nor picture"),
        (
            [{"role": "assistant", "content": said()[0]["content"]}, FOLLOWING[1]],
            "got one in a message of role assistant",
        ),
    ],
)
def test_conversations_that_have_no_answer(client, messages, words):
    with pytest.raises(openai.BadRequestError, match=words):
        ask(client, messages)


def shown(*pictures: Path, text: str = PROMPT) -> list[dict]:
    """One message with several pictures."""
    parts = [said(picture=picture)[0]["content"][0] for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.mark.parametrize("method", ["sira", pytest.param("greedy", marks=pytest.mark.slow)])
def test_a_message_may_have_several_pictures(client, lvlm, method):
    """Alone, before other turns, and in batches with messages that have fewer."""
    asked = [
        shown(*PICTURES[:2]),
        shown(*PICTURES[1::-1]),
        [*shown(*PICTURES[:3]), FOLLOWING[0], *shown(*PICTURES[:2], text="And here?")],
        shown(PICTURES[0]),
    ]
    pictures = [PICTURES[:2], PICTURES[1::-1], [*PICTURES[:3], *PICTURES[:2]], PICTURES[:1]]
    expected = [reference(lvlm, each, *seen, method=method) for each, seen in zip(asked, pictures, strict=True)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda messages: ask(client, messages, {"method": method}), asked))
    assert [answer.choices[0].message.content for answer in answers] == expected
    assert len(set(expected)) == len(expected)
    assert [answer.sira["image_tokens"] for answer in answers] == [128, 128, 320, 64]
    assert "".join(streamed(ask(client, asked[0], {"method": method}, stream=True))) == expected[0]


def mixed(*texts: str) -> list[dict]:
    """One message with a picture after each of some texts, but for the last one."""
    images = shown(*PICTURES[: len(texts) - 1])[0]["content"]
    pairs = zip(({"type": "text", "text": text} for text in texts), images, strict=True)
    return [{"role": "user", "content": [part for pair in pairs for part in pair][:-1]}]


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_pictures_between_words_stay_there(client, lvlm, method):
    messages = mixed("A dog?", "Or here", "a cat?")
    expected = reference(lvlm, messages, *PICTURES[:2], method=method)
    assert ask(client, messages, {"method": method}).choices[0].message.content == expected
    assert ask(client, messages, {"method": method, "task": "ask"}).choices[0].message.content == expected


def test_pictures_after_all_words_come_first(client, lvlm):
    """As in the commands: many clients send a question, then its picture."""
    question, image = said()[0]["content"][::-1]
    messages = [{"role": "user", "content": [question, image]}]
    assert prompt_of(ChatRequest.read({"messages": messages}), lvlm.preset.prompts) == PROMPT
    assert ask(client, messages).choices[0].message.content == ask(client).choices[0].message.content


@pytest.mark.parametrize("verify", ["flag", "guide"])
def test_a_second_look_is_at_all_pictures(client, lvlm, verify):
    for messages in (shown(*PICTURES[:2]), [*said(picture=PICTURES[0]), FOLLOWING[0], *said(picture=PICTURES[1])]):
        answer = ask(client, messages, {"verify": verify})
        expected = lvlm.check(PICTURES[:2], answer.choices[0].message.content)
        found = [(each["thing"], each["image"]) for each in answer.sira["objects"]]
        assert found == [(claim.thing, claim.image) for claim in expected.objects]
        assert found


def test_the_picture_may_come_later(client, lvlm):
    messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes?"}, *said()]
    expected = reference(lvlm, messages)
    assert ask(client, messages, {"method": "greedy"}).choices[0].message.content == expected


def test_a_template_without_the_assistant_is_refused(client, lvlm, monkeypatch):
    old = lvlm.processor.chat_template
    monkeypatch.setattr(
        lvlm.processor, "chat_template", "{% set messages = messages | selectattr('role', 'eq', 'user') %}" + old
    )
    with pytest.raises(openai.BadRequestError, match="does not take the turns user, assistant, user"):
        ask(client, [*said(), *FOLLOWING])
    assert ask(client).choices[0].message.content
