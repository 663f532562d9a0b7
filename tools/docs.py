"""The generated parts of README.md and of the pages in docs, which CI checks.

`cog -r -I . README.md docs/*.md docs/bench/*.md` writes them.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from textwrap import fill, shorten
from typing import Any

import yaml

from sira_cli.analysis.bench.measure import BenchReport, BenchRow
from sira_cli.cli.presets import shown_sizes
from sira_cli.cli.terminal.console import in_words
from sira_cli.core.census import REFUSED, UNSETTLED
from sira_cli.core.families import FAMILIES, TESTED
from sira_cli.demo.measure import markdown, read_figures
from sira_cli.errors import UnsupportedModelError
from sira_cli.eval.paper import results
from sira_cli.look.claims import DOUBTED
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.calibrated import Calibrated
from sira_cli.models import presets
from sira_cli.models.preset import Preset
from sira_cli.run.records import Result
from tests.support import tiny
from tests.support.checkpoints import released_model
from tools import comparison, examples, frontier, looks, speed
from tools.card import CHOSEN
from tools.choose import FOLDER, read_chosen
from tools.support import FIFTHS, shipped

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "docs/bench"
WIDTH = 132


def look_figures() -> str:
    """Return the effect of second looks on captions of the test scenes."""
    return _narrow(looks.Looks.read().table(), without=("F1",))


def families_table() -> str:
    """Return supported families by the methods that cannot decode them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in FAMILIES:
        model = released_model(row.example) or tiny.FAMILIES[row.name]().model
        preset = Preset(model=row.example)
        refused = ", ".join(f"`{name}`" for name, method in METHODS.items() if _is_refused(method, model, preset))
        groups.setdefault((refused, row.note), []).append(row.name)
    rows = [[", ".join(names), *key] for key, names in groups.items()]
    return _table([["families", "refused methods", "note"], *rows])


def families_line() -> str:
    """Return the names of supported families in one sentence."""
    return fill(f"Families: {', '.join(row.name for row in FAMILIES)}.", 120)


def _is_refused(method: Method, model: Any, preset: Preset) -> bool:
    """Return whether the structure of a model is one that a method cannot decode, calibrated or not."""
    try:
        if isinstance(method, Calibrated):
            method.stand_in(model)
        else:
            method.check_model(model, preset.sira_config)
    except UnsupportedModelError:
        return True
    return False


def census() -> str:
    """Return how many image-text-to-text types of transformers are supported."""
    whole = len(TESTED) + len(REFUSED) + len(UNSETTLED)
    counts = f"{len(TESTED)} exact, {len(REFUSED)} refused, {len(UNSETTLED)} not settled"
    return f"transformers 5.24 has {whole} image-text-to-text types: {counts}."


def methods_table() -> str:
    """Return the table of methods: idea, needs and what papers claim; and which have an ability."""
    known = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    paper = results()["models"]["llava-1.5-7b"]["chair"]["64 tokens"]
    claims = known["claims"] | {name: f"{paper['greedy']['CHAIRi']} to {row['CHAIRi']}" for name, row in paper.items()}
    rows = [["`--method`", "idea", "needs", "claimed"]]
    for name, method in METHODS.items():
        line = (sys.modules[type(method).__module__].__doc__ or "").strip().splitlines()[0].split(": ", 1)[1]
        if name.startswith("sira+"):
            line = type(method).__doc__ or ""
        line = re.sub(r"\([^()]* \d{4}, (arXiv:[\d.]+)\)", r"(\1)", line.rstrip("."))
        claimed = "" if name == "greedy" else claims.get(name, "")
        rows.append([f"`{name}`", line, known["needs"][name], claimed])
    kinds = Ability.BEAMS, Ability.TRACES
    beams, traces = (", ".join(name for name in METHODS if kind in METHODS[name].abilities) for kind in kinds)
    return f"{_table(rows)}\n\nBeams: {beams}. Traces: {traces}."


