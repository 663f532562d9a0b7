"""`--engine vllm` against the engine in process: the same records."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from tests.vllm.test_plugin import folder, pictures, pytestmark, run  # noqa: F401 (fixtures and marks)

LISTED = importlib.metadata.version("llguidance").split(".")[:2] >= ["1", "9"]
SCHEMA = {
    "type": "object",
    "properties": {"seen": {"type": "boolean"}, "name": {"enum": ["dog", "cat"]}},
    "required": ["seen", "name"],
    "additionalProperties": False,
}
RUNS = {
    "captions": {},
    "greedy": {"method": "greedy", "prompt": "Describe the room."},
    "another alpha and K": {"settings": {"alpha": 1.5, "max_new_tokens": 40}},
    "sampled": {"settings": {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 7}},
    "sampled greedy": {"method": "greedy", "settings": {"temperature": 1.0, "min_p": 0.01}},
    "text settings": {"settings": {"prefix": "A photo: ", "max_sentences": 1}},
    "an answer": {"task": "ask", "prompt": "Is there a dog in the image?"},
    "choices": {"task": "ask", "prompt": "Is there a dog?", "choices": ["Yes", "No", "Perhaps not"]},
    "choices of greedy": {"task": "ask", "prompt": "What?", "choices": ["A dog", "A cat"], "method": "greedy"},
    "flagged": {"verify": True, "settings": {"max_new_tokens": 40}},
    "a check": {"task": "check", "caption": "A dog and two cats sit in a red car, next to a tree."},
}
if LISTED:
    RUNS["a schema"] = {"schema": SCHEMA, "settings": {"max_new_tokens": 60}}
MEASURED = {"duration_ms"}


def close(left, right):
    """Equal, but for rounding of numbers."""
    if isinstance(left, float):
        return left == pytest.approx(right, abs=1e-3)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(close, left, right))
    return left == right


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl"])
def test_records_are_those_of_the_engine_in_process(family, folder, pictures, tmp_path):  # noqa: F811
    found = run(tmp_path, do="records", model=folder(family), pictures=pictures[:5], runs=[*RUNS.values()])
    for name, (there, here) in zip(RUNS, found, strict=True):
        for mine, theirs in zip(there, here, strict=True):
            apart = {
                key: (mine[key], theirs[key])
                for key in mine
                if key not in MEASURED and not close(mine[key], theirs[key])
            }
            assert not apart, (name, json.dumps(apart))
    checked = found[[*RUNS].index("a check")][0]
    assert all(len(record["objects"]) > 2 for record in checked)
