"""What a decoding step costs besides arithmetic: Python calls more than of greedy decoding, counted."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from tests.support.helpers import case_of, family_prompts, generate, left_pad

PER_LAYER, PER_STEP = 12, 40  # the most for a late layer, and for all else in a step


def calls(model: Any, inputs: dict, tokens: int) -> int:
    """The number of Python functions that `generate` calls."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        generate(model, inputs, max_new_tokens=tokens)
    finally:
        sys.setprofile(None)
    return found


def calls_of_a_step(model: Any, inputs: dict, k: int | None = None) -> int:
    """Those of the fifth step, under a fork of K late layers, or without one."""
    with nullcontext() if k is None else attach(model, SiraConfig(k=k)):
        calls(model, inputs, 2)  # what is looked up once
        return calls(model, inputs, 6) - calls(model, inputs, 5)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Qwen3-VL", "InternVL", "PaliGemma"])
def test_a_step_makes_few_calls_more_than_greedy(name: str):
    case = case_of(name)
    plain, two, three = (calls_of_a_step(case.model, case.inputs, k) for k in (None, 2, 3))
    assert 0 < three - two <= PER_LAYER
    assert 0 < two - plain - 2 * (three - two) <= PER_STEP


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Gemma 3"])
def test_a_late_layer_makes_no_more_calls_with_masks(name: str):
    """Those of padding, and of sliding windows."""
    case = case_of(name)
    batch = left_pad(family_prompts(name, case))
    assert calls_of_a_step(case.model, batch, 3) - calls_of_a_step(case.model, batch, 2) <= PER_LAYER
