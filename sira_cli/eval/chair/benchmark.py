"""CHAIR (Rohrbach et al. 2018): objects in captions of COCO's images that are not in them, as OPERA's chair.py."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.base import Ask, Benchmark, Part, Texts
from sira_cli.eval.chair.coco import Annotations
from sira_cli.eval.chair.rows import read_captions
from sira_cli.eval.chair.table import TruthTable
from sira_cli.eval.chair.words import Mentions, mentions
from sira_cli.eval.figures import CHAIR_DENOMINATORS, chair_figures, mention_counts
from sira_cli.eval.statistics import Denominators, Tally, ratio
from sira_cli.language.language import Language, Need, find_language
from sira_cli.pictures.rows import some

PROMPT = "Please describe this image in detail."
RULES: dict[str, Need] = {"lemma": "lemmas", "singular": "singulars"}  # the part of the language that each rule needs
ANSWERS = "captions"  # name of the part when captions from elsewhere are scored


@dataclass(frozen=True)
class _Caption:
    """A caption and its image.

    Attributes:
        read: the caption's mentions.
        truth: heads that are in the image.
    """

    read: Mentions
    truth: frozenset[str]

    @functools.cached_property
    def wrong(self) -> list[tuple[str, str, int]]:
        """Word, head and place of every hallucinated mention."""
        mentioned = zip(self.read.words, self.read.heads, self.read.places, strict=True)
        return [mention for mention in mentioned if mention[1] not in self.truth]

    @property
    def recalled(self) -> frozenset[str]:
        """Heads that are in the image and mentioned."""
        return self.truth.intersection(self.read.heads)


class Chair(Benchmark):
    """CHAIR over some images of COCO."""

    name = "chair"

    def __init__(
        self,
        annotations: Annotations | TruthTable,
        ids: Sequence[int],
        rule: str,
        language: Language,
        lengths: Sequence[int] = (),
        prompt: str = PROMPT,
    ) -> None:
        """Look up the objects in some images."""
        self._annotations = annotations
        self._rule = rule
        self._language = language
        words: Callable[[str], list[str]] = getattr(language, RULES[rule])
        self._mentions = functools.cache(lambda text: mentions(words(text)))  # both counts and details ask for it
        self.truth = annotations.truth(ids, words, {"rule": rule, **language.facts()})
        asks = tuple(Ask(str(image), self.truth.names[image], prompt) for image in ids)
        self.parts = tuple(
            Part(str(length), "caption", asks, (f"{length} tokens",), {"max_new_tokens": length}) for length in lengths
        ) or (Part(ANSWERS, "caption", asks, (ANSWERS,)),)

    @classmethod
    def of(
        cls,
        annotations: Path,
        *,
        ids: Sequence[int],
        rule: str = "lemma",
        language: str = "auto",
        lengths: Sequence[int] = (),
        prompt: str = PROMPT,
    ) -> Chair:
        """Read COCO's folder, or its subfolder `annotations`, with the language that `find_language` finds.

        A file is a table of ground truth that is ready (`chair.table`).
        """
        if rule not in RULES:
            raise SettingsError(f"`rule=` {rule!r}: expected {' or '.join(RULES)}")
        truth = TruthTable.read(annotations) if annotations.is_file() else Annotations.find(annotations)
        return cls(truth, ids, rule, find_language(language, (RULES[rule],)), lengths, prompt)

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count by image, in the part's only group.

        If an image has several captions, all count, as the official script counts rows; the paired test takes the
        first.
        """
        tally = Tally()
        for ask, _, caption in self._captions(part, texts):
            counts = mention_counts(caption.read.heads, caption.truth) | {"tokens": len(caption.read.tokens)}
            tally.add(ask.picture, ask.id, not caption.wrong, counts)
        return {part.groups[0]: tally}

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return CHAIRs, CHAIRi and recall in percent, and the length in tokens.

        The steps follow the official script, so that floats are equal to the last digit: its Len is in hundreds of
        tokens, and everything is multiplied by 100 when printed.
        """
        return chair_figures(total) | {"length": 100 * ratio(0.01 * total["tokens"], total["captions"])}

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of `chair_figures`."""
        return CHAIR_DENOMINATORS

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read captions of one method and one length (see `chair.rows`), from all files together.

        Captions of other images are left out. The second caption of an image gets the id of the ask followed by `#2`,
        and so on.
        """
        (part,) = self.parts
        captions = read_captions(paths)
        asked = {int(ask.id) for ask in part.asks}
        if missing := [image for image in sorted(asked) if image not in captions]:
            files = some(paths, 3, 1_000)
            raise DataError(f"{files}: no caption of image {missing[0]} ({len(missing)} of {len(asked)} are missing)")
        given = ((ask.id, enumerate(captions[int(ask.id)], start=1)) for ask in part.asks)
        return {part.name: {_numbered(id_, number): each.text for id_, several in given for number, each in several}}

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield the official script's record of every caption, under its names; Len is 0, as in the script."""
        for ask, text, caption in self._captions(part, texts):
            mentioned, there = len(caption.read.words), len(caption.truth)
            yield {
                "image_id": int(ask.id),
                "caption": text,
                "mscoco_hallucinated_words": [[word, head] for word, head, _ in caption.wrong],
                "mscoco_gt_words": sorted(caption.truth),
                "mscoco_generated_words": list(caption.read.heads),
                "hallucination_idxs": [place for _, _, place in caption.wrong],
                "words": list(caption.read.tokens),
                "metrics": {
                    "CHAIRs": int(bool(caption.wrong)),
                    "CHAIRi": len(caption.wrong) / mentioned if mentioned else 0.0,
                    "Recall": len(caption.recalled) / there if there else 0.0,
                    "Len": 0.0,
                },
            }

    def stand_ins(self) -> dict[str, str]:
        """Return the replacements of missing NLTK data, and of COCO's annotations."""
        used = [] if self._language.official else ["words without NLTK's data"]
        used += ["ground truth from a table"] if isinstance(self._annotations, TruthTable) else []
        return {part.name: ", ".join(used) for part in self.parts if used}

    def facts(self) -> dict[str, Any]:
        """Return the rule, the language with its versions, and the annotation files."""
        files = [str(path) for path in self._annotations.files]
        return {"rule": self._rule, **self._language.facts(), "annotations": files}

    def _captions(self, part: Part, texts: Texts) -> Iterator[tuple[Ask, str, _Caption]]:
        for ask in part.asks:
            for text in _given(ask, texts):
                yield ask, text, _Caption(self._mentions(text), self.truth.objects[int(ask.id)])


def _numbered(ask: str, number: int) -> str:
    return ask if number == 1 else f"{ask}#{number}"


def _given(ask: Ask, texts: Texts) -> Iterator[str]:
    """Yield all captions of an image."""
    for number in itertools.count(1):
        text = texts.get(_numbered(ask.id, number))
        if text is None:
            return
        yield text