def paper_gain() -> str:
    """Return POPE's F1 of LLaVA-1.5 on COCO's adversarial split in the paper, and as its authors print it."""
    found = results()
    sampled, greedy, sira = (
        found[source]["llava-1.5-7b"]["pope"]["coco adversarial"][method]["F1"]
        for source, method in (("models", "greedy"), ("published", "greedy"), ("models", "sira"))
    )
    text = (
        f"LLaVA-1.5's F1 on COCO's adversarial questions is {sampled:.1f} in that row, {sira:.1f} in SIRA's, and "
        f"{greedy:.1f} by greedy decoding in [its authors' paper](https://arxiv.org/abs/2310.03744): a hint only, as "
        "they end questions in other words and pad pictures."
    )
    return fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def settings_table() -> str:
    """Return the table of the methods' settings with their defaults, as `--set` takes them."""
    shared: dict[tuple[str, str], list[str]] = {}
    for name, method in METHODS.items():
        for setting, default in method.settings().items():
            value = shorten(f"{default}".replace("None", "none"), 40, placeholder=" ...")
            key = f"`{setting}={value}`", method.all_settings()[setting].meaning
            shared.setdefault(key, []).append(name)
    told: dict[str, list[str]] = {}
    for (setting, meaning), names in shared.items():
        told.setdefault(", ".join(name for name in names if "sira+" not in name), []).append(f"{setting} {meaning}")
    rows = [[names, "<br>".join(settings)] for names, settings in told.items()]
    return _table([["`--method`", "settings with their defaults"], *rows])


def presets_by_memory() -> str:
    """Return the table of shipped presets by the memory that they fit into, with what each needs."""
    needed = {}
    for preset in map(presets.read, presets.SHIPPED.glob("*.yaml")):
        memory = shown_sizes(preset)[1]
        needed[preset.name] = int(memory.removesuffix(" GB")) if memory else 0
    rows = [["memory", "presets"]]
    for low, high in itertools.pairwise((0, 8, 12, 16, 24, 48, 80)):  # of usual cards
        names = sorted((gb, name) for name, gb in needed.items() if low < gb <= high)
        rows.append([f"{high} GB", ", ".join(f"`{name}` ({gb})" for gb, name in names)])
    unknown = sorted(f"`{name}`" for name, gb in needed.items() if not gb)
    return _table([*rows, ["", f"unknown, or tiny: {', '.join(unknown)}"]])


def support_figures() -> str:
    """Return how well support separates objects."""
    return _narrow(shipped(), without=("AUROC of position",))


def frontier_figures() -> str:
    """Return the gains of methods at greedy's length and coverage, without the rows of baselines."""
    scenes = json.loads(frontier.FILE.read_text(encoding="utf-8"))["scenes"]
    return f"On {scenes} of the scenes:\n\n" + _narrow(frontier.shipped(), without=("words",))


def doubt_figures() -> str:
    """Return the hallucination rate of object words below the grounding that is to doubt, and of the others."""
    first = FIFTHS.index(DOUBTED) + 1

    def rate(rows: list[list[int]]) -> str:
        words, wrong = map(sum, zip(*rows, strict=True))
        return f"{100 * wrong / words:.0f} %"

    words = read_figures()["words"]
    low = " and ".join(f"{rate(row['by_doubt'][first:])} ({name})" for name, row in words.items())
    others = " and ".join(rate(row["by_doubt"][:first]) for row in words.values())
    return f"{low} of object words with a grounding below {DOUBTED} are hallucinated, and {others} of the others."


COSTS = {
    "gpu-llava-1.5-7b": "LLaVA-1.5 7B",
    "gpu-llava-1.5-7b-batch-8": "LLaVA-1.5 7B",
    "gpu-qwen2.5-vl-7b": "Qwen2.5-VL 7B",
    "gpu-qwen3.5-9b": "Qwen3.5 9B",
    "gpu-gemma4-26b-a4b": "Gemma 4 26B-A4B",
    "cpu-qwen2.5-vl-3b": "Qwen2.5-VL 3B",
    "cpu-qwen2.5-vl-3b-step": "the same, a small picture",
    "cpu-qwen2.5-vl-3b-batch-8": "the same, small pictures",
    "cpu-demo-methods": "the bundled model, float32",
}


