"""What tests of `sira eval` on drawn scenes share: how many there are, and the figures of a report."""

from __future__ import annotations

SPLITS = ("random", "adversarial")
SCENES = 4


def rows(report: dict) -> dict[tuple[str, str], dict]:
    return {(row["group"], row["method"]): row for row in report["rows"]}


def values(report: dict) -> dict[tuple[str, str, str], float]:
    return {
        (*key, name): figure["value"] for key, row in rows(report).items() for name, figure in row["figures"].items()
    }
