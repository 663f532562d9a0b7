"""Tables and sentences of docs/*.md on measurements, from the records of these commands:

docs/bench/demo-support.json             `sira calibrate support -p demo --scenes -o`
docs/bench/cpu-demo-second-look.json     `python -m tools.look_cost -o`
docs/bench/ledger.json                   `python -m tools.ledger -o`
docs/bench/coverage.json                 `python -m tools.coverage -o`
"""

from __future__ import annotations

import json
from typing import Any

from sira_cli.demo.scene_report import markdown
from tools.coverage import table
from tools.docs import BENCH
from tools.ledger import LedgerReport
from tools.look_cost import LookReport


def ledger_table() -> str:
    """Return the cost of resuming with a file of a million records."""
    return LedgerReport.from_json((BENCH / "ledger.json").read_text(encoding="utf-8")).table()


def coverage() -> str:
    """Return the coverage of 95 % intervals."""
    return table(_record("coverage"))


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
    looks = LookReport.from_json((BENCH / "cpu-demo-second-look.json").read_text(encoding="utf-8")).looks
    rows = [["captions of", "objects per caption", "time with `--verify flag`"]]
    rows += [[look.method, f"{look.things:.1f}", f"x{look.ratio}"] for look in looks]
    return markdown(rows)


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((BENCH / f"{name}.json").read_text(encoding="utf-8"))
    return record
