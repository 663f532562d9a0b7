"""Words of English captions: with NLTK and its data, as in the official scripts, or by plain rules without any data.

The official figures of CHAIR and AMBER come from NLTK's tokeniser, tagger and WordNet, or from pattern.en's
`singularize`, which textblob has taken over. Figures by the plain rules are never called official.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sira_cli.errors import SettingsError, install

CHAIR_WORDS = Path(__file__).with_name("chair.txt")  # a category of COCO a line, with its synonyms
AMBER_WORDS = Path(__file__).with_name("amber.txt")  # a word a line
VERSION = 1  # of the rules; it stands in every record, so that figures by other rules are not mixed up with these

# Like NLTK's tokens, as far as captions need it: n't and 's alone, hyphens inside words, every other sign alone.
_TOKEN = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]", re.IGNORECASE)

_PLURALS = """
men:man women:woman children:child people:person feet:foot teeth:tooth geese:goose mice:mouse oxen:ox knives:knife
wives:wife lives:life shelves:shelf leaves:leaf loaves:loaf wolves:wolf calves:calf halves:half scarves:scarf elves:elf
thieves:thief hooves:hoof buses:bus gases:gas lenses:lens skis:ski taxis:taxi shoes:shoe horseshoes:horseshoe
canoes:canoe toes:toe cookies:cookie movies:movie doggies:doggie collies:collie hoodies:hoodie veggies:veggie
smoothies:smoothie selfies:selfie
"""
_IRREGULAR = dict(pair.split(":") for pair in _PLURALS.split())
_COMPOUND = re.compile(r"(men|women|children|people|knives|wives|shelves|buses)$")  # policemen, bookshelves
_UNCHANGED = {"scissors", "series", "species", "sunglasses", "jeans", "always", "perhaps", "towards"}


def tokens(text: str) -> list[str]:
    """Return words and signs of a text, in its case."""
    return _TOKEN.findall(text)


def singular(word: str) -> str:
    """Return the singular of a noun; other words stay as they are."""
    lower = word.lower()
    if lower in _IRREGULAR:
        irregular = _IRREGULAR[lower]
        return irregular.capitalize() if word[0].isupper() else irregular
    ending = _COMPOUND.search(lower)
    if ending is not None:
        return word[: ending.start()] + _IRREGULAR[ending[1]]
    is_plural = lower.endswith("s") and not lower.endswith(("ss", "us", "is"))
    if not is_plural or len(word) < 4 or lower in _UNCHANGED:
        return word
    if lower.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if lower.endswith(("ches", "shes", "sses", "xes", "oes")):
        return word[:-2]
    return word[:-1]


@functools.cache
def function_words() -> frozenset[str]:
    """Return English function words."""
    return frozenset(Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").split())


Need = Literal["lemmas", "singulars", "nouns"]  # methods of a Language that will be called
_TAGGED: tuple[Need, ...] = ("lemmas", "nouns")  # these need the tagger and WordNet
GET = (
    f"{install('eval')}, then "
    "python -m nltk.downloader punkt_tab averaged_perceptron_tagger_eng wordnet; "
    "`language=` fallback does without, but its figures are not the official ones"
)
CHOICES = ("auto", "nltk", "fallback")

# The files of each package that decide words: their hash stands in the record.
_TAGGER = "averaged_perceptron_tagger_eng"
_PACKAGES = {
    "punkt_tab": (
        "tokenizers/punkt_tab/english/",
        ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt"),
    ),
    _TAGGER: (f"taggers/{_TAGGER}/", tuple(f"{_TAGGER}.{part}.json" for part in ("classes", "tagdict", "weights"))),
    "wordnet": (
        "corpora/wordnet/",
        tuple(name for pos in ("adj", "adv", "noun", "verb") for name in (f"index.{pos}", f"{pos}.exc")),
    ),
}
_POS = {"J": "a", "V": "v", "N": "n", "R": "r"}  # Penn tags, by their first letter, to WordNet's


class Language:
    """Words of English captions, by regular expressions and a table: every token counts as a noun."""

    name = "fallback"
    official = False  # whether words are as in the official scripts

    def __init__(self, why: str) -> None:
        self._facts: dict[str, Any] = {"why": why, "rules": VERSION}

    def lemmas(self, text: str) -> list[str]:
        """Return the lemma of every token of the lower-cased text: CHAIR's rule `lemma`."""
        return self.singulars(text)

    def singulars(self, text: str) -> list[str]:
        """Return the singular of every token of the lower-cased text: CHAIR's rule `singular`."""
        return self.nouns(text.lower())

    def nouns(self, text: str) -> list[str]:
        """Return the lemmas of nouns, in the text's case: AMBER looks them up in its vocabulary."""
        return [singular(word) for word in tokens(text)]

    def facts(self) -> dict[str, Any]:
        """Return the settings that decide the words, for the record."""
        return {"language": self.name, "official": self.official, **self._facts}


