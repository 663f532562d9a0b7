"""Records of captions as a run writes them, without a run."""

from __future__ import annotations

from typing import Any

from sira_cli import Lvlm
from sira_cli.run.records import Result
from sira_cli.run.task import TASKS

KNOWN: dict[str, Any] = {"schema": "sira.caption/1", "status": "ok", "error": "", "prompt": "?", "preset": "demo"}
KNOWN |= {"model": "m", "revision": "r", "method": "sira", "k": 4, "layers": 8, "alpha": 0.5, "max_new_tokens": 9}
KNOWN |= {"temperature": 0.0, "seed": 0, "finish_reason": "stop", "duration_ms": 1.0, "sira_version": "0"}
KNOWN |= {"image_tokens": 1, "prompt_tokens": 2, "output_tokens": 3}


def caption_record(name: str, text: str = "A dog.", **more: Any) -> dict[str, Any]:
    own = {"key": f"key of {name}", "file_name": name, "text": text, "image_sha256": name}
    return Result(**KNOWN | own | more).to_record()


def key_of(lvlm: Lvlm, kind: str, name: str, image_sha256: str, prompt: str) -> str:
    """Return the key of a record without a run."""
    return TASKS[kind](lvlm.preset, lvlm.decoder, prompt).at(lvlm.revision).key(name, image_sha256, prompt)
