"""Options of texts that follow a JSON schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.models.schemas.schema import Schema


@dataclass(frozen=True)
class SchemaOptions:
    """JSON instead of a text in words."""

    title: ClassVar[str] = "JSON"

    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Follow a JSON schema: a file, tags, labels, caption+tags or objects; records have the value as data.",
        ),
    ] = None
    tags: Annotated[
        bool, typer.Option("--tags", help="Write tags with commas between them, in lower case; --prefix comes first.")
    ] = False
    max_tags: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Longest list of tags (default: 20).", show_default=False)
    ] = None

    def read(self) -> Schema | None:
        """Return the schema that the options ask for; None without one.

        Raises:
            SettingsError: options exclude each other, or the schema cannot be followed.
        """
        if self.tags and self.schema is not None:
            raise SettingsError("--tags is --schema tags with the tags as text: give one of them")
        given = "tags" if self.tags else self.schema
        if given is None:
            if self.max_tags is not None:
                raise SettingsError("--max-tags is for lists of tags: also give --tags, or --schema")
            return None
        from sira_cli.models.schemas.schema import Schema

        return Schema.of(given, max_tags=self.max_tags, tags=self.tags)
