"""`sira doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sira_cli._version import __version__
from sira_cli.cli.options.common import AsJson
from sira_cli.cli.terminal.console import set_verbosity, waiting
from sira_cli.cli.terminal.output import new_list, show_report, table_console

if TYPE_CHECKING:
    from sira_cli.analysis.doctor.examine import Examination

EXAMPLES = """
sira doctor
sira doctor --json > doctor.json
"""


def doctor(*, as_json: AsJson = False) -> None:
    """Show this machine: versions, device, installed extras, presets that fit, and what to type next.

    Memory is computed from each model's shape: weights, caches of both streams, one photograph. Nothing is downloaded.
    """
    set_verbosity(False, 0)
    with waiting("looking"):
        from sira_cli.analysis.doctor.examine import examine

        found = examine()
    show_report(found, print_report, as_json)


def print_report(found: Examination) -> None:
    """Print all findings, the command to type last."""
    from rich.table import Table

    out, machine = table_console(), found.machine
    missing = {name for name, packages in found.extras.items() if packages}
    lines = {
        "versions": f"sira {__version__}, Python {machine.python}, torch {machine.torch}, "
        f"transformers {machine.transformers}; {machine.system}",
        "transformers": found.exact,
        "device": f"{machine.device}: {machine.chip}",
        "memory": f"{_gb(machine.memory.total)}, {_gb(machine.memory.free)} free",
        "extras": ", ".join(name for name in found.extras if name not in missing) or "none",
        "not installed": ", ".join(name for name in found.extras if name in missing),
        "hub": found.hub,
    }
    table = Table.grid(padding=(0, 2))
    for name, text in lines.items():
        if text:
            table.add_row(name, text)
    out.print(table)
    table = new_list("preset", "memory", "fits", "", edge=False)
    for fit in found.fits:
        table.add_row(fit.preset, _gb(fit.needed), "yes" if fit.fits else "no", "downloaded" if fit.downloaded else "")
    out.print()
    out.print(table)
    if found.unknown:
        out.print(f"size not known: {', '.join(found.unknown)}")
    out.print(f"\nnext: {found.command}")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
