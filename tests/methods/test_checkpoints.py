"""Batches of the processors of all families: with a branch or without, they give the texts of single runs."""

from __future__ import annotations

import itertools

import pytest

from sira_cli import load
from sira_cli.models.model import BRANCH
from sira_cli.pictures.sources import as_picture
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.helpers import mostly_slow

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
PROMPTS = ["Is there a cat on the table?", "What is it?", "Describe this picture in detail, please."]
CHECKPOINTS = [*REPRESENTATIVES[:4], "LLaVA-NeXT", "InternVL", "Idefics3"]  # the last three cut pictures up
OTHERS = list(itertools.product(["LLaVA-1.5", "Qwen2.5-VL"], ["m3id", "sid", "dola", "opera"]))
CASES = [*itertools.product(CHECKPOINTS, ["text-only", "vcd", "icd"]), *OTHERS]


@pytest.mark.parametrize(
    ("checkpoint", "method"),
    mostly_slow(CASES, *((name, "vcd") for name in CHECKPOINTS), *CASES[:3], OTHERS[0], OTHERS[1], OTHERS[5]),
)
def test_a_batch_of_several_sizes_gives_the_texts_of_single_runs(checkpoint: str, method: str, checkpoint_of, photos):
    lvlm = load(checkpoint_of(checkpoint), method=method, dtype="float32", max_new_tokens=6)
    pictures = [as_picture(str(photos[name])).open().image for name in ("coffee", "tall", "rocket")]
    together = [answer.text for answer in lvlm.answer(lvlm.prepare(pictures, PROMPTS))]
    for picture, prompt, text in zip(pictures, PROMPTS, together, strict=True):
        single = lvlm.prepare([picture], [prompt])
        own = {name for name in single if not name.startswith(BRANCH)}
        assert {name.removeprefix(BRANCH) for name in single if name not in own} <= own
        assert lvlm.answer(single)[0].text == text
