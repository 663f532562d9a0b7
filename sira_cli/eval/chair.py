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
from sira_cli.eval.base import Ask, Benchmark, Part, Tally, Texts
from sira_cli.eval.chair_rows import read_captions
from sira_cli.eval.chair_words import Mentions, mentions
from sira_cli.eval.coco import Annotations, Truth
from sira_cli.eval.language import Language, Need, find_language
from sira_cli.files import replacing, writing

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

    def __init__(self, annotations: Annotations, rule: str, language: Language, lengths: Sequence[int]) -> None:
        """Without images; `of` is what callers want.

        Args:
            annotations: the user's files.
            rule: a key of RULES.
            language: which has what the rule needs.
            lengths: a part for each; none: captions are made elsewhere.
        """
        self._annotations = annotations
        self._rule = rule
        self._language = language
        words: Callable[[str], list[str]] = getattr(language, RULES[rule])
        self._words = words
        self._mentions = functools.cache(lambda text: mentions(words(text)))  # both counts and details ask for it
        self._lengths = tuple(lengths)
        self._truth = Truth({}, {})
        self.parts = ()  # until the images are known

    @classmethod
    def of(
        cls,
        annotations: Path,
        *,
        ids: Sequence[int] | None = None,
        rule: str = "lemma",
        language: str = "auto",
        lengths: Sequence[int] = (),
    ) -> Chair:
        """The benchmark over some images.

        Args:
            annotations: COCO's folder, or its subfolder `annotations`.
            ids: of the images; None: those of the first answers that `read` gets, which then sets `parts`.
            rule: `lemma` (OPERA's script) or `singular` (the one of Rohrbach et al.).
            language: `auto`, `nltk` or `fallback`, as for `find_language`.
            lengths: of the captions that are to be made, in tokens; none: captions are made elsewhere.

        Raises:
            SettingsError: no such rule or language, what they need is missing, annotations are missing or not COCO's,
                or lengths without ids.
            SiraError: the cache of ground truth cannot be written.
        """
        if rule not in RULES:
            raise SettingsError(f"--rule {rule!r}: expected {' or '.join(RULES)}")
        if lengths and ids is None:
            raise SettingsError("--ids is needed: a file of the images to caption, one id a line")
        found = cls(Annotations.find(annotations), rule, find_language(language, (RULES[rule],)), lengths)
        if ids is not None:
            found._set_images(ids)
        return found

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Counts by image, in the part's only group."""
        tally = Tally()
        for ask, text, caption in self._captions(part, texts):
            tally.right[ask.id] = not caption.wrong
            tally.counts[ask.picture] = {
                "captions": 1,
                "hallucinated captions": int(bool(caption.wrong)),
                "mentions": len(caption.read.heads),
                "hallucinated mentions": len(caption.wrong),
                "objects": len(caption.truth),
                "recalled objects": len(caption.recalled),
                "tokens": len(caption.read.tokens),
                "words": len(text.split()),
            }
        return {part.groups[0]: tally}

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """CHAIRs, CHAIRi and recall in percent, and the length in tokens.

        In the order of the official script's steps, so that floats are the same to the last digit: its Len is in
        hundreds of tokens, and all is multiplied by 100 where it is printed.
        """
        captions = total.get("captions", 0)
        return {
            "CHAIRs": 100 * _share(total, "hallucinated captions", "captions"),
            "CHAIRi": 100 * _share(total, "hallucinated mentions", "mentions"),
            "recall": 100 * _share(total, "recalled objects", "objects"),
            "length": 100 * (0.01 * total["tokens"] / captions) if captions else 0.0,
        }

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Captions of one method, see `chair_rows`; several files are shards of them."""
        if len(self._lengths) > 1:
            raise SettingsError(f"{paths[0]}: captions of one length at a time: give one of {self._lengths}")
        captions, failed = read_captions(paths)
        if not self.parts:
            self._set_images([*captions, *failed])
        part = self.parts[0]
        asked = {int(ask.id) for ask in part.asks}
        for image, given in captions.items():
            if image not in asked:
                raise SettingsError(f"{given.where}: image {image} is not among the {len(asked)} that are scored")
        if missing := [image for image in sorted(asked) if image not in captions and image not in failed]:
            files = ", ".join(str(path) for path in paths)
            raise SettingsError(
                f"{files}: no caption of image {missing[0]} ({len(missing)} of {len(asked)} are missing)"
            )
        return {part.name: {ask.id: captions[int(ask.id)].text for ask in part.asks if int(ask.id) in captions}}

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """JSON lines of image_id and caption, a file for each part."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for part in self.parts:
            rows = [
                {"image_id": int(ask.id), "caption": texts[part.name][ask.id]}
                for ask in part.asks
                if ask.id in texts.get(part.name, {})
            ]
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

    def _set_images(self, ids: Sequence[int]) -> None:
        by = {"rule": self._rule, **self._language.facts()}
        self._truth = self._annotations.truth(ids, self._words, by)
        asks = tuple(Ask(str(image), self._truth.names[image], PROMPT) for image in ids)
        self.parts = tuple(
            Part(str(length), "caption", asks, (f"{length} tokens",), {"max_new_tokens": length})
            for length in self._lengths
        ) or (Part(ANSWERS, "caption", asks, (ANSWERS,)),)

    def _captions(self, part: Part, texts: Texts) -> Iterator[tuple[Ask, str, _Caption]]:
        for ask in part.asks:
            if ask.id in texts:
                text = texts[ask.id]
                yield ask, text, _Caption(self._mentions(text), self._truth.objects[int(ask.id)])


def _share(total: Mapping[str, float], part: str, whole: str) -> float:
    return total[part] / total[whole] if total.get(whole) else 0.0
