"""A text without unsupported objects, wherever it was written."""

from __future__ import annotations

from dataclasses import dataclass

from sira_cli.models.look.claims import Check, Claim


@dataclass(frozen=True)
class Rewritten:
    """A text without unsupported objects.

    Attributes:
        text: the new text; the given one if nothing was removed.
        removed: the removed objects, each with its support and its place in the checked text.
        check: check of the new text; objects below the threshold could not be removed.
    """

    text: str
    removed: tuple[Claim, ...]
    check: Check
