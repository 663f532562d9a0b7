"""The kinds of claims that a second look can ask about: a row each.

    objects   "a dog"      Is there a dog in the image?    yes, against no
    colors    "a red car"  What color is the car?          red, against all colours

A row says how claims are found in a text, how the model is asked about one, and which words answer. Support is the
probability of the claimed answer against all answers of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        template: the question about a claim, with `{thing}`; empty if the language has none.
        question: returns the question about a claim.
        answers: returns the spellings of every answer, by the value that it stands for (`Thing.value`).
        single: only spellings that are one token count, if an answer has any; else the first tokens of all spellings.
    """

    find: Callable[[str, Sequence[Thing], Wording], Sequence[Thing]]
    template: Callable[[Wording], str]
    question: Callable[[Wording, Thing], str]
    answers: Callable[[Wording], Mapping[str, Sequence[str]]]
    single: bool = False


KINDS = {
    OBJECTS: Kind(
        find=lambda text, named, wording: named,
        template=lambda wording: wording.objects,
        question=Wording.about_presence,
        answers=lambda wording: {"": wording.yes, "no": wording.no},
        single=True,
    ),
    colors.KIND: Kind(
        find=colors.colored,
        template=lambda wording: wording.colors,
        question=Wording.about_color,
        answers=colors.answers,
    ),
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
