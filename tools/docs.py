"""The generated parts of README.md and of the pages in docs, which CI checks.

`cog -r -I . README.md docs/*.md docs/bench/*.md` writes them.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

from sira_cli.analysis.bench.measure import BenchReport, BenchRow
from sira_cli.cli.presets import shown_sizes
from sira_cli.core.census import BROKEN, EXACT, REFUSED, STANDS_IN, UNSETTLED
from sira_cli.core.families import FAMILIES, TESTED, find_backbone, output_projections
from sira_cli.core.passes import BIDIRECTIONAL
from sira_cli.demo.measure import SceneReport, markdown, read_figures
from sira_cli.demo.questions import held_out
from sira_cli.errors import UnsupportedModelError
from sira_cli.eval.cards import CARDS
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.calibrated import Calibrated
from sira_cli.models import presets
from sira_cli.models.preset import Preset
from tests.support import tiny
from tests.support.layouts import released_model
from tools import comparison, ledger, look_cost, speed, verified
from tools.grammar import is_right
from tools.support import doubt_table, from_json, shipped

BENCH = Path(__file__).parent.parent / "docs" / "bench"


def verified_figures() -> str:
    """Return the effect of a second look on captions of the test scenes."""
    report = verified.VerifiedReport.shipped()
    return "Not measured on the test scenes yet." if report is None else _narrow(report.table())


def families_table() -> str:
    """Return supported families by their abilities: of the released configuration, or of a tiny model."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in FAMILIES:
        model = released_model(row.example) or tiny.FAMILIES[row.name]().model
        preset = Preset(model=row.example)
        again = model.config.model_type in BIDIRECTIONAL or any(each.recurrent for each in find_backbone(model).mixers)
        refused = [name for name, method in METHODS.items() if _is_refused(method, model, preset)]
        shown = ", ".join(f"`{each}`" for each in refused)
        key = (shown, "again" if again else "kept", row.note)
        groups.setdefault(key, []).append(f"{row.name} (`{row.model_type}`)")
    rows = ["| families (`model_type`) | refused | picture's rows | note |", "|---|---|---|---|"]
    rows += [f"| {', '.join(names)} | {' | '.join(key)} |" for key, names in groups.items()]
    return "\n".join(rows)


def families_line() -> str:
    """Return the names of supported families in one sentence."""
    return fill(f"Families: {', '.join(row.name for row in FAMILIES)}.", 120)


def _is_refused(method: Method, model: Any, preset: Preset) -> bool:
    """Return whether the structure of a model is one that a method cannot decode, calibrated or not."""
    try:
        if isinstance(method, Calibrated):
            output_projections(model)
        else:
            method.check_model(model, preset.sira_config)
    except UnsupportedModelError:
        return True
    return False


def census() -> str:
    """Return the support of each image-text-to-text type of transformers."""
    whole = len(TESTED) + len(REFUSED) + len(UNSETTLED)
    exact = ", ".join(EXACT)
    stands_in = " and ".join(f"`{kind}`" for kind in STANDS_IN)
    unsettled = "; ".join(f"{kind} ({reason})" for kind, reason in UNSETTLED.items())
    counts = f"{len(TESTED)} exact, {len(REFUSED)} refused, {len(UNSETTLED)} not settled"
    lines = [
        f"transformers 5.24 has {whole} image-text-to-text types: {counts}.",
        f"Refused under one version, which breaks them itself: {', '.join(f'{kind} ({it})' for kind, it in BROKEN)}.",
        f"Also exact: {exact}.",
        f"The tests use another picture tower for {stands_in}, whose own needs timm.",
        f"Refused, with the reason in the message: {', '.join(REFUSED)}.",
        f"Not settled, runs with a warning: {unsettled}.",
    ]
    return "\n\n".join(lines)


def methods_table() -> str:
    """Return the table of methods: each one's first docstring line; and the methods with each ability."""
    rows = ["| `--method` | description |", "|---|---|"]
    for name, method in METHODS.items():
        what = (sys.modules[type(method).__module__].__doc__ or "").strip().splitlines()[0]
        rows.append(f"| `{name}` | {what.split(': ', 1)[1].rstrip('.')} |")
    shown = {"Beams": Ability.BEAMS, "Traces": Ability.TRACES}
    able = [
        f"{title}: {', '.join(n for n in METHODS if each in METHODS[n].abilities)}" for title, each in shown.items()
    ]
    return "\n".join([*rows, "", f"{'. '.join(able)}."])


