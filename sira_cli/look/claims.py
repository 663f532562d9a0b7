"""The second look at a text: its settings, the objects that it asks about, and their support by the picture.

A word is to doubt if its grounding is below `DOUBTED`, or its support in a second look below that look's threshold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.language import function_words
from sira_cli.look.finders import Asked
from sira_cli.look.words import Thing, WordList, shipped, with_article
from sira_cli.models.preset import Preset
from sira_cli.models.texts import Answer

DOUBTED = 0.4  # a grounding below: an object word of the bundled model is absent more often than one on the whole
_SHADES = (1.0, 0.75, 0.5, 0.25)  # below each of these parts of a threshold is one more degree of doubt
STEPS = tuple(DOUBTED * shade for shade in _SHADES)  # of a grounding
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")


@dataclass(frozen=True)
class Claim:
    """An object that a text names, and its support by the picture."""

    thing: str  # in the singular
    spans: tuple[tuple[int, int], ...]  # start and end of every mention, in characters of the text
    support: float  # probability of yes against no, 0 to 1
    neither: float  # probability of an answer that is neither
    image: int | None = None  # number (from 1) of the picture that supports the claim best, if there are several

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        claim: dict[str, Any] = {
            "thing": self.thing,
            "spans": [list(span) for span in self.spans],
            "support": self.support,
            "neither": self.neither,
        }
        if self.image is not None:
            claim["image"] = self.image
        return claim


@dataclass(frozen=True)
class Check:
    """A text, object by object."""

    text: str
    objects: tuple[Claim, ...]  # in order; empty if none was recognised
    words: str  # the name of the word list

    @property
    def support(self) -> float:
        """The lowest support of an object; 1 without objects."""
        return min((claim.support for claim in self.objects), default=1.0)

    def added_to(self, answer: Answer, settings: dict[str, Any]) -> Answer:
        """Return an answer with the objects and the settings of the look (`Verify.settings`), for its record."""
        return replace(answer, objects=[claim.to_json() for claim in self.objects], verify=settings)


def unsupported(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects of a record whose support is below its threshold; none without a second look."""
    verify = record.get("verify")
    if not verify:
        return []
    return [claim for claim in record.get("objects") or () if claim["support"] < verify["min_support"]]


def best_of(pictures: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Return each object's claim by the picture that supports it best: a group shows what one of its pictures shows."""
    if len(pictures) == 1:
        return [*pictures[0]]
    best = []
    for claims in zip(*pictures, strict=True):  # about one object
        supports = [claim.support for claim in claims]
        highest = max(supports)
        number = supports.index(highest)
        best.append(replace(claims[number], image=number + 1))
    return best


def without_places(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Return claims as JSON values, for a text that does not have them."""
    return [{"thing": claim.thing, "support": claim.support} for claim in claims]


def doubt(score: float, threshold: float = DOUBTED) -> int:
    """Return the degree of doubt, 0 (none) to 4, for a word's grounding, or for a support and its threshold."""
    return sum(score < threshold * shade for shade in _SHADES)


def bare(word: str) -> str:
    """Return a word without the punctuation around it."""
    return _EDGES.sub("", word)


def says_something(word: str) -> bool:
    """Return whether a word can be true or false of a picture: English function words and bare punctuation cannot."""
    core = bare(word).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return core != "" and core not in function_words()


Ask = Callable[[str], str]  # returns the model's answer to a prompt
MODES = ("flag", "guide", "best")
LIST_TOKENS = 256  # of an answer that lists the objects of a text


@dataclass(frozen=True)
class Verify:
    """A second look at every text of a run."""

    min_support: float | None = None  # objects below it are not supported; None: the preset's
    words: WordList | None = None  # finds the objects; None: the bundled list
    # `flag` marks unsupported objects; `guide` looks first, and then names supported ones only; `best` chooses among
    # several texts.
    mode: str = "flag"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingsError(f"`verify=` {self.mode!r}: expected {', '.join(MODES)}")

    @classmethod
    def of(cls, given: str | Verify | None) -> Verify | None:
        """Return the second look for a mode, or the given one."""
        return cls(mode=given) if isinstance(given, str) else given

    @property
    def guides(self) -> bool:
        """Whether texts are decoded after the look, and name supported objects only."""
        return self.mode == "guide"

    @property
    def chooses(self) -> bool:
        """Whether several texts are decoded, and the best supported one is kept."""
        return self.mode == "best"

    def threshold(self, preset: Preset) -> float:
        """Return the support below which an object is not supported."""
        if self.min_support is not None:
            return self.min_support
        if self.guides and preset.guide.threshold is not None:
            return preset.guide.threshold
        return preset.verify.min_support

    def settings(self, preset: Preset) -> dict[str, Any]:
        """Return the settings of the look, as in records."""
        settings: dict[str, Any] = {
            "mode": self.mode,
            "words": ObjectFinder(self, preset).words.name,
            "question": preset.prompts.verify,
            "min_support": self.threshold(preset),
        }
        if self.guides:
            settings |= preset.guide.model_dump(exclude={"threshold"})
        if self.chooses:
            settings |= preset.best.model_dump()
        verify = preset.verify
        if verify.answers != type(verify)().answers:
            settings |= {"yes": verify.yes, "no": verify.no}
        return settings


class ObjectFinder:
    """Finds the objects of texts by `words`, and words the questions about them."""

    def __init__(self, verify: Verify, preset: Preset) -> None:
        self.words = verify.words or shipped()
        self.asks = isinstance(self.words, Asked)  # whether the model is asked for the objects of a text
        self._question = preset.prompts.verify
        self._text_settings = preset.text
        if self.asks and verify.guides:
            raise SettingsError(
                f"`verify=` {verify.mode} has to know the objects while it decodes, but the model is asked for them: "
                "give `objects=` a list"
            )

    def things(self, text: str, ask: Ask) -> list[Thing]:
        """Return the objects of a text, whoever wrote it."""
        words = self.words
        if isinstance(words, Asked):
            return words.listed(ask(words.request(text)), text)
        return words.things(text)

    def question(self, thing: Thing) -> str:
        """Return the question about an object."""
        return self._question.replace("{thing}", with_article(thing.name)).replace("{name}", thing.name)

    def check(
        self,
        text: str,
        claims: Callable[[Sequence[Thing]], Sequence[Claim]],
        ask: Ask,
        earlier: dict[str, Claim],
        named: Sequence[Thing] | None = None,
    ) -> Check:
        """Return the check of a text: the claims about its objects.

        Args:
            text: the text.
            claims: asks about objects, and returns a claim for each.
            ask: returns the model's answer to a prompt.
            earlier: the claims of earlier texts about the picture, by object, which are not asked about again; receives
                the new ones.
            named: the text's objects; None: they are found here, but for those of the preset's prefix and suffix, which
                no model wrote.
        """
        if named is None:
            named = self._written_things(text, ask)
        new = [thing for thing in named if thing.name not in earlier]
        earlier |= {claim.thing: claim for claim in claims(new)}
        objects = tuple(replace(earlier[thing.name], spans=thing.spans) for thing in named)
        return Check(text, objects, self.words.name)

    def _written_things(self, text: str, ask: Ask) -> list[Thing]:
        """Return the objects of a text that a model wrote, without the preset's prefix and suffix."""
        first, last = self._text_settings.written(text)
        written = []
        for thing in self.things(text, ask):
            spans = tuple((start, end) for start, end in thing.spans if first <= start and end <= last)
            if spans or not thing.spans:
                written.append(replace(thing, spans=spans))
        return written
