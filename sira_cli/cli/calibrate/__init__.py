"""`sira calibrate`: fit a method's or score's parameters to a model, once. A module per command."""

from __future__ import annotations

import typer

from sira_cli.cli.calibrate import ict, maskcd, support
from sira_cli.cli.help import Command, Variadic

app = typer.Typer(
    help="Fit a method's or score's parameters to a model (once per model).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
COMMANDS = {
    "ict": (ict.ict, Variadic, ict.EXAMPLES, "Directions of method ict, from labelled yes/no questions."),
    "support": (
        support.support,
        Command,
        support.EXAMPLES,
        "The second look's threshold of support, from captions with labels.",
    ),
    "maskcd": (maskcd.maskcd, Command, maskcd.EXAMPLES, "Image heads of method maskcd, from pictures without labels."),
}
for name, (command, kind, examples, short_help) in COMMANDS.items():
    app.command(name, cls=kind, epilog=examples, short_help=short_help)(command)
