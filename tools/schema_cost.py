"""Measure the cost of following a JSON schema: `python -m tools.schema_cost -o docs/bench/cpu-demo-schema.json`.

The bundled model captions scenes under SIRA with the schema and without, in turn, as many tokens each; a step is the
time from one token to the next. Its vocabulary is small, so the mask alone is also timed, with a made-up vocabulary as
large as Qwen2.5's, whose tokens are pieces of random words. All times are processor time of one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sira_cli import load
from sira_cli.analysis.bench.measure import device_name
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.models.answering.end_tokens import EndTokens
from sira_cli.models.answering.reasoning import ReasoningParser
from sira_cli.models.inputs.vocabulary import Vocabulary
from sira_cli.models.schemas.following import SchemaTokens, masked
from sira_cli.models.schemas.schema import Schema

NAME, SCENES, TOKENS, LARGE = "objects", 20, 64, 151_643
ROWS = (1, 8)


class MadeUpVocabulary(Vocabulary):
    """Bytes, and pieces of random words with and without a space before them."""

    def __init__(self, size: int) -> None:
        """Make `size` tokens; the last one ends a text."""
        draw, found = random.Random(0), dict.fromkeys(bytes([byte]) for byte in range(256))
        while len(found) < size - 1:
            word = "".join(draw.choices(string.ascii_letters + '",:[]{}0123456789', k=draw.randint(2, 9)))
            found[f"{draw.choice(['', ' '])}{word}".encode()] = None
        self._made = [*found, b""]

    def token(self, text: str) -> int | None:
        """Return None: it has no markers."""
        return None

    def pieces(self) -> list[bytes]:
        """Return the bytes of all tokens."""
        return self._made


def steps(lvlm: Any, inputs: Any, schema: Schema | None) -> list[float]:
    """Return the seconds of each step of one text."""
    stamps: list[float] = []
    lvlm.generate(
        inputs, on_new=lambda tokens: stamps.append(time.process_time()), schemas=None if schema is None else [schema]
    )
    return [after - before for before, after in itertools.pairwise(stamps)]


def model_steps(schema: Schema) -> dict[str, Any]:
    """Return the median step with the schema and without, and the median of the scenes' ratios."""
    lvlm = load("demo", max_new_tokens=TOKENS)
    found: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(SCENES + 1):
        image = render(held_out(VALIDATION_SEEDS[number]))[0]
        inputs = lvlm.prepare([image], [lvlm.preset.prompts.caption])
        for name, follows in (("without", None), ("with", schema)):
            if number:  # the first one warms up
                found[name].append(statistics.median(steps(lvlm, inputs, follows)))
            else:
                steps(lvlm, inputs, follows)
    ratios = [one / other for one, other in zip(found["with"], found["without"], strict=True)]
    return {
        "seconds": {name: statistics.median(values) for name, values in found.items()},
        "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
    }


def mask_seconds(schema: Schema, rows: int) -> float:
    """Return the mean seconds of a mask for some rows with a vocabulary of `LARGE` tokens."""
    ends = EndTokens((LARGE - 1,), None)
    tokens = SchemaTokens(ReasoningParser(MadeUpVocabulary(LARGE)), ends)
    texts = [tokens.begin(schema, TOKENS) for _ in range(rows)]
    scores = torch.rand(TOKENS, rows, LARGE, generator=torch.Generator().manual_seed(0))
    spent = 0.0
    for each in scores:
        before = time.process_time()
        picked = masked(texts, each).argmax(dim=-1).tolist()
        spent += time.process_time() - before
        for text, token in zip(texts, picked, strict=True):
            before = time.process_time()
            text.add(token)
            spent += time.process_time() - before
    return spent / TOKENS


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    schema = Schema.of(NAME)
    record = {
        "schema": "sira.schema-cost/1",
        "device": device_name(torch.device("cpu")),
        "json_schema": NAME,
        "tokens": TOKENS,
        "scenes": SCENES,
        "vocabulary": LARGE,
        "step": model_steps(schema),
        "mask_seconds": {str(rows): mask_seconds(schema, rows) for rows in ROWS},
    }
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
