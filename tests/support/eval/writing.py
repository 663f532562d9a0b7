"""Files of questions and answers, written for a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save(path: Path, content: Any) -> Path:
    """Write text, or anything else as JSON; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    return save(path, "".join(json.dumps(row) + "\n" for row in rows))
