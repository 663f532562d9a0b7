"""Branches made by the processors of all families: a batch gives the texts of single runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from skimage import data

from sira_cli import load
from sira_cli.models.preparing import BRANCH
from tests.support.checkpoints_other import WRITERS

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
PROMPTS = ["Is there a cat on the table?", "What is it?"]


@pytest.fixture(params=list(WRITERS), scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("checkpoints") / "checkpoint")


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
