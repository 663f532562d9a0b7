"""The options of a run over pictures, as one group of groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sira_cli.cli.options.common import EngineOptions, GroupOptions, ModelOptions, OutputOptions
from sira_cli.cli.options.decoding import MethodsOptions, TextOptions
from sira_cli.cli.options.verifying import VerifyOptions

if TYPE_CHECKING:
    from sira_cli.models.schema import Schema


@dataclass(frozen=True)
class SchemaOptions:
    """JSON instead of a text in words."""

    title: ClassVar[str] = "Text"

    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME[:N]",
            help="JSON: FILE, or NAME: tags, labels, caption+tags, ...",
        ),
    ] = None
    tags: Annotated[bool, typer.Option("--tags", help="Tags instead of sentences: red car, dog, grass.")] = False

    def read(self) -> Schema | None:
        """Return the schema that the options ask for; None without one."""
        given = self.schema or ("tags" if self.tags else None)
        if given is None:
            return None
        from sira_cli.models.schema import Schema

        return Schema.of(given, tags=self.tags)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Everything that `caption` and `ask` take, in the order of their help; each leaves out one group."""

    model: ModelOptions
    decoding: MethodsOptions
    text: TextOptions
    schema: SchemaOptions
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    selection: GroupOptions
    engine: EngineOptions
    output: OutputOptions
