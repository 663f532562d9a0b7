"""Files of questions and answers, written and read for a test, and the figures of a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPLITS = ("random", "adversarial")
SCENES = 4


def save(path: Path, content: Any) -> Path:
    """Write text, or anything else as JSON; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def lines(path: Path, rows: Sequence[Any]) -> Path:
    """Write JSON lines."""
    return save(path, "".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rows(report: dict) -> dict[tuple[str, str], dict]:
    return {(row["group"], row["method"]): row for row in report["rows"]}


def values(report: dict) -> dict[tuple[str, str, str], float]:
    return {
        (*key, name): figure["value"] for key, row in rows(report).items() for name, figure in row["figures"].items()
    }