def costs_table() -> str:
    """Return the ratios of SIRA's time to greedy's, and VCD's of a request, from each record of a bench."""
    rows = [["shape", "on", "pictures", "image tokens", "prefill", "step", "text", "VCD: text"]]
    for name, title in COSTS.items():
        report = bench_report(name)
        for row in (row for row in report.rows if row.method == "sira"):
            vcd = [_request(other) for other in report.rows if (other.method, other.batch) == ("vcd", row.batch)]
            tokens = f"{100 * row.image_tokens / row.prompt_tokens:.0f} %"
            assert row.step is not None
            cells = (f"{row.prefill.ratio.median:.2f}", f"{row.step.ratio}", _request(row), *(vcd or [""]))
            on = "GPU" if name.startswith("gpu") else re.sub(r"\(R\)| Processor", "", report.device)
            rows.append([title, on, str(row.batch), tokens, *cells])
    gpu = bench_report("gpu-llava-1.5-7b")
    where = f"GPU: {gpu.device}, torch {gpu.torch}, transformers {gpu.transformers}."
    return f"{_table(rows)}\n\n{where} bfloat16, unless float32 is named."


def thousand_photographs() -> str:
    """Return how long the captions of 1,000 pictures take on the machines that were measured."""
    times = []
    for name, shape in (
        ("gpu-llava-1.5-7b-batch-8", "LLaVA-1.5 7B"),
        ("gpu-qwen2.5-vl-7b", "Qwen2.5-VL 7B"),
        ("cpu-qwen2.5-vl-3b", "Qwen2.5-VL 3B"),
    ):
        report = bench_report(name)
        row = [each for each in report.rows if each.method == "sira"][-1]  # the largest batch
        seconds = row.requests[64].seconds.median / row.batch
        times.append(f"- {shape} on {report.device}, {row.batch} at once: {in_words(1000 * seconds)}.")
    return "\n".join(times)


