"""Types with a video input are exact on clips, and on a clip after a picture: their video tokens are hidden as well."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from sira_cli.core.census import CLIPS, EXACT
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import FAMILIES
from sira_cli.core.image_tokens import ImageTokens
from tests.core.test_census import check_exact, largest_k
from tests.support import census
from tests.support.tiny_parts import IMAGE, Tiny

QUICK = ("minicpmv4_6", "video_llama_3")  # slices, and patches
# The others are read by their own processors in tests/models/test_video_inputs.py.
KINDS = [kind for kind in CLIPS if kind in EXACT]
NAMES = {
    "pixel_values": "pixel_values_videos",
    "image_grid_thw": "video_grid_thw",
    "image_merge_sizes": "video_merge_sizes",
    "target_sizes": "target_sizes_videos",
}


@dataclass(frozen=True)
class Shown(Tiny):
    """A case whose hidden positions are found by the rule; the test compares them with those that were drawn."""

    @property
    def image(self) -> torch.Tensor:
        return ImageTokens().resolve(self.model.config).find(self.inputs["input_ids"])


def case_with_a_clip(kind: str, *, after_a_picture: bool) -> tuple[Shown, torch.Tensor]:
    """A case that shows other pixels as a clip of one frame, and the positions of all frames and pictures."""
    case = census.case_of(kind)
    inputs, config = case.inputs, case.model.config
    ids, shown = inputs["input_ids"].clone(), inputs["input_ids"] == IMAGE
    ids[shown] = config.video_token_id
    per_token = {name: inputs[name] for name in inputs if name.endswith("token_type_ids")}
    clip = {name: torch.where(value == 1, 2, value) for name, value in per_token.items()}
    clip |= {"input_ids": ids, "attention_mask": inputs["attention_mask"]}
    generator = torch.Generator().manual_seed(3)
    media = {name: value for name, value in inputs.items() if name not in clip}
    frames = {
        NAMES[name]: torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in media.items()
    }
    if after_a_picture:
        clip = {name: torch.cat([inputs[name], value], dim=1) for name, value in clip.items()} | media
        shown = torch.cat([shown, shown], dim=1)
    return Shown(case.model, clip | frames, case.grown), shown


@pytest.mark.parametrize("after_a_picture", [False, True], ids=["clip", "picture and clip"])
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_clips_are_exact(kind: str, after_a_picture: bool):
    case, shown = case_with_a_clip(kind, after_a_picture=after_a_picture)
    assert torch.equal(case.image, shown)
    check_exact(case, SiraConfig(k=min(3, largest_k(case)), alpha=0.5), (True,))


def test_every_type_with_clips_is_proven():
    others = {family.model_type for family in FAMILIES}
    assert {*CLIPS} - {*EXACT} == {"gemma4", "internvl", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl"}
    assert {*CLIPS} <= {*EXACT, *others}
