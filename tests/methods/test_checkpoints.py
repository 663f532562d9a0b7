"""Branches made by the processors of all families: a batch gives the texts of single runs."""

from __future__ import annotations

import itertools

import pytest
from PIL import Image
from skimage import data

from sira_cli import load
from sira_cli.models.model import BRANCH
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.helpers import mostly_slow

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
PROMPTS = ["Is there a cat on the table?", "What is it?"]


CHECKPOINTS = [*REPRESENTATIVES[:4], "LLaVA-NeXT", "InternVL", "Idefics3"]  # the last three cut pictures up
CASES = list(itertools.product(CHECKPOINTS, ["text-only", "vcd", "icd"]))


@pytest.mark.parametrize(
    ("checkpoint", "method"), mostly_slow(CASES, *((name, "vcd") for name in CHECKPOINTS), *CASES[:3])
)
def test_a_batch_of_two_sizes_gives_the_texts_of_single_runs(checkpoint: str, method: str, checkpoint_of):
    lvlm = load(checkpoint_of(checkpoint), method=method, dtype="float32", max_new_tokens=6)
    pictures = [Image.fromarray(pixels) for pixels in (data.chelsea(), data.astronaut()[:, 80:400])]
    inputs = lvlm.prepare(pictures, PROMPTS)
    together = [answer.text for answer in lvlm.answer(inputs)]
    for picture, prompt, text in zip(pictures, PROMPTS, together, strict=True):
        single = lvlm.prepare([picture], [prompt])
        own = {name for name in single if not name.startswith(BRANCH)}
        assert {name.removeprefix(BRANCH) for name in single if name not in own} <= own
        assert lvlm.answer(single)[0].text == text
