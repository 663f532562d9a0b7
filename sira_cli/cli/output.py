"""What commands share that print tables and write figures."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sira_cli.cli.console import verbosity

if TYPE_CHECKING:
    from rich.console import Console


def table_console() -> Console:
    """Return a console for tables on stdout; in a file, nothing is wrapped."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)


def save_plot(draw: Callable[[Any, BinaryIO, str], None], report: Any, path: Path) -> None:
    """Let `draw` write the figure of a report, in the format that the file's name ends in.

    Raises:
        SiraError: it cannot be written.
    """
    from sira_cli.files import replacing

    if verbosity() < 1:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it talks about its font cache
    with replacing(path) as file:
        draw(report, file, path.suffix)
