"""`temporal`: it equals its slow reference, and refuses what has no frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sira_cli.core.config import SiraConfig
from sira_cli.errors import UnsupportedModelError
from sira_cli.methods.temporal import NEGATIVES, Temporal, derangement
from tests.support import reference_methods as slow
from tests.support.decoding import case_of, decoded, frames_of
from tests.support.helpers import generate, left_pad
from tests.support.prompts import qwen_prompts
from tests.support.tiny import Tiny

FAMILIES = ["LLaVA-1.5", "Qwen2.5-VL", "InternVL", "Qwen3.5", "PaliGemma"]
EXAMPLE = next((Path(__file__).parents[2] / "examples").glob("*.png"))


@pytest.mark.parametrize("negative", NEGATIVES)
@pytest.mark.parametrize("name", FAMILIES)
def test_equals_its_reference(name: str, negative: str):
    case = case_of(name)
    branch = frames_of(case.inputs)
    frame = branch["frame"][0].tolist()
    order = derangement(max(frame) + 1, 1).tolist()
    expected = slow.temporal(case, negative, frame, order)
    tokens, scores = decoded(Temporal(negative=negative), case, branch=branch)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=2e-4, rtol=1e-5)
    assert not torch.allclose(scores[0], case.model(**case.inputs).logits[:, -1].float(), atol=1e-6)


@pytest.mark.parametrize("negative", NEGATIVES)
def test_rows_of_a_padded_batch_and_beams_are_those_of_single_prompts(negative: str):
    model, singles, method = case_of("Qwen2.5-VL").model, qwen_prompts(), Temporal(negative=negative)
    batch = left_pad(singles)
    for settings in ({}, {"num_beams": 2}):
        tokens, _ = decoded(method, Tiny(model, batch), branch=frames_of(batch), **settings)
        for row, single in enumerate(singles):
            alone, _ = decoded(method, Tiny(model, single), branch=frames_of(single), **settings)
            assert tokens[row].tolist() == alone[0].tolist()


def test_without_strength_it_is_greedy():
    case = case_of("Qwen2.5-VL")
    with Temporal().attach(case.model, SiraConfig(k=3, alpha=0.0), torch.empty(0), frames_of(case.inputs)):
        found = generate(case.model, case.inputs)
    assert torch.equal(found, generate(case.model, case.inputs))


def test_states_that_late_layers_do_not_read_cannot_be_changed():
    model = case_of("Gemma 4 E").model
    Temporal().check_model(model, SiraConfig(k=1))
    with pytest.raises(UnsupportedModelError, match="its late layers read keys of earlier ones"):
        Temporal(negative="shuffled").check_model(model, SiraConfig(k=1))


def test_no_frame_keeps_its_place():
    assert all((derangement(number, seed) != torch.arange(number)).all() for number in (2, 3, 8) for seed in range(9))
    assert derangement(8, 1).tolist() != derangement(8, 2).tolist()


def test_pictures_are_refused_by_name(sira):
    code, _, err = sira("caption", EXAMPLE, "-p", "demo", "--method", "temporal", "--max-new-tokens", 2)
    assert (code, "temporal needs one clip with two frames or more" in err) == (3, True)
