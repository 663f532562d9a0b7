"""Everything `generate` offers works under `attach`, each against a plain run with the slow contrast in it."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from tests.support import tiny
from tests.support.helpers import SlowContrast, generate, generate_sira

K, ALPHA = 3, 1.0
CONFIG = SiraConfig(k=K, alpha=ALPHA)

pytestmark = pytest.mark.parametrize(
    "case",
    [tiny.llava(), tiny.qwen("2.5"), tiny.gemma3(), tiny.lfm2(), tiny.gemma4("E4B")],
    ids=["llava", "qwen2.5-vl", "gemma3", "lfm2-vl", "gemma4-e"],
)


def test_sampling_draws_from_the_contrast(case: tiny.Tiny):
    settings = {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "top_k": 0, "max_new_tokens": 8}
    torch.manual_seed(7)
    expected = generate(case.model, case.inputs, logits_processor=[SlowContrast(case, K, ALPHA)], **settings)
    torch.manual_seed(7)
    tokens, _ = generate_sira(case.model, case.inputs, CONFIG, **settings)
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize("use_cache", [True, False])
def test_beam_search_with_several_returned_sequences(case: tiny.Tiny, use_cache: bool):
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5}
    slow = SlowContrast(case, K, ALPHA, log_softmax=True)
    expected = generate(case.model, case.inputs, logits_processor=[slow], **settings)
    tokens, steps = generate_sira(case.model, case.inputs, CONFIG, use_cache=use_cache, **settings)
    assert torch.equal(tokens, expected)
    assert steps[0].full.shape == (3, tiny.VOCABULARY)


def test_several_sampled_sequences_of_one_prompt(case: tiny.Tiny):
    settings = {"do_sample": True, "num_return_sequences": 3, "top_k": 0, "max_new_tokens": 4}
    torch.manual_seed(3)
    expected = generate(case.model, case.inputs, logits_processor=[SlowContrast(case, K, ALPHA)], **settings)
    torch.manual_seed(3)
    tokens, _ = generate_sira(case.model, case.inputs, CONFIG, **settings)
    assert torch.equal(tokens, expected)


def test_a_repetition_penalty_applies_to_the_contrast(case: tiny.Tiny):
    slow = [SlowContrast(case, K, ALPHA), RepetitionPenaltyLogitsProcessor(1.5)]
    expected = generate(case.model, case.inputs, logits_processor=slow)
    tokens, _ = generate_sira(case.model, case.inputs, CONFIG, repetition_penalty=1.5)
    assert torch.equal(tokens, expected)


def test_a_custom_logits_processor_receives_the_contrast(case: tiny.Tiny):
    seen = []

    class Record(LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(scores.clone())
            return scores

    _, steps = generate_sira(case.model, case.inputs, CONFIG, logits_processor=[Record()])
    allowed = [token for token in range(tiny.VOCABULARY) if token not in tiny.SUPPRESS]
    for scores, step in zip(seen, steps, strict=True):
        assert torch.equal(scores[:, allowed], step.contrast[:, allowed])


def test_a_streamer_gets_every_token_as_it_is_made(case: tiny.Tiny):
    class Collect(BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens.append(value.flatten().tolist())

        def end(self):
            self.ended = True

    streamer = Collect()
    tokens, _ = generate_sira(case.model, case.inputs, CONFIG, streamer=streamer)
    assert streamer.tokens[1:] == [[token] for token in tokens[0].tolist()]  # the prompt comes first
    assert streamer.ended


def test_stopping_criteria_stop(case: tiny.Tiny):
    class AfterThree(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            done = input_ids.shape[1] >= case.image.shape[1] + 3
            return torch.full((len(input_ids),), done)

    tokens, steps = generate_sira(case.model, case.inputs, CONFIG, stopping_criteria=[AfterThree()])
    assert tokens.shape[1] == len(steps) == 3


def test_the_end_token_stops(case: tiny.Tiny):
    tokens, _ = generate_sira(case.model, case.inputs, CONFIG)
    end = tokens[0, 3].item()
    first = tokens[0].tolist().index(end)
    again, _ = generate_sira(case.model, case.inputs, CONFIG, eos_token_id=end)
    assert again[0].tolist() == tokens[0, : first + 1].tolist()


def test_two_generations_in_one_context_do_not_mix(case: tiny.Tiny):
    with attach(case.model, CONFIG) as run:
        first = generate(case.model, case.inputs)
        second = generate(case.model, case.inputs)
    assert torch.equal(first, second)
    assert torch.equal(run.image, case.image)


def test_a_plain_forward_returns_the_contrast_of_the_last_row(case: tiny.Tiny):
    with attach(case.model, CONFIG), torch.no_grad():
        logits = case.model(**case.inputs).logits
    z_full = case.model(**case.inputs, use_cache=False).logits[0, -1]
    z_cf = reference.counterfactual(case.model, case.inputs, case.image, K)
    assert logits.shape == (1, 1, tiny.VOCABULARY)
    torch.testing.assert_close(logits[0, 0], (1 + ALPHA) * z_full - ALPHA * z_cf, atol=1e-4, rtol=0)
