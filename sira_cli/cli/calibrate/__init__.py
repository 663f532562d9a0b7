"""`sira calibrate`: what a method has to know about a model, made once. A module per command."""

from __future__ import annotations

import typer

from sira_cli.cli.calibrate import ict, k, maskcd
from sira_cli.cli.help import Command, Variadic

app = typer.Typer(
    help="Make once what a method has to know about a model.", no_args_is_help=True, rich_markup_mode=None
)
for name, module in {"k": k, "maskcd": maskcd}.items():
    app.command(name, cls=Command, epilog=module.EXAMPLES)(getattr(module, name))
app.command("ict", cls=Variadic, epilog=ict.EXAMPLES, short_help="Directions of method ict, from yes/no questions.")(
    ict.ict
)
