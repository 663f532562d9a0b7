"""CHAIR: what captions of COCO's images mention that is not there (Rohrbach et al. 2018), as OPERA's chair.py scores.

CHAIRs = captions with a hallucinated mention / captions; CHAIRi = hallucinated mentions / mentions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.base import Ask, Benchmark, Part, Tally, Texts, ratio
from sira_cli.eval.chair.coco import Annotations
from sira_cli.eval.chair.rows import read_captions
from sira_cli.eval.chair.words import Mentions, mentions
from sira_cli.eval.language.language import Language, Need, find_language
from sira_cli.files import replacing

PROMPT = "Please describe this image in detail."
RULES: dict[str, Need] = {"lemma": "lemmas", "singular": "singulars"}  # what each asks of the language
ANSWERS = "captions"  # the part, where captions made elsewhere are scored


@dataclass(frozen=True)
class _Caption:
    """A caption against its image.

    Attributes:
        read: what it mentions.
        truth: heads that are in the image.
    """

    read: Mentions
    truth: frozenset[str]

    @functools.cached_property
    def wrong(self) -> list[tuple[str, str, int]]:
        """Word, head and place of every hallucinated mention."""
        said = zip(self.read.words, self.read.heads, self.read.places, strict=True)
        return [mention for mention in said if mention[1] not in self.truth]

    @property
    def recalled(self) -> frozenset[str]:
        """Heads that are in the image and mentioned."""
        return self.truth.intersection(self.read.heads)


class Chair(Benchmark):
    """CHAIR over some images of COCO."""

    name = "chair"

    def __init__(
        self,
        annotations: Annotations,
        ids: Sequence[int],
        rule: str,
        language: Language,
        lengths: Sequence[int] = (),
    ) -> None:
        """Find out what is in some images.

        Args:
            annotations: the user's files.
            ids: of the images.
            rule: `lemma` (OPERA's script) or `singular` (the one of Rohrbach et al.).
            language: which has what the rule needs.
            lengths: of the captions, in tokens, a part for each; none: captions of unknown length are scored.

        Raises:
            SettingsError: annotations are not COCO's, or an image is not in them.
            SiraError: the cache of ground truth cannot be written.
        """
        self._annotations = annotations
        self._rule = rule
        self._language = language
        words: Callable[[str], list[str]] = getattr(language, RULES[rule])
        self._mentions = functools.cache(lambda text: mentions(words(text)))  # both counts and details ask for it
        self._truth = annotations.truth(ids, words, {"rule": rule, **language.facts()})
        asks = tuple(Ask(str(image), self._truth.names[image], PROMPT) for image in ids)
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
    ) -> Chair:
        """From COCO's folder, or its subfolder `annotations`, and what `find_language` finds.

        Raises:
            SettingsError: no such rule or language, or what they need is missing; else as the class.
        """
        if rule not in RULES:
            raise SettingsError(f"--rule {rule!r}: expected {' or '.join(RULES)}")
        return cls(Annotations.find(annotations), ids, rule, find_language(language, (RULES[rule],)), lengths)

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Counts by image, in the part's only group."""
        tally = Tally()
        for ask, _, caption in self._captions(part, texts):
            tally.right[ask.id] = not caption.wrong
            tally.counts[ask.picture] = {
                "captions": 1,
                "hallucinated captions": int(bool(caption.wrong)),
                "mentions": len(caption.read.heads),
                "hallucinated mentions": len(caption.wrong),
                "objects": len(caption.truth),
                "recalled objects": len(caption.recalled),
                "tokens": len(caption.read.tokens),
            }
        return {part.groups[0]: tally}

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """CHAIRs, CHAIRi and recall in percent, and the length in tokens.

        In the order of the official script's steps, so that floats are the same to the last digit: its Len is in
        hundreds of tokens, and all is multiplied by 100 where it is printed.
        """
        return {
            "CHAIRs": 100 * ratio(total["hallucinated captions"], total["captions"]),
            "CHAIRi": 100 * ratio(total["hallucinated mentions"], total["mentions"]),
            "recall": 100 * ratio(total["recalled objects"], total["objects"]),
            "length": 100 * ratio(0.01 * total["tokens"], total["captions"]),
        }

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Captions of one method and one length, see `chair_rows`; several files are shards of them."""
        (part,) = self.parts
        captions = read_captions(paths)
        asked = {int(ask.id) for ask in part.asks}
        for image, given in captions.items():
            if image not in asked:
                raise SettingsError(f"{given.where}: image {image} is not among the {len(asked)} that are scored")
        if missing := [image for image in sorted(asked) if image not in captions]:
            files = ", ".join(str(path) for path in paths)
            raise SettingsError(
                f"{files}: no caption of image {missing[0]} ({len(missing)} of {len(asked)} are missing)"
            )
        return {part.name: {ask.id: captions[int(ask.id)].text for ask in part.asks}}

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """JSON lines of image_id and caption, a file for each part."""
        paths = []
        for part in self.parts:
            if part.name not in texts:
                continue
            answers = texts[part.name]
            rows = [{"image_id": int(ask.id), "caption": answers[ask.id]} for ask in part.asks if ask.id in answers]
            paths.append(folder / f"{part.name}.jsonl")
            with replacing(paths[-1]) as file:
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        return paths

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """What the official script saves of every caption, under its names; its Len is 0 there, too."""
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
        """Of all parts, where NLTK's data are missing."""
        return {} if self._language.official else {part.name: "words without NLTK's data" for part in self.parts}

    def facts(self) -> dict[str, Any]:
        """The rule, the language with its versions, and the annotation files."""
        files = [str(path) for path in self._annotations.files]
        return {"rule": self._rule, **self._language.facts(), "annotations": files}

    def _captions(self, part: Part, texts: Texts) -> Iterator[tuple[Ask, str, _Caption]]:
        for ask in part.asks:
            if ask.id in texts:
                text = texts[ask.id]
                yield ask, text, _Caption(self._mentions(text), self._truth.objects[int(ask.id)])