class Nltk(Language):
    """NLTK with its data, and textblob for `singulars`. For its record: versions, and hashes of NLTK's files."""

    name = "nltk"
    official = True

    def __init__(self, needs: Collection[Need]) -> None:
        versions = {"nltk": _nltk_version()}
        if "singulars" in needs:
            try:
                versions["textblob"] = metadata.version("textblob")
            except metadata.PackageNotFoundError as error:
                raise SettingsError(f"textblob is not installed, which the rule singular needs: {GET}") from error
        needs_tagger = not set(_TAGGED).isdisjoint(needs)
        for package in _PACKAGES if needs_tagger else ("punkt_tab",):
            versions[package] = _digest(package)
        self._facts = {"versions": versions}
        try:
            for need in needs:
                getattr(self, need)("a")  # reads the rest of the data, where something may still be missing
        except (LookupError, OSError) as error:
            lines = (line.strip(" *") for line in str(error).splitlines())
            first = next(filter(None, lines), type(error).__name__)
            raise SettingsError(f"NLTK's data is incomplete: {first}: {GET}") from error

    def lemmas(self, text: str) -> list[str]:
        """Tag all tokens at once, as OPERA's chair.py does; unusual tags count as nouns."""
        return [_lemma(word, _POS.get(tag[:1], "n")) for word, tag in _tagged(text.lower())]

    def singulars(self, text: str) -> list[str]:
        """Return singulars as the chair.py of Rohrbach et al. does."""
        from nltk import word_tokenize

        return [_singular(word) for word in word_tokenize(text.lower())]

    def nouns(self, text: str) -> list[str]:
        """Return nouns as AMBER's inference.py does."""
        return [_lemma(word, "n") for word, tag in _tagged(text) if tag.startswith("NN")]


def find_language(choice: str = "auto", needs: Collection[Need] = _TAGGED) -> Language:
    """Return the language for some methods."""
    if choice not in CHOICES:
        raise SettingsError(f"`language=` {choice!r}: expected {', '.join(CHOICES)}")
    if choice == "fallback":
        return Language("it was chosen")
    try:
        return Nltk(needs)
    except SettingsError as error:
        if choice == "nltk":
            raise
        return Language(str(error).removesuffix(f": {GET}"))


def _nltk_version() -> str:
    try:
        import nltk
    except ImportError as error:
        raise SettingsError(f"NLTK is not installed: {GET}") from error
    major_minor = re.findall(r"\d+", nltk.__version__)[:2]
    if list(map(int, major_minor)) < [3, 9]:
        raise SettingsError(f"NLTK {nltk.__version__} is too old, 3.9 is the first that loads no pickles: {GET}")
    return str(nltk.__version__)


def _digest(package: str) -> str:
    """Return the start of a sha256 over the files of a package that decide words, zipped or not."""
    import nltk

    folder, names = _PACKAGES[package]
    digest = hashlib.sha256()
    try:
        found = nltk.data.find(folder)
        for name in names:
            with found.join(name).open() as file:
                digest.update(hashlib.sha256(file.read()).digest())
    except (LookupError, OSError) as error:
        raise SettingsError(f"NLTK's {package} is not installed, or a file of it is missing: {GET}") from error
    return f"sha256:{digest.hexdigest()[:16]}"


def _tagged(text: str) -> list[tuple[str, str]]:
    from nltk import pos_tag, word_tokenize

    return list(pos_tag(word_tokenize(text)))


def _lemma(word: str, pos: str) -> str:
    from nltk.stem import WordNetLemmatizer

    return str(WordNetLemmatizer().lemmatize(word, pos))


def _singular(word: str) -> str:
    """Return a singular as pattern.en's `singularize` does: textblob's rules, without textblob's later corrections."""
    from textblob.en import inflect

    plurals_of_ie = tuple(f"{ending}s" for ending in inflect.singular_ie)
    if "christmas".endswith(word) or word.endswith(plurals_of_ie):
        return word
    if word.endswith("buses"):
        return word[:-2]
    return str(inflect.singularize(word, custom={"jeans": "jean"}))
