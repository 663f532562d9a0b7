"""`sira doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli.cli.options.common import AsJson
from sira_cli.cli.terminal.console import set_verbosity, waiting
from sira_cli.cli.terminal.output import new_list, show_report, table_console

if TYPE_CHECKING:
    from sira_cli.analysis.doctor.examine import Examination
    from sira_cli.analysis.doctor.machine import Folder

EXAMPLES = """
sira doctor
sira doctor --json > doctor.json
"""


def doctor(*, as_json: AsJson = False) -> None:
    """Show this machine: device, memory, formats it reads, presets that fit, and what to type next.

    Memory is computed from each model's shape: weights, caches of both streams, one photograph. Times are estimates
    for a photograph of 12 megapixels and a text of 128 tokens, from matrix products timed here; other programs make
    them longer. Nothing is downloaded.
    """
    set_verbosity(False, 0)
    with waiting("measuring"):
        from sira_cli.analysis.doctor.examine import examine

        found = examine()
    show_report(found, print_report, as_json)


def print_report(found: Examination) -> None:
    """Print all findings, the command to type last."""
    from rich.table import Table

    out, machine = table_console(), found.machine
    cores = "" if machine.cores is None else f" on {machine.cores} cores"
    arithmetic = ", ".join(("float32", *machine.arithmetic))
    missing = {name: packages for name, packages in found.extras.items() if packages}
    ready = [name for name in found.extras if name not in missing]
    lines = {
        "machine": f"{machine.system}; Python {machine.python}, torch {machine.torch}, "
        f"transformers {machine.transformers}",
        "device": f"{machine.device}: {machine.chip}",
        "memory": f"{_gb(machine.memory.total)}, {_gb(machine.memory.free)} free",
        "CPU": f"{machine.threads} thread{'s' * (machine.threads > 1)}{cores}, {machine.instructions}; computes in "
        f"{arithmetic}",
        "speed": "; ".join(
            f"{speed.name} {1e9 * speed.one:.2f} s per billion weights and token" for speed in found.speeds
        ),
        "extras": ", ".join(ready) or "none",
        "not installed": ", ".join(missing),
        "reads": " ".join(found.formats.read),
        "does not read": ", ".join(_remedied(found.formats.not_read)),
        "hub": found.hub,
        **{f"{name} cache": _folder(folder) for name, folder in found.caches.items()},
    }
    table = Table.grid(padding=(0, 2))
    for name, text in lines.items():
        if text:
            table.add_row(name, text)
    out.print(table)
    table = new_list("preset", "memory", "per picture", "", edge=False)
    for fit in found.fits:
        bits = f" --quantization {fit.quantization}" if fit.quantization else ""
        seconds = "" if fit.seconds is None else f"about {_rounded(fit.seconds)} s"
        remark = "does not fit" if not fit.fits else "downloaded" if fit.downloaded else ""
        table.add_row(fit.preset + bits, _gb(fit.needed), seconds, remark)
    out.print()
    out.print(table)
    if found.unknown:
        out.print(f"size not known: {', '.join(found.unknown)}")
    if machine.device == "cpu" and machine.load > (machine.cores or 1):
        out.print(f"other programs are busy (load {machine.load:g}): a picture takes less time without them")
    out.print(f"\nnext: {found.command}")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _rounded(seconds: float) -> str:
    """Return seconds with two digits, the precision of an estimate."""
    return f"{float(f'{seconds:.2g}'):g}"


def _remedied(endings: dict[str, str]) -> list[str]:
    """Return endings grouped by their remedy."""
    by_remedy: dict[str, list[str]] = {}
    for ending, remedy in endings.items():
        by_remedy.setdefault(remedy, []).append(ending)
    return [" ".join(names) + (f" ({remedy})" if remedy else "") for remedy, names in by_remedy.items()]


def _folder(folder: Folder) -> str:
    free = "" if folder.free is None else f", {_gb(folder.free)} free on its disk"
    return f"{_gb(folder.bytes)} in {folder.path}{free}"
