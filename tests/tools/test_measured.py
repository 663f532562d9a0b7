"""Sentences of the documents on records, against the files themselves."""

from __future__ import annotations

import re
from pathlib import Path

from tools import measured

ROOT = Path(__file__).parents[2]


def test_the_line_is_that_of_the_preset():
    line = re.search(r"min_support: ([\d.]+)", (ROOT / "presets/demo.yaml").read_text())
    assert line is not None
    assert measured.threshold_figures().startswith(f"Below {line[1]} are ")
