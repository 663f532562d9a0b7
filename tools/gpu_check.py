"""Run everything that needs a GPU, and write a report: `tools/gpu_check.sh [-o FOLDER] [--tiny] [PART...]`.

Each part is a process with its own time limit, so that a failure ends no other part. Parts can be named, to run them
in several commands; the report has the latest result of each.

    FOLDER/gpu-*.json              figures, as `sira bench -o` writes them
    FOLDER/gpu-check.md            the report, a row per part
    FOLDER/gpu-check/PART.log      a part's output, and PART.json, its other results
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sira_cli.analysis.bench.report import BenchReport

ROOT = Path(__file__).parent.parent
MINUTES = 39  # of all parts together
LEAST = 10  # seconds that must be left for a part to begin
TINY_SECONDS = 600  # of each part on a CPU
SKIPPED = 77  # exit status of a part that cannot run here; its last line is the reason
LINE = "figures: "  # begins the line of a part that goes into the report
SIRA = ("-m", "sira_cli")
BENCH = (*SIRA, "bench", "--overwrite")
PARTS = ("-m", "tools.gpu_parts")


@dataclass(frozen=True)
class Part:
    """A part: its commands on a GPU, and on a CPU with tiny settings.

    Attributes:
        name: of the part.
        seconds: its limit.
        command: arguments of Python on a GPU; `{out}` is the folder, `{own}` the part's own file in it.
        tiny: those with `--tiny`.
        figures: the file of the measurements, in the folder.
    """

    name: str
    seconds: int
    command: tuple[str, ...]
    tiny: tuple[str, ...]
    figures: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a part: `passed`, `failed` or `skipped`, with its figures or the reason."""

    part: str
    result: str
    seconds: float
    says: str


def _bench(name: str, seconds: int, command: str, tiny: str) -> Part:
    file = f"gpu-{name}.json"
    given, small = ((*BENCH, *text.split(), "-o", "{out}/" + file) for text in (command, tiny))
    return Part(name, seconds, given, small, file)


def _own(name: str, seconds: int, *arguments: str) -> Part:
    command = (*PARTS, *arguments, "-o", "{own}")
    return Part(name, seconds, command, (*command, "--tiny"))


def all_parts() -> dict[str, Part]:
    """Return every part by its name, in running order: the most expensive last."""
    small = "-p demo --device cpu --max-new-tokens 3 --runs 1"
    parts = [
        _own("conformance-float32", 180, "conformance", "--dtype", "float32"),
        _own("conformance-bfloat16", 180, "conformance", "--dtype", "bfloat16"),
        _own("auto-batch", 180, "auto"),
        _own("memory-limit", 180, "limit"),
    ]
    shapes = [("qwen2.5-vl-7b", 600), ("qwen2.5-vl-7b", 1300), ("llava-1.5-7b", 576)]  # LLaVA's number is fixed
    for shape, tokens in shapes:
        command = f"--shape {shape} --device cuda --method sira,vcd,sid -b 1,8 --image-tokens {tokens} --runs 3"
        parts.append(_bench(f"{shape}-{tokens}", 420, command, f"{small} --method sira,vcd,sid -b 1,2"))
    return {part.name: part for part in parts}


def main() -> None:
    """Run the command line; the exit status is 1 if a part failed."""
    parts = all_parts()
    parser = argparse.ArgumentParser(prog="tools/gpu_check.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where to write (default: docs/bench)")
    parser.add_argument("--tiny", action="store_true", help="run on the CPU with tiny settings, to try the parts")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to run (default: all): {', '.join(parts)}")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in parts]:
        parser.error(f"no part named {unknown[0]!r}; there are {', '.join(parts)}")
    if given.tiny and given.output is None:
        parser.error("--tiny needs -o FOLDER: its figures are not measurements")
    if not given.tiny and (gpu := gpu_name()) is None:
        parser.error("torch sees no GPU here: --tiny tries the parts on the CPU")
    machine = "the CPU, with tiny settings: these figures are not measurements" if given.tiny else str(gpu)
    folder = (given.output or ROOT / "docs" / "bench").resolve()
    (folder / "gpu-check").mkdir(parents=True, exist_ok=True)
    outcomes = _earlier(folder)
    until = time.monotonic() + 60 * MINUTES
    for name in given.parts or parts:
        print(f"{name} ...", flush=True)
        outcome = run_part(parts[name], folder, given.tiny, until - time.monotonic())
        print(f"{name}: {outcome.result} in {outcome.seconds:.0f} s: {outcome.says}", flush=True)
        outcomes[name] = outcome
        _write(folder, [outcomes[each] for each in parts if each in outcomes], machine)
    print(f"report: {folder / 'gpu-check.md'}")
    if any(outcomes[name].result == "failed" for name in given.parts or parts):
        sys.exit(1)


