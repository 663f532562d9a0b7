"""Captions shared by many pictures: a sign that a model cannot see them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sira_cli.data.records.index import Numbers

MANY = 10  # pictures
WARNING = f"has the text of {MANY} pictures or more"


def shared_by_many(texts: Numbers, images: Numbers) -> Numbers:
    """Return the texts that many pictures share; copies of a picture count once."""
    found, counts = np.unique(texts[texts != 0], return_counts=True)
    often = np.isin(texts, found[counts >= MANY])
    pairs = np.unique(np.stack([texts[often], images[often]]), axis=1)
    found, counts = np.unique(pairs[0], return_counts=True)
    shared: Numbers = found[counts >= MANY]
    return shared


def marked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the warning if it had none, else without it."""
    before = record.pop("warnings", [])
    after = [warning for warning in before if warning != WARNING] if WARNING in before else [*before, WARNING]
    return record | ({"warnings": after} if after else {})
