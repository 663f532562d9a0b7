"""Branches made by the processors of all families: a batch gives the texts of single runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from skimage import data

from sira_cli import load
from sira_cli.models.answering.preparing import BRANCH
from tests.support.checkpoints_all import REPRESENTATIVES

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
PROMPTS = ["Is there a cat on the table?", "What is it?"]


@pytest.fixture(params=[*REPRESENTATIVES[:4], "LLaVA-NeXT", "InternVL", "Idefics3"], scope="module")  # the last cut up
def checkpoint(request: pytest.FixtureRequest, checkpoint_of: Callable[[str], Path]) -> Path:
    return checkpoint_of(request.param)


@pytest.mark.parametrize("method", ["text-only", "vcd", "icd"])
def test_a_batch_of_two_sizes_gives_the_texts_of_single_runs(checkpoint: Path, method: str):
    lvlm = load(checkpoint, method=method, dtype="float32", max_new_tokens=6)
    pictures = [Image.fromarray(pixels) for pixels in (data.chelsea(), data.astronaut()[:, 80:400])]
    inputs = lvlm.prepare(pictures, PROMPTS)
    together = [answer.text for answer in lvlm.answer(inputs)]
    for picture, prompt, text in zip(pictures, PROMPTS, together, strict=True):
        single = lvlm.prepare([picture], [prompt])
        own = {name for name in single if not name.startswith(BRANCH)}
        assert {name.removeprefix(BRANCH) for name in single if name not in own} <= own
        assert lvlm.answer(single)[0].text == text