def settings_table() -> str:
    """Return the table of all settings of all methods, from their declarations; a shared setting has one row."""
    defaults: dict[tuple[str, str, str], dict[str, str]] = {}
    for name, method in METHODS.items():
        own = method.settings()
        for setting, declared in method.all_settings().items():
            shared = defaults.setdefault((setting, declared.meaning, declared.values), {})
            shared[name] = str(own.get(setting, "the preset's")).replace("None", "none")
    rows = ["| setting | of | meaning | values | default |", "|---|---|---|---|---|"]
    for (setting, meaning, values), found in defaults.items():
        same = {default: ", ".join(name for name in found if found[name] == default) for default in found.values()}
        shown = [f"{default} ({names})" if len(same) > 1 else default for default, names in same.items()]
        short = values.replace("a whole number ", "integer ").replace("a number ", "").replace("a text", "text")
        rows.append(f"| `{setting}` | {', '.join(found)} | {meaning} | {short} | {'; '.join(shown)} |")
    return "\n".join(rows)


def benchmarks_table() -> str:
    """Return the table of benchmarks, from their cards."""
    rows = ["| `sira eval` | benchmark | figures |", "|---|---|---|"]
    for card in CARDS.values():
        cells = (f"`{card.name}`", f"{card.title} ({card.source})", card.figures)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def presets_by_memory() -> str:
    """Return the table of shipped presets by the memory that they fit into, with what each needs."""
    needed = {}
    for path in presets.SHIPPED.glob("*.yaml"):
        preset = presets.read(path)
        memory = shown_sizes(preset)[1]
        needed[preset.name] = int(memory.removesuffix(" GB")) if memory else 0
    rows = ["| memory | presets |", "|---|---|"]
    for low, high in itertools.pairwise((0, *SIZES)):
        names = sorted((gb, name) for name, gb in needed.items() if low < gb <= high)
        rows.append(f"| {high} GB | {', '.join(f'`{name}` ({gb})' for gb, name in names)} |")
    unknown = sorted(name for name, gb in needed.items() if not gb)
    rows.append(f"| | not known, or next to nothing: {', '.join(f'`{name}`' for name in unknown)} |")
    return "\n".join(rows)


def support_figures() -> str:
    """Return how well support separates objects, in whole texts."""
    return _narrow(
        "\n".join(line for line in shipped().splitlines() if " third " not in line and " first " not in line)
    )


def doubt_figures() -> str:
    """Return the hallucination rate of object words by grounding, from the same measurement."""
    return _narrow(doubt_table(from_json(read_figures()["words"])))


COSTS = {
    "cpu-qwen2.5-vl-3b": "Qwen2.5-VL 3B's shape",
    "cpu-qwen2.5-vl-3b-step": "the same, a small picture",
    "cpu-qwen2.5-vl-3b-batch-8": "the same, eight small pictures",
    "cpu-qwen2.5-vl-3b-float32": "Qwen2.5-VL 3B's shape, 8 of 36 layers",
    "cpu-qwen3.5-9b": "Qwen3.5 9B's shape, 4 of 32 layers",
    "cpu-gemma4-e4b": "Gemma 4 E4B's shape, 14 of 42 layers",
    "cpu-gemma4-26b-a4b": "Gemma 4 26B-A4B's shape, 6 of 30 layers",
    "cpu-demo-methods": "the bundled model",
}


def costs_table() -> str:
    """Return the ratios of SIRA's time to greedy's, from each record of a bench."""
    columns = ["", "precision", "processor", "image tokens of the prompt", "prefill", "step", "request", "cache"]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, title in COSTS.items():
        report = bench_report(name)
        greedy, row = (_row(report, method) for method in ("greedy", "sira"))
        tokens = f"{row.image_tokens} of {row.prompt_tokens}"
        cache = f"{row.cache_bytes / greedy.cache_bytes:.2f}"
        chip = report.device.replace("(R)", "").replace(" Processor @", "")
        rows.append(f"| {title} | {report.dtype} | {chip} | {tokens} | {' | '.join(_ratios(row))} | {cache} |")
    return "\n".join(rows)


SIZES = (8, 12, 16, 24, 48, 80)  # GB of memory of usual cards

GPU_COSTS = {
    "gpu-llava-1.5-7b": "LLaVA-1.5 7B's shape",
    "gpu-llava-1.5-7b-batch-8": "LLaVA-1.5 7B's shape",
    "gpu-qwen2.5-vl-7b": "Qwen2.5-VL 7B's shape",
    "gpu-qwen3.5-9b": "Qwen3.5 9B's shape",
    "gpu-gemma4-26b-a4b": "Gemma 4 26B-A4B's shape",
}


