"""Sampling: every text has random numbers of its own, whatever else is decoded, and they follow the distribution."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2, chisquare

from sira_cli import load
from sira_cli.models.preset import Generation
from sira_cli.models.progress import Trail
from sira_cli.models.sampling import RowSampler, derived_seed, sampler
from sira_cli.pictures.sources import open_picture
from tests.support.helpers import under

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))[:5]
SEEDS = range(40)


@pytest.mark.slow
def test_a_sampled_benchmark_scatters_over_seeds_as_independent_draws_do():
    """Reference: the exact chance p of a yes to each question, so that the count has the variance sum p (1 - p)."""
    sampled = load("demo", method="greedy", temperature=3.0, max_new_tokens=1)  # both answers are open
    pictures = [open_picture(path) for path in EXAMPLES for _ in range(3)]
    prompts = [sampled.preset.prompts.asking(f"Is there a {thing} in the image?") for thing in ("dog", "tree", "lamp")]
    prompts, hashes = prompts * len(EXAMPLES), [picture.sha256 for picture in pictures]
    inputs = sampled.prepare([picture.image for picture in pictures], prompts, hashes)
    yes = sampled.vocabulary.encode_after(inputs["input_ids"][0].tolist(), "Yes")[0]
    with torch.no_grad():
        chance = (sampled.model(**inputs).logits[:, -1].double() / 3).softmax(dim=-1)[:, yes]
    spread = float((chance * (1 - chance)).sum())
    assert spread > 2  # many questions are open
    counts = []
    for seed in SEEDS:
        sampled.preset = sampled.preset.with_settings(seed=seed)
        tokens = sampled.generate(inputs, seeds=sampled.text_seeds(hashes, prompts))[:, 0]
        counts.append(int((tokens == yes).sum()))
    statistic = sum((count - float(chance.sum())) ** 2 for count in counts) / spread
    assert chi2.ppf(0.001, len(SEEDS)) < statistic < chi2.ppf(0.999, len(SEEDS)), statistic


def test_tokens_follow_the_distribution_at_a_temperature():
    scores = torch.tensor([[2.0, 0.5, -1.0, 0.0, -torch.inf]])
    expected = (scores[0] / 0.7).softmax(dim=-1)[:4].double()
    counts = torch.zeros(5)
    for seed in range(4000):
        counts[sampler([seed], Generation(temperature=0.7))(None, scores).argmax()] += 1
    assert counts[4] == 0
    assert chisquare(counts[:4], 4000 * (expected / expected.sum()).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-9])
def test_a_temperature_of_almost_nothing_takes_the_best_token(temperature):
    scores = torch.tensor([[1.0, 2.0, 1.9], [-40.0, -60.0, -50.0]])
    tokens = sampler([0, 1], Generation(temperature=temperature))(torch.zeros(2, 1), scores).argmax(-1)
    assert tokens.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("cut", "left"), [({"top_p": 0.7}, {0, 1}), ({"top_k": 2}, {0, 1}), ({"min_p": 0.2}, {0, 1, 2})]
)
def test_cut_offs_are_those_of_transformers(cut, left):
    scores, settings = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), Generation(temperature=1.0, **cut)
    assert {int(sampler([seed], settings)(None, scores).argmax()) for seed in range(200)} == left


def test_a_row_s_draws_are_its_own_and_go_on():
    scores = torch.zeros(3, 1000)
    together, alone = RowSampler([1, 2, 1]), RowSampler([2])
    steps = [together(None, scores).argmax(dim=-1).tolist() for _ in range(5)]
    assert [[row[1]] for row in steps] == [alone(None, scores[:1]).argmax(dim=-1).tolist() for _ in range(5)]
    assert all(row[0] == row[2] for row in steps)
    assert len({row[0] for row in steps}) == 5


def test_a_token_that_is_ruled_out_is_never_picked_not_even_by_a_number_that_rounds_to_1(monkeypatch):
    """A uniform number of exactly 1 is made up: it stands for a product that is rounded up to the whole sum."""
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.ones(size[0], dtype=torch.float64))
    left = RowSampler([0])(None, torch.tensor([[0.0, 1.0, 0.5, -torch.inf, -torch.inf]]))
    assert left.tolist() == [[-math.inf, -math.inf, 0.0, -math.inf, -math.inf]]


def test_seeds_differ_by_seed_picture_and_prompt_and_stay_the_same(demo):
    parts = [(0, "a", "b"), (1, "a", "b"), (0, "b", "a"), (0, "ab", ""), (0, "a", "c"), (0, "a")]
    assert len({derived_seed(*part) for part in parts}) == len(parts)
    assert derived_seed(0, "a", "b") == derived_seed(0, "a", "b") < 2**63
    assert demo.text_seeds(["a", "b"], ["c", "c"]) == [derived_seed(0, "a", "c"), derived_seed(0, "b", "c")]


def test_a_picture_has_the_same_text_alone_and_in_a_batch(demo, tmp_path):
    """Equal pictures have equal draws; the random numbers of others play no part, and stay as they are."""
    lvlm = under(demo, temperature=2.0, max_new_tokens=8, seed=4, top_k=50, min_p=0.01)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    alone = [lvlm.caption(path).text for path in EXAMPLES[:3]]
    assert torch.equal(torch.rand(1), expected)
    copied = shutil.copy(EXAMPLES[0], tmp_path / "copied.png")
    together = [each.text for each in lvlm.caption_many([*EXAMPLES[:3], copied])]
    assert together == [*alone, alone[0]]
    assert under(lvlm, seed=5).caption(EXAMPLES[0]).text != alone[0]


def test_sampled_beams_follow_the_seed_and_nothing_else(demo):
    texts = {}
    for before, seed in ((1, 3), (2, 3), (1, 4)):
        lvlm = under(demo, "greedy", temperature=2.0, num_beams=2, max_new_tokens=12, seed=seed)
        torch.manual_seed(before)  # random numbers that others use
        texts[before, seed] = lvlm.caption(EXAMPLES[0]).text
    assert texts[1, 3] == texts[2, 3] != texts[1, 4]


def test_a_sampled_text_that_goes_on_from_its_middle_draws_what_it_would_have_drawn(demo):
    lvlm, trail = under(demo, temperature=2.0, max_new_tokens=12), Trail([0])
    inputs = lvlm.to_device(lvlm.prepare([open_picture(EXAMPLES[0]).image], ["Describe this image."]))
    [text] = lvlm.generate(inputs, seeds=[3], trail=trail).tolist()
    trail.end([text])
    shorter, start = trail.back(inputs, [0], [text[:5]])
    assert start.in_inputs > 1
    assert lvlm.generate(shorter, seeds=[3], start=start).tolist() == [text[start.in_inputs :]]