def gpu_name() -> str | None:
    """Return torch's name of the first GPU, with its memory; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    memory = torch.cuda.get_device_properties(0).total_memory
    return f"{torch.cuda.get_device_name(0)}, {memory / 1e9:.0f} GB; torch {torch.__version__}"


def run_part(part: Part, folder: Path, tiny: bool, left: float) -> Outcome:
    """Run a part in a separate process, and return its result."""
    limit = min(TINY_SECONDS if tiny else part.seconds, left)
    if left < LEAST:
        return Outcome(part.name, "skipped", 0.0, f"the {MINUTES} minutes of all parts are over: name it alone")
    own, log = folder / "gpu-check" / f"{part.name}.json", folder / "gpu-check" / f"{part.name}.log"
    arguments = [each.format(out=folder, own=own) for each in (part.tiny if tiny else part.command)]
    for old in (own, folder / part.figures if part.figures else own):
        old.unlink(missing_ok=True)
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        output.write(f"python {' '.join(arguments)}\n\n")
        output.flush()
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # with whatever it started itself: workers, compilers
            _kill(process)
    seconds = time.monotonic() - started
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if code == SKIPPED:
        return Outcome(part.name, "skipped", seconds, lines[-1])
    if code is None:
        return Outcome(part.name, "failed", seconds, f"not done after {limit:.0f} s")
    if code:
        return Outcome(part.name, "failed", seconds, lines[-1])
    says = figures_of(folder / part.figures) if part.figures else _last_figures(lines)
    return Outcome(part.name, "passed", seconds, says)


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _last_figures(lines: Sequence[str]) -> str:
    return next((line.removeprefix(LINE) for line in reversed(lines) if line.startswith(LINE)), "")


def figures_of(file: Path) -> str:
    """Return the ratios in a report of `sira bench`, in a line."""
    text = file.read_text(encoding="utf-8")
    found = []
    for row in BenchReport.from_json(text).rows:
        if row.method != "greedy":
            step = "" if row.step is None else f", step {row.step.ratio.median:.3f}"
            length, request = max(row.requests.items())
            found.append(
                f"{row.method}, batch {row.batch}: prefill {row.prefill.ratio.median:.3f}{step}, "
                f"{length} tokens {request.ratio.median:.3f}"
            )
    return "; ".join(found)


def _earlier(folder: Path) -> dict[str, Outcome]:
    """Return the outcomes of earlier commands that wrote into the folder."""
    file = folder / "gpu-check" / "outcomes.json"
    if not file.exists():
        return {}
    return {row["part"]: Outcome(**row) for row in json.loads(file.read_text(encoding="utf-8"))}


def _write(folder: Path, outcomes: Sequence[Outcome], machine: str) -> None:
    rows = [asdict(outcome) for outcome in outcomes]
    (folder / "gpu-check" / "outcomes.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    lines = ["# GPU check", "", machine, "", "| part | result | seconds | figures | log |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        says = outcome.says.replace("|", "\\|")
        log = f"gpu-check/{outcome.part}.log"
        shown = f"[log]({log})" if (folder / log).exists() else ""
        lines.append(f"| {outcome.part} | {outcome.result} | {outcome.seconds:.0f} | {says} | {shown} |")
    (folder / "gpu-check.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
