"""`Verify`: whether and how texts get a second look, and the settings that allow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.language import things
from sira_cli.language.listed import Asked
from sira_cli.language.things import OBJECTS, Words
from sira_cli.language.wordings import ENGLISH, Wording
from sira_cli.methods.base import Method
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.preset_parts import MOST_ROUNDS
from sira_cli.models.look.kinds import KINDS, kinds_of

MODES = ("flag", "rewrite", "guide")
SUPPORT = "support"  # by which lists can be sorted
UNMEASURED = 0.5  # the threshold of a kind without one in the preset


@dataclass(frozen=True)
class Verify:
    """A second look at every text of a run.

    Attributes:
        min_support: objects below it are not supported; None: the preset's.
        words: the objects to recognise; None: the bundled list, in other languages than English those that the model
            finds when it is asked.
        mode: `flag` marks unsupported objects, `rewrite` also decodes texts again without them, `guide` looks first,
            and then decodes texts that name supported objects only.
        rounds: maximum number of times that a text is decoded again, up to `MOST_ROUNDS`; None: the preset's.
        claims: the kinds of claims to ask about (`kinds.KINDS`), between commas; None: the preset's.
        language: of the texts, and of the questions about them; None: the preset's.
        sort: `support` sorts lists of a schema: supported entries first, the best before the others.

    Raises:
        SettingsError: a setting is not valid.
    """

    min_support: float | None = None
    words: Words | None = None
    mode: str = "flag"
    rounds: int | None = None
    claims: str | None = None
    language: str | None = None
    sort: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingsError(f"`verify=` {self.mode!r}: expected {', '.join(MODES)}")
        if self.rounds is not None and not 1 <= self.rounds <= MOST_ROUNDS:
            raise SettingsError(f"`rounds=` must be from 1 to {MOST_ROUNDS}; got {self.rounds}")
        if self.claims is not None:
            kinds_of(self.claims)
        if self.sort not in (None, SUPPORT):
            raise SettingsError(f"`sort=` {self.sort!r}: expected {SUPPORT}")

    @classmethod
    def of(cls, given: str | Verify | None) -> Verify | None:
        """Return the second look for a mode, or the given one."""
        return cls(mode=given) if isinstance(given, str) else given

    @property
    def rewrites(self) -> bool:
        """Whether texts are decoded again without unsupported objects."""
        return self.mode == "rewrite"

    @property
    def guides(self) -> bool:
        """Whether texts are decoded after the look, and name supported objects only."""
        return self.mode == "guide"

    @property
    def decides(self) -> bool:
        """Whether the look decides texts, rather than to mark their words."""
        return self.mode != "flag"

    def threshold(self, preset: Preset) -> float:
        """Return the support below which an object is not supported."""
        if self.min_support is not None:
            return self.min_support
        return (
            preset.guide.threshold if self.guides and preset.guide.threshold is not None else preset.verify.min_support
        )

    def thresholds(self, preset: Preset) -> dict[str, float]:
        """Return the support below which a claim is not supported, by the kinds that are asked about."""
        thresholds = {**dict.fromkeys(KINDS, UNMEASURED), **preset.verify.thresholds, OBJECTS: self.threshold(preset)}
        return {kind: thresholds[kind] for kind in self.kinds(preset)}

    def most_rounds(self, preset: Preset) -> int:
        """Return how many times a text is decoded again at most."""
        return preset.verify.rounds if self.rounds is None else self.rounds

    def kinds(self, preset: Preset) -> tuple[str, ...]:
        """Return the kinds of claims to ask about."""
        return kinds_of(preset.verify.claims if self.claims is None else self.claims)

    def wording(self, preset: Preset) -> Wording:
        """Return the questions and words of the language.

        Raises:
            SettingsError: there is no such language, or it has no question of a kind.
        """
        wording = preset.verify.wording(self.language or preset.verify.language)
        if wording.code == ENGLISH:
            wording = wording.asking(OBJECTS, preset.prompts.verify)
        for kind in self.kinds(preset):
            if not wording.of(kind).question:
                raise SettingsError(f"`language=` {wording.code} has no question about {kind}: see `verify.languages`")
        return wording

    def finder(self, preset: Preset) -> Words:
        """Return the finder of the objects that a text names.

        Raises:
            SettingsError: the model would have to be asked for them in the middle of a text.
        """
        wording = self.wording(preset)
        words = self.words or (things.shipped() if wording.code == ENGLISH else Asked(wording))
        if self.decides and isinstance(words, Asked):
            usual = "" if wording.code == ENGLISH else f" (the default for language {wording.code})"
            raise SettingsError(
                f"`verify=` {self.mode} has to know the objects while it decodes, but the model is asked for "
                f"them{usual}: give `objects=` a list"
            )
        return words

    def check(self, method: Method, num_beams: int, *, words: bool, choices: bool, compiled: bool) -> None:
        """Check that it fits the method and the settings of a run.

        Raises:
            SettingsError: the second look does not fit them.
        """
        if choices:
            raise SettingsError("`verify=` checks texts, but `choices=` writes none: leave out one of them")
        if not self.decides:
            return
        mode, instead = f"`verify=` {self.mode}", "leave it out, or use `verify=` flag"
        if method.own_search:
            raise SettingsError(f"{mode} continues after single tokens, but method {method.name} cannot")
        if num_beams > 1:
            raise SettingsError(f"{mode} follows one text per picture, not `num_beams=`: {instead}")
        if words:
            raise SettingsError(f"`words=` scores a text as it was decoded, but {mode} changes it: {instead}")
        if compiled:
            raise SettingsError(f"{mode} cannot go back in compiled steps (`compile=`): {instead}")

    def check_task(self, task: str, *, schema: bool) -> None:
        """Check that it fits the texts of a run.

        Raises:
            SettingsError: it does not.
        """
        if self.guides and task != "caption":
            raise SettingsError(f"`verify=` guide writes captions, and this run is a {task}: use `verify=` flag")
        if self.sort and not schema:
            raise SettingsError(
                "`sort=` is for lists, and texts are in words: also give `schema=` tags, or leave it out"
            )

    def settings(self, preset: Preset) -> dict[str, Any]:
        """Return the settings of the look, as in records."""
        wording, thresholds = self.wording(preset), self.thresholds(preset)
        spoken = {"language": wording.code, "yes": wording.yes_words, "no": wording.no_words}
        kinds = {
            kind: {"question": wording.of(kind).question, "min_support": least} for kind, least in thresholds.items()
        }
        return {
            "mode": self.mode,
            "words": self.finder(preset).name,
            "question": wording.of(OBJECTS).question,
            "min_support": self.threshold(preset),
            **({"rounds": self.most_rounds(preset)} if self.rewrites else {}),
            **(preset.guide.model_dump(exclude={"threshold"}) if self.guides else {}),
            **({"sort": self.sort} if self.sort else {}),
            **({} if wording.code == ENGLISH else spoken),
            **({} if kinds.keys() == {OBJECTS} else {"claims": kinds}),
        }
