"""The loop guard: it ends what repeats itself, at once, in each row of a batch by itself, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import LogitsProcessor

from sira_cli import load
from sira_cli.models.answering import decoding
from sira_cli.models.answering.loops import COPIES, LONGEST, RETRIED, TOKENS, Loop, LoopGuard, find_loop, first_copy

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "Please describe this image in detail."


def slow(tokens: list[int]) -> Loop | None:
    """The definition: the shortest beginning that ends in enough equal pieces, and where the first of them ends."""
    for end in range(1, len(tokens) + 1):
        for length in range(1, LONGEST + 1):
            span = max(COPIES * length, TOKENS)
            tail = tokens[end - span : end]
            if span <= end and all(tail[at] == tail[at - length] for at in range(length, span)):
                first = end - span + length
                while first > length and tokens[first - 1] == tokens[first - 1 - length]:
                    first -= 1
                return Loop(first, end)
    return None


def test_loops_are_found_as_the_definition_says():
    draw, found = random.Random(0), 0
    for _ in range(300):
        piece = [draw.randrange(4) for _ in range(draw.randrange(1, 30))]
        before = [draw.randrange(4) for _ in range(draw.randrange(20))]
        tokens = before + piece * draw.randrange(7) + [draw.randrange(4) for _ in range(draw.randrange(20))]
        assert find_loop(tokens) == slow(tokens)
        found += find_loop(tokens) is not None
    assert 50 < found < 250


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [
        ([1] * 31, None),
        ([1] * 32, Loop(1, 32)),
        ([9, 9, *[1, 2, 3] * 11], Loop(5, 34)),
        ([*range(100)] * 4, Loop(100, 400)),
        ([*range(100)] * 3, None),
        ([*range(129)] * 5, None),  # longer than what is looked for
    ],
)
def test_where_a_loop_begins_and_is_certain(tokens, loop):
    assert find_loop(tokens) == loop


def test_the_guard_ends_rows_by_themselves():
    guard = LoopGuard([[], []])
    for step in range(40):
        ended = guard(torch.tensor([[0, 7], [0, step]]), torch.empty(0))
        assert ended.tolist() == [step + 1 >= TOKENS, False]


@pytest.mark.parametrize(
    ("text", "beginning", "expected"),
    [
        ("A dog. A cat sits. A cat sits. A cat", "A dog. A cat sits.", "A dog. A cat sits."),
        ("A dog. A cat sits. A cat sits. A cat", "A dog. A cat", "A dog. A cat sits."),
        ("red, red, red, red, red", "red,", "red,"),
    ],
)
def test_the_first_copy(text, beginning, expected):
    assert first_copy(text, beginning) == expected


@pytest.fixture
def looping(monkeypatch):
    """The bundled model with a processor that makes it repeat a sentence, in rows whose prompt has an odd length."""
    piece = load("demo").vocabulary.encode(" There is a dog.")

    class Parrot(LogitsProcessor):
        def __init__(self, prompt: int, odd: torch.Tensor) -> None:
            self.prompt, self.odd = prompt, odd

        def __call__(self, input_ids, scores):
            step = input_ids.shape[1] - self.prompt
            scores = scores.clone()
            scores[self.odd, piece[step % len(piece)]] += 100
            return scores

    real = decoding.processors_of

    def processors(generation, attention_mask):
        odd = attention_mask.sum(dim=1) % 2 == 1
        found = real(generation, attention_mask)
        found.insert(0, Parrot(attention_mask.shape[1], odd))
        return found

    monkeypatch.setattr(decoding, "processors_of", processors)
    return piece


def prompts_of(lvlm, image) -> list[str]:
    """A prompt of odd length and one of even length."""
    lengths = {lvlm.lengths(lvlm.prepare([image], [p]))[1][0] % 2: p for p in (PROMPT, f"{PROMPT} {PROMPT}", "What?")}
    return [lengths[1], lengths[0]]


def answers(lvlm, image, prompts):
    return lvlm.answer(lvlm.prepare([image] * len(prompts), prompts))


def test_what_becomes_of_a_text_that_loops(looping):
    image = Image.open(EXAMPLES[0])
    free = load("demo", max_new_tokens=60)
    prompts = prompts_of(free, image)
    endless, plain = answers(free, image, prompts)
    assert (endless.finish_reason, endless.output_tokens) == ("length", 60)
    assert endless.text.count("There is a dog.") > 5
    for on_loop in ("keep", "trim", "retry"):
        guarded = load("demo", max_new_tokens=60, on_loop=on_loop)
        ended, other = answers(guarded, image, prompts)
        assert other == plain  # the other row of the batch is as it was
        assert answers(guarded, image, prompts[:1]) == [ended]
        if on_loop == "retry":
            assert ended.warnings == (RETRIED,)
            continue
        span = max(COPIES * len(looping), TOKENS)
        assert (ended.finish_reason, ended.warnings) == ("loop", ())
        assert ended.output_tokens == span  # at once
        assert endless.text.startswith(ended.text)
        assert ended.text.count("There is a dog.") == (1 if on_loop == "trim" else span // len(looping))


def test_a_text_that_loops_in_its_second_try_is_trimmed(looping, monkeypatch):
    image = Image.open(EXAMPLES[0])
    guarded = load("demo", max_new_tokens=60, on_loop="retry")
    monkeypatch.setattr("sira_cli.models.answering.answers.RETRY_NGRAM", 0)  # so that the second try is like the first
    (ended,) = answers(guarded, image, prompts_of(guarded, image)[:1])
    assert (ended.finish_reason, ended.text.count("There is a dog.")) == ("loop", 1)


def test_texts_that_do_not_loop_are_untouched():
    images = [Image.open(path) for path in EXAMPLES[:2]]
    prompts = [PROMPT] * len(images)
    plain = load("demo")
    expected = plain.answer(plain.prepare(images, prompts))
    for on_loop in ("keep", "trim", "retry"):
        guarded = load("demo", on_loop=on_loop)
        assert guarded.answer(guarded.prepare(images, prompts)) == expected


def test_records_of_a_loop(sira, looping, tmp_path):
    lvlm = load("demo")
    prompt = prompts_of(lvlm, Image.open(EXAMPLES[0]))[0]
    command = ("caption", EXAMPLES[0], "-p", "demo", "--prompt", prompt, "--max-new-tokens", 60)
    assert sira(*command, "--set", "on_loop=trim", "-o", tmp_path / "a.jsonl")[0] == 0
    record = json.loads((tmp_path / "a.jsonl").read_text())
    assert (record["finish_reason"], record["on_loop"]) == ("loop", "trim")
    code, _, err = sira(*command, "-o", tmp_path / "a.jsonl")
    assert (code, "generation.on_loop is 'trim' there and None now" in err) == (2, True)
    assert sira("trace", *command[1:], "--set", "on_loop=keep", "-o", tmp_path / "t.jsonl")[0] == 0
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[-1])["finish_reason"] == "loop"
