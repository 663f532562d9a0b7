"""Lines of files of records, whose long fields are found without parsing them."""

from __future__ import annotations

import json
from typing import Any

from sira_cli.run.ledger import split_optional
from sira_cli.run.records import Result, as_line

# Entries of lists with every key that one may have.
WORD = {"word": "dog", "start": 0, "end": 3, "probability": 0.5, "grounding": 0.5, "delta": 0.1, "cf_probability": 0.4}
CLAIM = {
    "kind": "colors",
    "thing": "dog",
    "value": "red",
    "spans": [[0, 3]],
    "support": 0.5,
    "neither": 0.1,
    "image": 1,
}
VERIFY = {
    "mode": "guide",
    "min_support": 0.5,
    "captions": 5,
    "sort": "support",
    "claims": {"objects": {"question": "?"}},
}
FIELDS = tuple(Result.__dataclass_fields__)
LISTS: dict[str, Any] = {
    "words": [WORD],
    "choices": [{"choice": "Yes", "probability": 0.5, "logprob": -1.0}],
    "objects": [CLAIM | {"answer": "red"}],
    "removed": [CLAIM],
    "candidates": [CLAIM],
    "verify": VERIFY,
    "data": {name: name for name in FIELDS},
}


def test_optional_fields_are_found_whatever_stands_inside_them():
    """No name of an optional field is a key inside an earlier one."""
    values = {name: LISTS.get(name, name) for name in FIELDS}
    assert LISTS.keys() <= values.keys()
    rest, optional = split_optional(as_line(values))
    found = json.loads(rest + b"}") | {name: json.loads(value) for name, value in optional.items()}
    assert found == values
