"""A little world, a model trained on it from scratch, and what is measured on both: nothing to download.

| file | job |
|---|---|
| `world.py` | kinds of scenes and objects: colours, glyphs, what goes with what |
| `scenes.py` | a scene's exact content from a seed, and its picture |
| `language.py` | captions, questions, and which objects a text mentions |
| `checkpoint.py` | the untrained model and its tokenizer, in a checkpoint's files |
| `pictures.py`, `texts.py` | what the training shows the model |
| `train.py`, with `recipe.py` and `stage.py` | training from scratch |
| `evaluate.py` | decoders caption scenes and answer questions about them |
| `figures.py` | CHAIR's and POPE's figures, with intervals |
| `export.py`, `export_amber.py` | scenes as the files of POPE, COCO and AMBER |
| `card.py` | measures the model and writes the figures beside it |
| `model/` | the trained checkpoint with its card |
"""

from __future__ import annotations

from pathlib import Path

MODEL = Path(__file__).parent / "model"
