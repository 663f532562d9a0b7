"""`sira doctor`."""

from __future__ import annotations

from sira_cli.cli.options.groups import AsJson
from sira_cli.cli.terminal.console import set_verbosity, waiting
from sira_cli.cli.terminal.output import show_report

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
        from sira_cli.analysis.doctor import examine

        found = examine()
    show_report(found, as_json)
