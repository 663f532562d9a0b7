"""Reasoning apart from texts: markers of real tokenizers and templates, whole and token by token."""

from __future__ import annotations

import re

import pytest
from transformers import AutoTokenizer

from sira_cli.models.reasoning import ReasoningParser
from sira_cli.models.vocabulary import Detokenizer, Vocabulary
from tests.support.checkpoints import ALWAYS_THINKING, THINKING

ENDS = {"qwen3": "<|im_end|>", "qwen2.5": "<|im_end|>", "gemma4": "<turn|>"}
KIMI = "<|im_assistant|>assistant<|im_middle|>"  # the end of Kimi-VL's template, which says nothing of thoughts


@pytest.fixture(scope="module")
def vocabularies(checkpoint_of):
    """Of Qwen3, where markers are tokens; of Qwen2.5, where they are text; of Gemma 4, where they are special."""
    families = {"qwen3": "Qwen3-VL", "qwen2.5": "Qwen2.5-VL", "gemma4": "Gemma 4 E", "llama": "LLaVA-NeXT"}
    return {name: Vocabulary(AutoTokenizer.from_pretrained(checkpoint_of(family))) for name, family in families.items()}


# What a model writes; what is its text, its reasoning, and whether it has come to the end of it.
BOTH = [
    ("A cup.<END>", "A cup.", "", False),
    ("<think>\nThe cup is red.\n</think>\n\nA red cup.<END>", "A red cup.", "The cup is red.", False),
    ("<think></think>A cup.<END>", "A cup.", "", False),
    ("<think>\n\n</think>\n\nA cup.<END>", "A cup.", "", False),
    ("<think>a</think>A red<think>b</think> cup.<END>", "A red cup.", "a\n\nb", False),
    ("<think>The cup is", "", "The cup is", True),
    ("<think>The cup is<END>", "", "The cup is", True),
    ("<think>The cup.</think>", "", "The cup.", False),
    ("<think>a</think><answer>A cup.</answer><END>", "A cup.", "a", False),
    ("<think>a</think>\n<|begin_of_box|>A cup.<|end_of_box|><END>", "A cup.", "a", False),
    ("<think>a <b> < / c</think>A cup < 3.<END>", "A cup < 3.", "a <b> < / c", False),
]
OPENED = [
    ("The cup is red.\n</think>\n\nA red cup.<END>", "A red cup.", "The cup is red.", False),
    ("</think>A cup.<END>", "A cup.", "", False),
    ("<think>\nThe cup.\n</think>\n\nA cup.<END>", "A cup.", "The cup.", False),  # the prompt has opened it already
    ("The cup is red.<END>", "", "The cup is red.", True),
    ("a</think>A red<think>b</think> cup.<END>", "A red cup.", "a\n\nb", False),
]
CLOSED_ONLY = [("The cup is red.</think>A red cup.<END>", "A red cup.", "The cup is red.", False)]
GEMMA = [
    ("<|channel>thought\nThe cup is red.<channel|>A red cup.<END>", "A red cup.", "The cup is red.", False),
    ("<|channel>thought\n<channel|>A cup.<END>", "A cup.", "", False),  # of the large ones, if not asked to think
    ("<|channel>thought\nThe cup", "", "The cup", True),
    ("<|channel>a<channel|>A red<|channel>thought\nb<channel|> cup.<END>", "A red cup.", "a\n\nb", False),
    ("A thought\nof a cup.<END>", "A thought\nof a cup.", "", False),
]
SHOWN = [  # by a picture, to a model without thoughts
    (text, text.removesuffix("<END>"), "", False)
    for text in ("It says <think>a</think> b.<END>", "It says </think> b.<END>", "It says <answer>b</answer>.<END>")
]


CASES = [
    *(("qwen3", THINKING, "<think>\n\n</think>\n\n", *case) for case in [*BOTH, *CLOSED_ONLY]),
    *(("qwen3", ALWAYS_THINKING, "<|im_start|>assistant\n<think>\n", *case) for case in OPENED),
    *(("qwen2.5", "", "", *case) for case in [*BOTH, *SHOWN]),
    *(("qwen2.5", THINKING, "<think>\n\n</think>\n\n", *case) for case in [*BOTH, *CLOSED_ONLY]),
    *(("qwen2.5", ALWAYS_THINKING, "<think>\n", *case) for case in OPENED),
    *(("qwen2.5", KIMI, KIMI, re.sub(r"<(/?)think>", r"◁\1think▷", written), *found) for written, *found in BOTH),
    *(("gemma4", "", "<|turn>model\n", *case) for case in GEMMA),
]


@pytest.mark.parametrize(("model", "template", "tail", "written", "text", "reasoning", "inside"), CASES)
def test_texts_and_thoughts_are_told_apart(vocabularies, model, template, tail, written, text, reasoning, inside):
    vocabulary = vocabularies[model]
    parser = ReasoningParser(vocabulary, template, tail)
    tokens = vocabulary.encode(written.replace("<END>", ENDS[model]))
    whole = parser.parse(tokens)
    assert (whole.text, whole.reasoning, whole.inside) == (text, reasoning, inside)
    assert (whole.reasoning_tokens > 0) >= (reasoning != "")
    assert whole.reasoning_tokens <= len(tokens) - len(vocabulary.encode(text.replace(" ", "")[:1]))

    growing = parser.begin()  # token by token: nothing is shown that is no part of what is said in the end
    shown = ["", ""]
    for token in tokens:
        growing.add(token)
        now = growing.parsed(final=False)
        if now.retracted:  # a closing marker alone, which cannot be foreseen
            shown = ["", ""]
        for before, part, final in zip(shown, (now.text, now.reasoning), (text, reasoning), strict=True):
            assert part.startswith(before)
            assert final.startswith(part) or now.retracted < whole.retracted
        shown = [now.text, now.reasoning]
    assert growing.parsed() == whole

    words = parser.words(tokens)
    assert [word.text for word in words] == text.split()
    for word in words:
        assert text[word.start : word.end] == word.text
        read = vocabulary.text(tokens[word.first : word.last])
        assert word.text in read or "<think>" in written  # a thought may stand inside of a word's tokens


def test_an_answer_at_once_begins_outside_of_the_thought_that_other_prompts_open(vocabularies):
    parser = ReasoningParser(vocabularies["qwen3"], ALWAYS_THINKING, "<think>\n")
    tokens = vocabularies["qwen3"].encode("A cup.")
    assert parser.parse(tokens).reasoning == "A cup."
    assert parser.parse(tokens, at_once=True).text == "A cup."


@pytest.mark.parametrize("model", ["qwen3", "qwen2.5", "gemma4", "llama"])
def test_long_thoughts_are_read_as_a_whole_is(vocabularies, model):
    """Characters of several tokens, and spaces that depend on the token before (Llama's first has none)."""
    vocabulary, thought = vocabularies[model], "Ein Hündchen 🐕 und 茶碗, rot.\n" * 20
    opening, closing = ("<|channel>", "<channel|>") if model == "gemma4" else ("<think>", "</think>")
    tokens = vocabulary.encode(thought)
    whole = vocabulary.text(tokens)  # tiny vocabularies know few characters
    assert "".join(map(Detokenizer(vocabulary).add, tokens)) == whole
    tokens = vocabulary.encode(f"{opening}{thought}{closing}A cup.")
    assert ReasoningParser(vocabulary).parse(tokens).reasoning == whole.strip()
