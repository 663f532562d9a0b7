"""Keys of records without a run."""

from __future__ import annotations

from sira_cli import Lvlm
from sira_cli.run.task import TASKS


def key_of(lvlm: Lvlm, kind: str, name: str, image_sha256: str, prompt: str) -> str:
    """Return the key of a record."""
    return TASKS[kind](lvlm.preset, lvlm.decoder, prompt).at(lvlm.revision).key(name, image_sha256, prompt)
