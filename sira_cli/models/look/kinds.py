"""The kinds of claims that a second look can ask about: a row each.

    objects   "a dog"      Is there a dog in the image?    yes, against no
    colors    "a red car"  What color is the car?          red, against all colours

A row says how claims are found in a text; `language/wordings.yaml` has the question about each and its answers, by the
kind's name. Support is the probability of the claimed answer against all answers of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sira_cli.errors import SettingsError
from sira_cli.language import colors
from sira_cli.language.things import OBJECTS, Thing
from sira_cli.language.wordings import Wording


@dataclass(frozen=True)
class Kind:
    """A kind of claim.

    Attributes:
        find: returns the claims of a text, from the text and the objects that it names.
        single: only spellings that are one token count, if an answer has any; else the first tokens of all spellings.
    """

    find: Callable[[str, Sequence[Thing], Wording], Sequence[Thing]]
    single: bool = False


KINDS = {
    OBJECTS: Kind(find=lambda text, named, wording: named, single=True),
    colors.KIND: Kind(find=colors.colored),
}


def kinds_of(given: str) -> tuple[str, ...]:
    """Return the kinds of claims in a list between commas.

    Raises:
        SettingsError: it names none, or one that does not exist.
    """
    kinds = tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not kinds or not {*kinds} <= {*KINDS}:
        raise SettingsError(f"`claims=` {given!r}: expected some of {', '.join(KINDS)}, between commas")
    return kinds
