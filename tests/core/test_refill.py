"""Rows that come and go: each text is what it is alone, in every family, whoever leaves or joins beside it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import CompileConfig

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.core.refill import RowBatch
from sira_cli.core.row_cache import ROOM
from sira_cli.errors import UnsupportedModelError
from tests.support import tiny
from tests.support.decoding import case_of
from tests.support.helpers import generate_sira, left_pad
from tests.support.prompts import family_prompts

LENGTHS = (3, 6, 2, 5, 1, 4)  # of the texts, so that rows leave at different times
SLOTS = 3


def refilled(
    model,
    prompts,
    config: SiraConfig | None,
    group: int = 1,
    compile_config: CompileConfig | None = None,
    lengths=LENGTHS,
):
    """Tokens and logits of each text, decoded in slots that are refilled with `group` prompts at a time."""
    batch = RowBatch(model, rows=SLOTS, compile_config=compile_config)
    room = max(lengths) if compile_config else 0
    waiting = list(range(len(prompts)))
    tokens, logits = [[] for _ in prompts], [[] for _ in prompts]
    under_way: list[int] = []

    def take(rows, found):
        for row, z in zip(rows, found, strict=True):
            logits[row].append(z)
            tokens[row].append(int(z.index_fill(0, torch.tensor(tiny.SUPPRESS), -torch.inf).argmax()))

    while waiting or under_way:
        with attach(model, config) if config else nullcontext():
            while waiting and SLOTS - len(under_way) >= min(group, len(waiting)):
                joining, waiting = waiting[:group], waiting[group:]
                take(joining, batch.join(left_pad([prompts[row] for row in joining]), room))
                under_way += joining
            if all(len(tokens[row]) < lengths[row] for row in under_way):
                take(under_way, batch.step(torch.tensor([tokens[row][-1] for row in under_way])))
        stay = [place for place, row in enumerate(under_way) if len(tokens[row]) < lengths[row]]
        if len(stay) < len(under_way):
            batch.keep(stay)
            under_way = [under_way[place] for place in stay]
    return tokens, logits


def alone(model, prompt, length: int, config: SiraConfig | None):
    """Tokens and logits of a text in a plain `generate`."""
    if config is not None:
        found, steps = generate_sira(model, prompt, config, max_new_tokens=length)
        return found[0].tolist(), [step.contrast[0] for step in steps]
    output = model.generate(
        **prompt,
        do_sample=False,
        max_new_tokens=length,
        eos_token_id=None,
        suppress_tokens=tiny.SUPPRESS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return output.sequences[0, -length:].tolist(), [logits[0] for logits in output.logits]


@pytest.mark.parametrize(("config", "group"), [(None, 2), (SiraConfig(k=3), 1), (SiraConfig(k=1), 2)])
@pytest.mark.parametrize("name", [*tiny.REPRESENTATIVES, "Gemma 4"])
def test_every_text_is_what_it_is_alone(name, config, group):
    case = case_of(name)
    prompts = family_prompts(name, case, len(LENGTHS))
    tokens, logits = refilled(case.model, prompts, config, group)
    for row, prompt in enumerate(prompts):
        expected, steps = alone(case.model, prompt, LENGTHS[row], config)
        assert tokens[row] == expected, row
        torch.testing.assert_close(torch.stack(logits[row]), torch.stack(steps), atol=2e-5, rtol=0)


@pytest.mark.parametrize("k", [2, 5])
def test_texts_whose_late_layers_begin_where_keys_are_shared_or_long_before(k):
    case = case_of("Gemma 4 E")
    prompts = family_prompts("Gemma 4 E", case, len(LENGTHS))
    tokens, logits = refilled(case.model, prompts, SiraConfig(k=k), 2)
    for row, prompt in enumerate(prompts):
        expected, steps = alone(case.model, prompt, LENGTHS[row], SiraConfig(k=k))
        assert tokens[row] == expected, row
        torch.testing.assert_close(torch.stack(logits[row]), torch.stack(steps), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", tiny.NO_COLUMNS)
def test_compiled_steps_of_rows_without_columns_are_refused(name):
    with pytest.raises(UnsupportedModelError, match=tiny.NO_COLUMNS[name]):
        RowBatch(case_of(name).model, compile_config=CompileConfig())


def test_texts_may_outgrow_the_room_that_their_prompts_had():
    case = case_of("LLaVA-1.5")
    prompts = family_prompts("LLaVA-1.5", case, 4)
    lengths = (3 * ROOM, 2, ROOM, 2 * ROOM)
    tokens, logits = refilled(case.model, prompts, SiraConfig(k=3), lengths=lengths)
    for row, prompt in enumerate(prompts):
        expected, steps = alone(case.model, prompt, lengths[row], SiraConfig(k=3))
        assert tokens[row] == expected, row
        torch.testing.assert_close(torch.stack(logits[row]), torch.stack(steps), atol=2e-5, rtol=0)


@pytest.mark.slow  # in the ordinary run: tests/models/test_compile.py
@pytest.mark.parametrize("config", [None, SiraConfig(k=3)])
@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
def test_one_graph_serves_all_steps_whoever_joins_or_leaves(name, config):
    """Traced and guarded for real, run without a compiler; `fullgraph` refuses graph breaks."""
    case = case_of(name)
    torch.compiler.reset()
    counters.clear()
    prompts = family_prompts(name, case, len(LENGTHS))
    prompts.sort(key=lambda prompt: -prompt["input_ids"].shape[1])  # so that the first ones need the most room
    compile_config = CompileConfig(fullgraph=True, backend="eager", mode=None)
    tokens, logits = refilled(case.model, prompts, config, 2, compile_config)
    assert counters["stats"]["unique_graphs"] == 1
    for row, prompt in enumerate(prompts):
        expected, steps = alone(case.model, prompt, LENGTHS[row], config)
        assert tokens[row] == expected, row
        torch.testing.assert_close(torch.stack(logits[row]), torch.stack(steps), atol=2e-5, rtol=0)


@pytest.mark.slow
def test_compiled_slots_grow_with_what_joins():
    case = case_of("LLaVA-1.5")
    prompts = family_prompts("LLaVA-1.5", case, len(LENGTHS))
    torch.compiler.reset()
    batch = RowBatch(case.model, rows=1, compile_config=CompileConfig(fullgraph=True, backend="eager", mode=None))
    with attach(case.model, SiraConfig(k=3)):
        for place, prompt in enumerate(prompts[:2]):
            batch.join(prompt, 200 * place)
            z = batch.step(torch.tensor([7] * (place + 1)))
            single = RowBatch(case.model)
            single.join(prompt)
            torch.testing.assert_close(z[-1:], single.step(torch.tensor([7])), atol=2e-5, rtol=0)


def test_a_step_looks_at_no_column_behind_the_longest_row():
    case = case_of("LLaVA-1.5")
    prompts = family_prompts("LLaVA-1.5", case, 3)
    sizes = [prompt["input_ids"].shape[1] for prompt in prompts]
    long, short = sizes.index(max(sizes)), sizes.index(min(sizes))
    batch = RowBatch(case.model)
    with attach(case.model, SiraConfig(k=3)):
        batch.join(prompts[short])
        batch.join(prompts[long])
        batch.keep([0])
        batch.step(torch.tensor([7]))
    late = batch._cache.layers[-1]
    text = min(sizes) - int((prompts[short]["input_ids"] == tiny.IMAGE).sum())
    assert (late.seen()[0].shape[2], late.cf_rows()[0].shape[2]) == (min(sizes) + 1, text + 1)


def test_rows_that_come_and_go_move_no_other_one():
    case = case_of("LLaVA-1.5")
    prompts = family_prompts("LLaVA-1.5", case, 3)
    batch = RowBatch(case.model)

    def row(place: int) -> list[torch.Tensor]:
        length, cf_length = (stream.lengths[place] for stream in (batch._cache.full, batch._cache.cf))
        late = batch._cache.layers[-1]
        return [late.keys[place, :, :length].clone(), late.cf.values[place, :, :cf_length].clone()]

    def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
        return all(map(torch.equal, found, expected))

    with attach(case.model, SiraConfig(k=3)):
        for prompt in prompts:
            batch.join(prompt)
        stored = batch._cache.layers[-1].keys.data_ptr()
        first, second, last = row(0), row(1), row(2)
        assert not same(second, last)
        batch.keep([0, 2])  # the second leaves, and the last takes its place
        assert same(row(0), first)
        assert same(row(1), last)
        batch.join(prompts[1])
        assert batch._cache.layers[-1].keys.data_ptr() == stored
        assert same(row(0), first)
        assert same(row(1), last)
        batch.keep([2, 0])  # in any order
        assert same(row(1), first)
