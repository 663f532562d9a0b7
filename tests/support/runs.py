"""Tasks on a loaded model without a command: an engine that has begun, and keys of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sira_cli import Lvlm
from sira_cli.pictures.picture import Picture
from sira_cli.run.run import Local
from sira_cli.run.runner import BatchSize
from sira_cli.run.task import TASKS


def local(
    lvlm: Lvlm,
    kind: str = "caption",
    prompt: str = "Describe this image.",
    *,
    batch_size: BatchSize | None = None,
    done: Callable[[str], str] = lambda name: "",
    on_text: Callable[[Picture, str], None] | None = None,
    **asked: Any,
) -> Local:
    """Return a model on this machine that is ready for a task."""
    engine = Local(lvlm, batch_size, on_text)
    engine.begin(TASKS[kind](lvlm.preset, lvlm.decoder, prompt, **asked), done)
    return engine


def key_of(lvlm: Lvlm, kind: str, name: str, image_sha256: str, prompt: str) -> str:
    """Return the key of a record."""
    return TASKS[kind](lvlm.preset, lvlm.decoder, prompt).at(lvlm.revision).key(name, image_sha256, prompt)
