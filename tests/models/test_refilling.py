"""Texts in refilled slots that are watched, ended and paused from outside; each is that of a single prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.models.answering.refilling import RefilledSlots
from tests.support import checkpoints

PICTURES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[:3]
PROMPTS = ["What is there?", "And on the left? Say it in a sentence.", "Who?"]


@pytest.fixture(scope="module")
def lvlm(tmp_path_factory):
    """Qwen2.5-VL, which keeps positions of the latest prompt on the model."""
    return load(checkpoints.write_qwen(tmp_path_factory.mktemp("qwen") / "checkpoint"), max_new_tokens=12)


def prepared(lvlm, number):
    return lvlm.prepare([Image.open(PICTURES[number]).convert("RGB")], [PROMPTS[number]])


def alone(lvlm, number):
    return lvlm.answer(prepared(lvlm, number))[0].tokens


def test_two_methods_take_turns_on_one_model(lvlm):
    """Token by token, with a text that is decoded in between."""
    under = {name: lvlm.under(lvlm.preset.method(name)) for name in ("sira", "greedy")}
    slots = {name: RefilledSlots(each) for name, each in under.items()}
    for number in (0, 1):
        for name, each in slots.items():
            each.add([(name, number)], prepared(under[name], number), [0])
    found = {}
    while any(each.under_way for each in slots.values()):
        for each in slots.values():
            found |= {ended.item: ended.answer.tokens for ended in each.advance(pause=lambda: True)}
        alone(lvlm, 2)
    assert found == {(name, number): alone(each, number) for name, each in under.items() for number in (0, 1)}
    assert found["sira", 0] != found["greedy", 0]


def test_a_pause_returns_behind_a_token(lvlm):
    seen = []
    slots = RefilledSlots(lvlm, on_token=lambda item, token, logits: seen.append(token) is not None)
    slots.add(["one"], prepared(lvlm, 0), [0])
    assert len(seen) == 1
    assert slots.advance(pause=lambda: True) == []
    assert len(seen) == 2
    assert slots.advance(pause=lambda: len(seen) == 5) == []
    (ended,) = slots.advance()
    assert tuple(seen) == ended.answer.tokens == alone(lvlm, 0)


def test_the_logits_are_those_that_tokens_are_picked_from(lvlm):
    seen, steps = [], []
    slots = RefilledSlots(lvlm, on_token=lambda item, token, logits: seen.append((item, token, logits)) is not None)
    slots.add([0, 1], lvlm.prepare([Image.open(path).convert("RGB") for path in PICTURES[:2]], PROMPTS[:2]), [0, 0])
    while slots.under_way:
        slots.advance()
    lvlm.answer(prepared(lvlm, 1), on_tokens=lambda tokens, step: steps.append((tokens[0], step.contrast[0])))
    own = [(token, logits) for item, token, logits in seen if item == 1]
    assert [token for token, _ in own] == [token for token, _ in steps]
    for (_, logits), (_, expected) in zip(own, steps, strict=True):
        assert torch.allclose(logits, expected, atol=1e-3)


def test_a_text_that_is_ended_leaves_and_the_others_go_on(lvlm):
    counts = dict.fromkeys(range(3), 0)

    def count(item, token, logits):
        counts[item] += 1
        return item == 1 and counts[item] == 4

    slots = RefilledSlots(lvlm, on_token=count)
    for number in range(3):
        slots.add([number], prepared(lvlm, number), [0])
    found = {}
    while slots.under_way:
        found |= {ended.item: ended.answer.tokens for ended in slots.advance()}
    assert found == {0: alone(lvlm, 0), 1: alone(lvlm, 1)[:4], 2: alone(lvlm, 2)}
    assert counts[1] == 4