def record_keys() -> str:
    """Return the keys of a record with their meaning, as `Result` documents them."""
    text = (Result.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    rows = [["key", "value"]]
    for line in text.splitlines():
        if line.startswith(" " * 12):  # goes on
            rows[-1][1] += f" {line.strip()}"
        else:
            names, _, meaning = line.strip().partition(": ")
            rows.append([", ".join(f"`{name}`" for name in names.split(", ")), meaning])
    return _table([[names, meaning.removesuffix(".")] for names, meaning in rows])


def _request(row: BenchRow) -> str:
    """Return the median ratio of the longest request."""
    return f"{row.requests[max(row.requests)].ratio.median:.2f}"


def bench_report(name: str) -> BenchReport:
    """Return the report of `sira bench -o docs/bench/NAME.json`."""
    return BenchReport.from_json((BENCH / f"{name}.json").read_text(encoding="utf-8"))


def methods_figures() -> str:
    """Return all figures of captions and answers, with settings and the scenes on which these were chosen."""
    (scenes,) = {row.scenes for row in read_chosen().values()}
    swept = json.loads(CHOSEN.read_text(encoding="utf-8"))["pictures"]
    chosen = f"Settings are from {scenes} validation scenes, SIRA's K and alpha from {swept}."
    return chosen + "\n\n" + _narrow(comparison.Comparison.read().tables(), without=("CHAIRs", "words"))


def second_look_cost() -> str:
    """Return the cost of a second look in a folder, compared with the captions alone."""
    seconds = _record("cpu-demo-captions")["seconds"][str(speed.BATCH)]
    ratio = seconds["greedy + flag"] / seconds["greedy"]
    return f"A folder takes {ratio:.2f} times as long with `--verify flag` and `-b {speed.BATCH}` (`tools.speed`)."


def _table(rows: list[list[str]]) -> str:
    return _narrow(markdown(rows))


def _narrow(text: str, without: Collection[str] = ()) -> str:
    """Take out what makes columns of a table equally wide, and the columns with these heads."""
    lines = []
    kept: list[int] | None = None  # columns of the table that a line belongs to
    for line in re.sub(r"-{4,}", "---", re.sub(r" {2,}\|", " |", text)).splitlines():
        if not line.startswith("|"):
            kept = None
            lines.append(line)
            continue
        cells = line.strip("|").split("|")
        if kept is None:
            kept = [index for index, cell in enumerate(cells) if cell.strip() not in without]
        lines.append(f"|{'|'.join(cells[index] for index in kept)}|")
    return "\n".join(lines)


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((BENCH / f"{name}.json").read_text(encoding="utf-8"))
    return record


def example() -> str:
    """Return README's example with both captions; words for absent objects are bold and in brackets."""
    row = (examples.FOLDER / "README.md").read_text(encoding="utf-8").splitlines()[-1]
    picture, objects, *texts = (cell.strip() for cell in row.strip("|").split("|"))
    place, number = objects.partition(":")[0], int(re.findall(r"\d{4,}", picture)[0]) - examples.FIRST + 1
    picture = picture.replace("scene-", "examples/scene-").replace(">", f' alt="The picture: a drawn {place}">')
    texts = [re.sub(r"\*\*(.+?)\*\*", r"**[\1]**", text) for text in texts]
    legend = (
        "**[In brackets]**: not in the picture. By the small model in the package. In scene "
        f"{number} greedy decoding names an absent object and SIRA makes no mistake: the first such scene "
        "([the first 20](examples/README.md))."
    )
    table = "| picture | greedy decoding | SIRA |\n|---|---|---|\n| " + " | ".join([picture, *texts]) + " |"
    return f"{table}\n\n{fill(legend, WIDTH)}"


def effect() -> str:
    """Return hallucination, coverage, faults and time of the ways to caption the test scenes."""
    measured, looked = comparison.Comparison.read(), looks.Looks.read()
    timed = _record("cpu-demo-captions")
    alone, folder = (timed["seconds"][batch] for batch in ("1", str(speed.BATCH)))
    heads = {
        "CHAIRi": "named objects that are not there (CHAIRi)",
        "coverage": "objects that are named (coverage)",
        "instances": "more of a kind than there are",
        "broken": "broken texts",
        "right": "right, but for absent objects",
    }
    rows = [["captions by", *heads.values(), "time: one picture", f"a folder, `-b {speed.BATCH}`"]]
    best = "greedy, [best of 5](docs/truth.md#the-best-of-several-captions) (`--verify best`)"
    guide = "greedy, [looking first](docs/truth.md#looking-first) (`--verify guide`)"
    for title, name, report in (
        ("greedy decoding", "greedy", measured.report),
        ("SIRA", "sira", measured.report),
        (best, "greedy + best", looked),
        (guide, "greedy + guide", looked),
        (f"VCD, {_choice(measured, 'vcd')}", "vcd", measured.report),
    ):
        cells = []
        for each in heads:
            cell = f"{report.figures[name][each].value:.1f} %"
            if name in report.differences:
                cell += f" ({report.differences[name][each]:+})"
            cells.append(cell)
        times = [f"x{seconds[name] / seconds['greedy']:.2f}" for seconds in (alone, folder)]
        rows.append([title, *cells, *times])
    note = (
        f"On {measured.report.scenes:,} scenes. "
        f"Times: {timed['dtype']}, {timed['device']}, means over {speed.SCENES} other scenes (`python -m tools.speed`);"
        " other pages have medians of other runs."
    )
    return f"{_table(rows)}\n\n{fill(note, WIDTH)}"


def _choice(measured: comparison.Comparison, method: str) -> str:
    """Return the settings that a method was measured under, and how they were chosen."""
    settings = measured.settings[method]
    words = comparison.values_text(settings)
    if comparison.are_authors(method, settings):
        words += ", its authors' settings"
    if measured.origin[method] == comparison.LEAST:
        words += ", the least bad that was tried"
    return words


def cost() -> str:
    """Return the claim about cost: SIRA's decoding step relative to greedy's, in the benches of large shapes."""

    def steps(names: Iterable[str]) -> str:
        rows = [row for name in names for row in bench_report(name).rows if row.method == "sira"]
        medians = [row.step.ratio.median for row in rows if row.step]
        return f"{min(medians):.2f} to {max(medians):.2f}"

    cpus, gpus = ([name for name in COSTS if name.startswith(kind)] for kind in ("cpu-qwen", "gpu"))
    text = (
        f"**Little extra time.** A step takes {steps(cpus)} times greedy's on CPUs and {steps(gpus)} times on "
        f"{bench_report(gpus[0]).device}: random weights in shapes of real models ([cost](docs/results.md#time))."
    )
    return fill(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
