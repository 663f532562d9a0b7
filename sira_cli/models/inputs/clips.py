"""Clips as inputs: as video, as several pictures, or refused if the model takes only one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.core.census import CLIPS
from sira_cli.errors import PictureError, SettingsError
from sira_cli.methods.prompts import Conversation, Prompt, pictures_of
from sira_cli.models.inputs.chats import Chats, template_of
from sira_cli.models.inputs.video_processors import load_video_processor, metadata_of, rule_of
from sira_cli.models.loading.preset_parts import ClipSettings
from sira_cli.pictures.clip import Clip, Sampling, Still, Timeline, evenly, stills

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown


def takes_video(processor: Any) -> bool:
    """Return whether the model has an input for video."""
    return getattr(processor, "video_processor", None) is not None


def add_video(processor: Any, folder: Path, model_type: str) -> None:
    """Give a processor its video part, if clips of this type are proven and the chat template can place them.

    Args:
        processor: the checkpoint's, loaded without it.
        folder: the checkpoint's files.
        model_type: of its config.
    """
    template, token = template_of(processor), getattr(processor, "video_token", None)
    if model_type not in CLIPS or template is None or token is None:
        return
    if Chats(processor, template, "").takes_video() and (found := load_video_processor(folder, model_type)) is not None:
        processor.video_processor = found


def sampling_of(processor: Any, settings: ClipSettings) -> Sampling:
    """Return the choice of a clip's frames for the model.

    Args:
        processor: the checkpoint's.
        settings: the preset's.
    """
    if takes_video(processor):
        rule = rule_of(processor.video_processor)
    else:
        rule = evenly if _takes_several(processor) else _first_only
    return Sampling(settings.frames, settings.fps, settings.start or 0.0, settings.end, rule)


def _takes_several(processor: Any) -> bool:
    """Return whether the chat format takes several pictures in a message."""
    template = template_of(processor)
    try:
        if template is not None:
            Chats(processor, template, "").chat("?", ["picture", "picture"])
    except SettingsError:
        return False
    return True


def _first_only(timeline: Timeline, frames: int | None, fps: float | None) -> Sequence[int]:
    if timeline.animation or timeline.count == 1 or frames == 1:
        return [0]
    raise PictureError("is a clip, and this model takes one picture with a text: `frames=` 1 shows its first frame")


def spread(processor: Any, prompt: Prompt, shown: Shown) -> tuple[Prompt, list[Still]]:
    """Return a prompt and its pictures, with clips split into frames unless the model takes video.

    A clip with one chosen frame is always a picture.
    """
    each = [
        (one,) if isinstance(one, Clip) and len(one.frames) > 1 and takes_video(processor) else stills(one)
        for one in pictures_of(shown)
    ]
    found = [still for group in each for still in group]
    if isinstance(prompt, str) or len(found) == len(each):
        return prompt, found
    unseen, turns = iter(each), []
    for turn in prompt.turns:
        groups = [next(unseen) for _ in range(turn.pictures)]
        places = iter(groups)
        parts = [part for each in turn.parts for part in ([None] * len(next(places)) if each is None else [each])]
        turns.append(replace(turn, pictures=sum(map(len, groups)), parts=tuple(parts)))
    return Conversation(tuple(turns)), found


def video_arguments(shown: Sequence[Sequence[Still]]) -> dict[str, Any]:
    """Return the processor's arguments about clips: their facts; the frames are chosen already."""
    clips = [each for group in shown for each in group if isinstance(each, Clip)]
    if not clips:
        return {}
    metadata = [metadata_of(clip.timeline, clip.numbers) for clip in clips]
    return {"videos_kwargs": {"video_metadata": metadata, "do_sample_frames": False}}
