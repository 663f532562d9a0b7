"""Tables and sentences of docs/*.md that say what was measured once, from the records that the commands left.

    docs/bench/demo-k.json                `sira calibrate k -p demo -o`
    docs/bench/demo-sweep-k.json          `sira sweep -p demo --captions --k 1-4 --alpha 0.5 --limit 160 --json`
    docs/bench/demo-support.json          `sira calibrate support -p demo --scenes -o`
    docs/bench/cpu-demo-second-look.json  `sira bench -p demo --method sira --verify -o`
    docs/bench/ledger.json                `python -m tools.ledger -o`

Calibrations and settings are those that the bundled model brings.
"""

from __future__ import annotations

import json
from typing import Any

from sira_cli.analysis.calibration.which_k import SHARE
from sira_cli.analysis.sweep.outcome import SweepReport
from sira_cli.demo.chosen import read_chosen
from sira_cli.demo.comparison import value_text
from sira_cli.demo.scene_report import CAPTION_FIGURES, markdown
from sira_cli.eval.stats.bootstrap import Figure
from sira_cli.methods import find
from sira_cli.methods.calibrated import Calibration
from sira_cli.methods.maskcd import MaskCd
from sira_cli.models import presets
from sira_cli.models.calibrations import SHIPPED
from sira_cli.models.free_support import Weights
from tools.docs import BENCH, bench_report
from tools.ledger import LedgerReport

OTHER_SHARE = 0.8  # what the rule for K might have been


def ledger_table() -> str:
    """Return what a file of a million records costs the run that resumes it."""
    return LedgerReport.from_json((BENCH / "ledger.json").read_text(encoding="utf-8")).table()


def k_table() -> str:
    """Return KL and what labels say for every K of the bundled model, and what else the rule might have given."""
    found = _record("demo-k")
    sweeps = [
        SweepReport.from_json(record)
        for record in (_record("demo-sweep-k"), json.loads((presets.BUNDLED_FOLDER / "choice.json").read_text("utf-8")))
    ]
    labels = {row.k: row.differences for sweep in sweeps for row in sweep.rows if row.alpha == sweeps[1].best.alpha}
    kl = [row["kl"]["mean"] for row in found["rows"]]
    marks = {found["half"]: "the paper's L/2", found["k"]: "the rule", sweeps[1].best.k: "labels"}
    rows = [["K", "KL, nats", "of the largest", "CHAIRi - greedy's", "coverage - greedy's", ""]]
    for k, value in enumerate(kl, start=1):
        figures = (_difference(labels[k][name]) for name in ("CHAIRi", "coverage"))
        rows.append([str(k), f"{value:.3f}", f"{100 * value / max(kl):.0f} %", *figures, marks.get(k, "")])
    other = next(k for k, value in enumerate(kl, start=1) if value >= OTHER_SHARE * max(kl))
    shares = [f"{100 * share:.0f} %" for share in (found["agreement"], OTHER_SHARE, SHARE)]
    remarks = [
        f"KL: {found['pictures']} scenes, {found['tokens']:,} tokens; in {shares[0]} of resamples of these scenes",
        f"the rule gives the same K, and with {shares[1]} instead of {shares[2]} it would give {other}.",
        f"CHAIRi and coverage: {sweeps[1].pictures} scenes, alpha = {sweeps[1].best.alpha:g}, in points, with paired",
        "95 % intervals.",
    ]
    return f"{markdown(rows)}\n\n{' '.join(remarks)}"


def line_figures() -> str:
    """Return what the bundled model's line does to the captions that it was found with."""
    found = _record("demo-support")
    there, absent = found["below"][str(found["line"])]
    return (
        f"Below {found['line']:g} are {100 * there:.1f} % of the {found['there']:,} things there and "
        f"{100 * absent:.0f} % of the {found['absent']:,} hallucinated ones."
    )


def free_lines() -> str:
    """Return the lines of `--verify free` that the bundled model brings."""
    tensors = _shipped("support").tensors
    weights = {name: Weights.read(tensors, name) for name in ("greedy", "sira")}
    lines = " and ".join(f"{each.line:.3g} ({name})" for name, each in weights.items() if each is not None)
    return f"The bundled model's lines are {lines}."


def second_look_cost() -> str:
    """Return what a second look costs beside the caption alone."""
    looks = bench_report("cpu-demo-second-look").looks
    rows = [["captions of", "things per caption", *looks[0].ratios, "rewritten"]]
    for look in looks:
        ratios = [f"x{each.median:.2f} ({each.low:.2f}..{each.high:.2f})" for each in look.ratios.values()]
        rows.append([look.method, f"{look.things:.1f}", *ratios, f"{look.rewritten} of {look.pictures}"])
    return markdown(rows)


def ict_slices() -> str:
    """Return how well slices of the bundled model tell clean from degraded runs, from its calibration."""
    tensors = _shipped("ict").tensors
    rows = [["level", "slices", "the best of them", "the median"]]
    for level in ("image", "object"):
        accuracy = tensors[f"{level}.accuracy"]
        rows.append(
            [
                level,
                str(accuracy.numel()),
                *(f"{100 * float(each):.1f} %" for each in (accuracy.max(), accuracy.median())),
            ]
        )
    return markdown(rows)


def ict_settings() -> str:
    """Return what `ict` does to captions of validation scenes, by `python -m tools.choose`."""
    row = read_chosen()["ict"]
    rows = [["", *CAPTION_FIGURES], ["greedy", *_captions(row.greedy)]]
    for tried in row.tried:
        shown = ", ".join(f"{name} = {value_text(value)}" for name, value in tried.settings.items())
        rows.append([shown, *_captions(tried.figures)])
    return markdown(rows)


def maskcd_heads() -> str:
    """Return how many heads of the bundled model `maskcd` silences."""
    (path,) = (SHIPPED / "maskcd").iterdir()
    method = find("maskcd").with_values(calibration=str(path))
    assert isinstance(method, MaskCd)
    heads = method.image_heads()
    return f"Of its {heads.numel()} heads {int(heads.sum())} are silenced."


def _captions(figures: dict[str, float]) -> list[str]:
    return [f"{figures[name]:.1f}" for name in CAPTION_FIGURES]


def _difference(figure: Figure) -> str:
    return f"{figure.value:+.1f} ({figure.low:+.1f} to {figure.high:+.1f})"


def _shipped(kind: str) -> Calibration:
    (path,) = (SHIPPED / kind).iterdir()
    return Calibration.read(path)


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((BENCH / f"{name}.json").read_text(encoding="utf-8"))
    return record
