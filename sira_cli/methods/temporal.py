"""`temporal`: a contrast with late layers to which time is lost, for clips; not tested on real weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import PictureSettingsError
from sira_cli.methods.base import Ability, PromptBatch
from sira_cli.methods.settings import setting
from sira_cli.methods.sira import Sira

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sira_cli.pictures.clip import Still

NEGATIVES = ("dropped", "shuffled", "homogenised")


@dataclass(frozen=True)
class Temporal(Sira):
    """(1 + alpha) z - alpha z'; z' from late layers that see a clip without its course. The rest is as for `sira`.

    TCD (Zhang et al. 2024, arXiv:2409.16597) contrasts with a clip of fewer frames, SEASON (CVPR 2026) compares such
    negatives. Here they are made of the states at the fork, not of pixels: earlier layers have seen the frames in
    order, and positions stay those of the clip. So figures of those papers do not carry over.

    Args:
        negative: `dropped`: every second frame is hidden. `shuffled`: each frame has the states of another one.
            `homogenised`: each has the mean over all frames.
    """

    name = "temporal"
    abilities = frozenset({Ability.BATCHES, Ability.SAMPLING, Ability.BEAMS})
    rewinds = False
    uses_seed = True
    needs_clips = True
    negative: str = setting("dropped", "frames in the contrast stream, untested on real weights", choices=NEGATIVES)

    def decisive(self, preset: Mapping[str, Any], task: str = "caption") -> dict[str, Any]:
        """Return everything that decides a text: the preset's part, and the negative."""
        return {**preset, self.name: self.settings()}

    def branch_inputs(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Return each row's frame, -1 for text, and the frame whose states it gets under `shuffled`: `[B, S]` each.

        Raises:
            PictureSettingsError: a prompt is not about one clip, or its frames cannot be told apart.
        """
        own = frames_of_tokens(batch)
        other = own.clone()
        for row, seed in enumerate(batch.seeds):
            places = own[row] >= 0
            other[row, places] = derangement(int(own[row].max()) + 1, seed)[own[row, places]]
        return {"frame": own, "other_frame": other}

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """Fork as `sira` does, with another contrast stream (`sira_cli.methods.temporal_fork`)."""
        from sira_cli.methods.temporal_fork import attach_temporal

        return attach_temporal(model, config, self.negative, branch.get("frame"), branch.get("other_frame"))


def frames_of_tokens(batch: PromptBatch) -> Tensor:
    """Return the frame of each position of prompts about clips, -1 for text, `[B, S]`; a patch of two frames is one.

    Raises:
        PictureSettingsError: as `Temporal.branch_inputs`.
    """
    import torch

    image = batch.image_tokens  # [B, S]
    if "video_compression_mask" in batch.inputs or not batch.images:
        raise _unclear()
    frames = [_frames(shown) for shown in batch.shown]
    grid = batch.inputs.get("video_grid_thw")  # where a patch holds two frames
    own = torch.full_like(image, -1, dtype=torch.long)
    for row, number in enumerate(frames if grid is None else grid[:, 0].tolist()):
        tokens = int(image[row].sum())
        if number < 2 or tokens % number:
            raise _unclear()
        own[row, image[row]] = torch.arange(number, device=own.device).repeat_interleave(tokens // number)
    return own


def derangement(number: int, seed: int) -> torch.Tensor:
    """Return the numbers from 0 in a random order in which none keeps its place (Sattolo's algorithm)."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    order = torch.arange(number)
    for last in range(number - 1, 0, -1):
        place = int(torch.randint(last, (1,), generator=generator))
        order[[place, last]] = order[[last, place]]
    return order


def _frames(shown: Sequence[Still]) -> int:
    """Return the number of frames of a prompt's clip.

    Raises:
        PictureSettingsError: it has no clip, or more than one clip.
    """
    from sira_cli.pictures.clip import Clip

    clip, *more = shown
    if more or not isinstance(clip, Clip) or len(clip.frames) < 2:
        raise PictureSettingsError("method temporal needs one clip with two frames or more: choose another method")
    return len(clip.frames)


def _unclear() -> PictureSettingsError:
    return PictureSettingsError(
        "method temporal cannot tell this clip's frames apart in the model's input: show more, or choose another method"
    )
