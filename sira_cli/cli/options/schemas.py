"""Options of texts that follow a JSON schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

if TYPE_CHECKING:
    from sira_cli.models.schemas.schema import Schema


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
        """Return the schema that the options ask for; None without one.

        Raises:
            SettingsError: the schema cannot be followed, or has no tags for --tags.
        """
        given = self.schema or ("tags" if self.tags else None)
        if given is None:
            return None
        from sira_cli.models.schemas.schema import Schema

        return Schema.of(given, tags=self.tags)
