"""The generated parts of README.md: an example, a table of four rows, the cost of a decoding step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from sira_cli.demo.measure import SceneReport, markdown
from sira_cli.demo.questions import held_out
from tools.comparison import Comparison
from tools.docs import BENCH, GPU_COSTS, bench_report
from tools.grammar import is_right
from tools.speed import BATCH, SCENES
from tools.verified import VerifiedReport

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = ("cpu-qwen2.5-vl-3b", "cpu-qwen2.5-vl-3b-step", "cpu-qwen2.5-vl-3b-batch-8")
FIGURES = ("CHAIRi", "coverage")


def example() -> str:
    """Return a picture of `examples/` with both captions; words for absent objects are bold and in brackets.

    The rule: the first one where greedy decoding names an absent object and SIRA's text is right throughout.

    Raises:
        LookupError: `examples/README.md` has no such scene.
    """
    for line in (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| <img src=\"(scene-(\d+)\.png)", line):
            _, _, greedy, sira = (cell.strip() for cell in line.strip("|").split("|"))
            scene = held_out(int(found[2]))
            if "**" in greedy and is_right(scene, sira):
                alt = f"The picture: a drawn {scene.place}"
                picture = f'<img src="examples/{found[1]}" width="200" alt="{alt}">'
                texts = (re.sub(r"\*\*(.+?)\*\*", r"**[\1]**", text) for text in (greedy, sira))
                return "| picture | greedy decoding | SIRA |\n|---|---|---|\n| " + " | ".join([picture, *texts]) + " |"
    raise LookupError("examples/README.md has no scene where only SIRA's text is right")


def effect() -> str:
    """Return hallucination, coverage and time of the ways to caption the test scenes."""
    compared, looked = Comparison.shipped(), VerifiedReport.shipped()
    if looked is None:
        raise LookupError("no figures of the second look: run python -m tools.verified")
    speed = json.loads((BENCH / "cpu-demo-captions.json").read_text(encoding="utf-8"))
    alone, folder = (speed["seconds"][batch] for batch in ("1", str(BATCH)))
    heads = [f"{FIGURES[0]}: objects hallucinated", f"{FIGURES[1]}: objects named"]
    rows = [["captions by", *heads, "one picture takes", f"pictures per second, a folder with `-b {BATCH}`"]]
    for title, name, report in (
        ("greedy decoding", "greedy", compared.report),
        ("SIRA", "sira", compared.report),
        (
            "greedy, [looking first](docs/truth.md#looking-first) (`--verify guide`)",
            "greedy + guide",
            looked.report,
        ),
        ("VCD", "vcd", compared.report),
    ):
        times = f"{alone[name]:.2f} s (x{alone[name] / alone['greedy']:.2f})", f"{1 / folder[name]:.1f}"
        rows.append([title, *_cells(report, name), *times])
    note = (
        f"Times are means of {speed['rounds']} rounds over {SCENES} other scenes, processor time, {speed['dtype']}, "
        f"{speed['device']} (`python -m tools.speed`)."
    )
    return f"{markdown(rows)}\n\n{fill(note, 120)}"


def cost() -> str:
    """Return the claim about cost: SIRA's decoding step relative to greedy's, the smallest and the largest of the
    benches.
    """

    def steps(names: Iterable[str]) -> str:
        reports = [bench_report(name) for name in names]
        rows = [row.step for report in reports for row in report.rows if row.method == "sira"]
        medians = [step.ratio.median for step in rows if step]
        return f"{min(medians):.2f} to {max(medians):.2f}"

    cpu, gpu = (bench_report(name) for name in (STEPS[0], "gpu-llava-1.5-7b-batch-8"))
    sira = gpu.rows[1]
    text = (
        f"**Little extra time.** In {cpu.dtype} a decoding step takes {steps(STEPS)} times greedy's on CPUs "
        f"(Qwen2.5-VL 3B's shape, {cpu.device.rpartition(', ')[2]}), and {steps(GPU_COSTS)} on {gpu.device} (shapes of "
        f"{len(GPU_COSTS) - 1} models from 7B), which waits for Python; there {sira.batch} pictures at once (LLaVA-1.5 "
        f"7B's shape) take {sira.requests[max(sira.requests)].ratio.median:.2f} times greedy's time. The paper reports "
        "1.4 to 1.5 ([cost](docs/results.md#time))."
    )
    return fill(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _cells(report: SceneReport, name: str) -> list[str]:
    differences = report.differences.get(name)
    if differences is None:
        return [f"{report.figures[name][each].value:.1f} %" for each in FIGURES]
    return [f"{report.figures[name][each].value:.1f} % ({differences[each]:+})" for each in FIGURES]
