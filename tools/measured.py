"""Tables and sentences of docs/*.md on measurements, from the records in docs/bench, whose page names the commands."""

from __future__ import annotations

import json
from typing import Any

from tools import coverage as intervals
from tools import ledger, look_cost
from tools.docs import BENCH


def ledger_table() -> str:
    """Return the cost of resuming with a file of a million records."""
    return ledger.table(_record("ledger"))


def coverage() -> str:
    """Return the coverage of 95 % intervals."""
    return intervals.table(_record("coverage"))


def threshold_figures() -> str:
    """Return the effect of the bundled model's threshold on the captions that it was found with."""
    found = _record("demo-support")
    there, absent = found["below"][str(found["threshold"])]
    return (
        f"Below {found['threshold']:g} are {100 * there:.1f} % of the {found['there']:,} real objects and "
        f"{100 * absent:.0f} % of the {found['absent']:,} hallucinated ones."
    )


def second_look_cost() -> str:
    """Return the cost of a second look, compared with the caption alone."""
    return look_cost.table(_record("cpu-demo-second-look"))


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((BENCH / f"{name}.json").read_text(encoding="utf-8"))
    return record
