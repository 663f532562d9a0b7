"""Reasoning in what the server answers: apart from the text, whole and in streams."""

from __future__ import annotations

import ollama
import pytest
from PIL import Image

from sira_cli import load
from tests.serve.helpers import PICTURES, PROMPT, client_of, running, said
from tests.support.checkpoints import write_qwen
from tests.support.scripted import script, written

THOUGHT = "There is a cat on the table."
TEXT = "A cat on the table."
THINK = {"sira": {"think": True}}
SWITCHES = ({"enable_thinking": True}, {"enable_thinking": None, "thinking": True})


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """Qwen3.5, whose template has a switch, and the address of a server with it."""
    lvlm = load(write_qwen(tmp_path_factory.mktemp("qwen") / "x", "3.5"), max_new_tokens=60, dtype="float32")
    with running(lvlm) as address:
        yield lvlm, address


@pytest.fixture
def asked(thinker, monkeypatch):
    """Ask by the official client while the model writes a thought and a text, if its prompt leaves a thought open."""
    lvlm, address = thinker
    thought, text = (
        written(lvlm.processor.tokenizer, f"{before}{TEXT}<|im_end|>") for before in (f"{THOUGHT}\n</think>\n\n", "")
    )
    usual = lvlm.prepare([Image.open(PICTURES[0]).convert("RGB")], [PROMPT])["input_ids"].shape[1]
    script(monkeypatch, lambda length: text if length == usual else thought)
    with client_of(address) as client:
        name = client.models.list().data[0].id
        yield lambda body, **more: client.chat.completions.create(model=name, messages=said(), extra_body=body, **more)


@pytest.mark.parametrize("body", [THINK, *({"chat_template_kwargs": each} for each in SWITCHES)])
def test_reasoning_is_beside_the_content(asked, body):
    answer = asked(body)
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.reasoning_content) == (TEXT, THOUGHT)
    assert choice.finish_reason == "stop"
    chunks = list(asked(body, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    parts = [(getattr(delta, "reasoning_content", None) or "", delta.content or "") for delta in deltas]
    assert tuple(map("".join, zip(*parts, strict=True))) == (THOUGHT, TEXT)
    assert min(sum(map(bool, column)) for column in zip(*parts, strict=True)) > 3
    assert not any(thought and text for thought, text in parts)
    assert chunks[-1].usage == answer.usage
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


@pytest.mark.parametrize("body", [{}, {"chat_template_kwargs": {"enable_thinking": False}}, {"sira": {"think": False}}])
def test_without_being_asked_to_it_does_not_think(asked, body):
    answer = asked(body)
    assert (answer.choices[0].message.content, answer.usage.completion_tokens_details.reasoning_tokens) == (TEXT, 0)
    assert not hasattr(answer.choices[0].message, "reasoning_content")


def test_stops_and_log_probabilities_are_of_the_text_and_a_thought_that_is_cut_off_ends_by_its_length(asked):
    (choice,) = asked(THINK, logprobs=True, stop=[" on the"]).choices
    assert (choice.message.content, choice.message.reasoning_content) == ("A cat", THOUGHT)
    assert "".join(each.token for each in choice.logprobs.content) == "A cat"
    (choice,) = asked(THINK, max_tokens=4).choices
    assert (choice.message.content, choice.finish_reason) == ("", "length")
    assert THOUGHT.startswith(choice.message.reasoning_content or "nothing")
    assert not any(chunk.choices[0].delta.content for chunk in asked(THINK, max_tokens=4, stream=True))


def test_ollamas_clients_get_both(asked, thinker):
    with ollama.Client(host=thinker[1]) as client:
        name, images = client.list().models[0].model, [PICTURES[0].read_bytes()]
        turn = {"role": "user", "content": PROMPT, "images": images}
        message = client.chat(name, [turn], think="high").message
        assert (message.thinking, message.content) == (THOUGHT, TEXT)
        parts = [part.message for part in client.chat(name, [turn], think=True, stream=True)]
        assert "".join(part.thinking or "" for part in parts) == THOUGHT
        assert "".join(part.content for part in parts) == TEXT
        answer = client.generate(name, PROMPT, images=images, think=False)
        assert (answer.thinking, answer.response) == (None, TEXT)
