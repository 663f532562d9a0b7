"""What works with nothing to download: a photograph, and a tiny checkpoint made on the spot.

The checkpoint has the files and the classes of a LLaVA-1.5 checkpoint, but random weights: its words
are random. It stands in until a trained model is bundled (issue 3).

`chelsea.jpg` is scikit-image's photograph of Chelsea the cat, by Stefan van der Walt (CC0).
"""

from __future__ import annotations

from pathlib import Path

PICTURE = Path(__file__).parent / "chelsea.jpg"