def gpu_costs_table() -> str:
    """Return greedy's times on a GPU and the ratios of other methods, from each record of a bench there."""
    rows = ["| | pictures | image tokens of the prompt | method | prefill | step | request |", "|---" * 7 + "|"]
    for name, title in GPU_COSTS.items():
        for row in bench_report(name).rows:
            if row.method == "greedy":
                assert row.step is not None
                times = (row.prefill, row.step, row.requests[max(row.requests)])
                figures = [f"{1e3 * each.seconds.median:,.0f} ms" for each in times]
            else:
                figures = _ratios(row)
            tokens = f"{row.image_tokens:,} of {row.prompt_tokens:,}"
            rows.append(f"| {title} | {row.batch} | {tokens} | `{row.method}` | {' | '.join(figures)} |")
    report = bench_report("gpu-llava-1.5-7b")
    rows += ["", f"{report.device}, bfloat16, torch {report.torch}, transformers {report.transformers}."]
    return "\n".join(rows)


def gpu_conformance() -> str:
    """Return how far the fork is from Algorithm 1 on a GPU, in both precisions."""
    found = _record("gpu-conformance")
    exact, half = found["float32"], found["bfloat16"]
    worst = max(row["difference"] for row in exact)
    ratio = max(row["difference"] / row["of_precision"] for row in half)
    return (
        f"The fork was compared there with a literal Algorithm 1 on {len({row['family'] for row in exact})} tiny "
        f"families, {len(exact)} times with their values of K: in float32 all tokens are equal and logits differ by "
        f"{worst:.0e} at most; in bfloat16 the fork is at most {ratio:.2f} times as far from float32 as Algorithm 1 in "
        "bfloat16 is."
    )


def _row(report: BenchReport, method: str) -> BenchRow:
    return next(row for row in report.rows if row.method == method)


def _ratios(row: BenchRow) -> list[str]:
    """Return the ratios of prefill, step, and the longest request."""
    assert row.step is not None
    return [f"{each.ratio}" for each in (row.prefill, row.step, row.requests[max(row.requests)])]


def bench_report(name: str) -> BenchReport:
    """Return the report of `sira bench -o docs/bench/NAME.json`."""
    return BenchReport.from_json((BENCH / f"{name}.json").read_text(encoding="utf-8"))


def methods_figures() -> str:
    """Return all figures of captions and answers, and the candidate settings."""
    return _narrow(comparison.Comparison.shipped().tables())


def ledger_table() -> str:
    """Return the cost of resuming with a file of a million records."""
    return ledger.table(_record("ledger"))


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
    return _narrow(look_cost.table(_record("cpu-demo-second-look")))


def _narrow(text: str) -> str:
    """Take out what makes columns of a table equally wide."""
    return re.sub(r"-{4,}", "---", re.sub(r" {2,}\|", " |", text))


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((BENCH / f"{name}.json").read_text(encoding="utf-8"))
    return record


EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = ("cpu-qwen2.5-vl-3b", "cpu-qwen2.5-vl-3b-step", "cpu-qwen2.5-vl-3b-batch-8")
FIGURES = ("CHAIRi", "coverage")


def example() -> str:
    """Return the first picture of `examples/` where greedy decoding names an absent object and SIRA's text is right
    throughout, with both captions; words for absent objects are bold and in brackets."""
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
    compared, looked = comparison.Comparison.shipped(), verified.VerifiedReport.shipped()
    assert looked is not None
    timed = _record("cpu-demo-captions")
    alone, folder = (timed["seconds"][batch] for batch in ("1", str(speed.BATCH)))
    heads = [f"{FIGURES[0]}: objects hallucinated", f"{FIGURES[1]}: objects named"]
    rows = [["captions by", *heads, "one picture takes", f"pictures per second, a folder with `-b {speed.BATCH}`"]]
    for title, name, report in (
        ("greedy decoding", "greedy", compared.report),
        ("SIRA", "sira", compared.report),
        ("greedy, [looking first](docs/truth.md#looking-first) (`--verify guide`)", "greedy + guide", looked.report),
        ("VCD", "vcd", compared.report),
    ):
        times = f"{alone[name]:.2f} s (x{alone[name] / alone['greedy']:.2f})", f"{1 / folder[name]:.1f}"
        rows.append([title, *_cells(report, name), *times])
    note = (
        f"Times are means of {timed['rounds']} rounds over {speed.SCENES} other scenes, processor time, "
        f"{timed['dtype']}, {timed['device']} (`python -m tools.speed`)."
    )
    return f"{markdown(rows)}\n\n{fill(note, 120)}"


def cost() -> str:
    """Return the claim about cost: SIRA's decoding step relative to greedy's, in all benches."""

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
