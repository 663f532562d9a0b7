"""AMBER (arXiv 2311.07397): captions and yes/no questions, scored as its script inference.py does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.amber.data import Annotated, PartName, Query, find_data, read_annotations, read_lexicon, read_queries
from sira_cli.eval.amber.figures import (
    DENOMINATORS,
    GROUPS,
    answer_counts,
    caption_counts,
    figures_of,
    groups_of,
    is_right,
)
from sira_cli.eval.amber.similarity import Similarity
from sira_cli.eval.amber.words import Judged, Lexicon
from sira_cli.eval.answers.rows import Form, read_answer_rows
from sira_cli.eval.base import ONE_WORD, Ask, Benchmark, Part, Texts
from sira_cli.eval.statistics import Denominators, Tally
from sira_cli.language.language import Language
from sira_cli.pictures.rows import id_of, some

FORM = Form("response", ("id",))
PARTS: tuple[PartName, ...] = ("generative", "discriminative")
MAX_NEW_TOKENS = {"generative": 512, "discriminative": 16}


@dataclass(frozen=True)
class Amber(Benchmark):
    """AMBER's queries, annotations and rules.

    Attributes:
        parts: `generative` and `discriminative`, or one of them.
        annotations: by ask.
        lexicon: its vocabulary for captions.
        reduced: whether answers from elsewhere are also reduced (see `reduce`).
    """

    name = "amber"
    parts: tuple[Part, ...]
    annotations: Mapping[str, Annotated]
    lexicon: Lexicon
    language: Language
    similarity: Similarity
    reduced: bool = False

    @classmethod
    def of(
        cls,
        data: Path,
        *,
        language: Language,
        similarity: Similarity,
        parts: Sequence[PartName] = PARTS,
        suffix: str = ONE_WORD,
        prompt: str | None = None,
        reduced: bool = False,
    ) -> Amber:
        """Read AMBER's folder `data`: annotations.json, relation.json, safe_words.txt and query/."""
        data = find_data(data)
        lexicon = read_lexicon(data)
        annotations = read_annotations(data, lexicon)
        return cls(
            parts=tuple(_part(name, read_queries(data, name, annotations), suffix, prompt) for name in parts),
            annotations={str(id_): annotated for id_, annotated in annotations.items()},
            lexicon=lexicon,
            language=language,
            similarity=similarity,
            reduced=reduced,
        )

    def only(self, group: str) -> Amber:
        """Return one dimension of the questions: `existence`, `attribute` or `relation`, with its subgroups."""
        parts = []
        for part in self.parts:
            asks = tuple(ask for ask in part.asks if group in groups_of(self.annotations[ask.id]))
            inside = {name for ask in asks for name in groups_of(self.annotations[ask.id])} - {"discriminative"}
            if asks:
                parts.append(replace(part, asks=asks, groups=tuple(name for name in part.groups if name in inside)))
        if not parts:
            raise SettingsError(f"`task=` {group}: no such question in AMBER's folder")
        return replace(self, parts=tuple(parts))

    def picked(self, ids: Sequence[int]) -> Amber:
        """Return the queries with some ids."""
        wanted = {str(id_) for id_ in ids}
        if unknown := next((id_ for id_ in wanted if id_ not in self.annotations), ""):
            raise DataError(f"id {unknown} is not AMBER's: expected 1 to {len(self.annotations)}")
        parts = (replace(part, asks=tuple(ask for ask in part.asks if ask.id in wanted)) for part in self.parts)
        picked = replace(self, parts=tuple(part for part in parts if part.asks))
        if not picked.parts:
            raise SettingsError(f"`ids=`: no query of {' or '.join(part.name for part in self.parts)} among them")
        return picked

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count answers by group; a question counts in its dimension and in `discriminative`."""
        tallies = {group: Tally() for group in part.groups}
        for ask in part.asks:
            if ask.id not in texts:
                continue
            annotated = self.annotations[ask.id]
            if part.name == "generative":
                judged = self._judged(ask.id, texts[ask.id])
                counts, right = caption_counts(annotated, judged, texts[ask.id]), not judged.hallucinated
            else:
                counts, right = answer_counts(annotated, texts[ask.id]), is_right(annotated, texts[ask.id])
            for group in groups_of(annotated):
                if group not in tallies:
                    continue
                tallies[group].add(ask.picture, ask.id, right, {name: float(count) for name, count in counts.items()})
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the script's figures, rounded as it rounds, in percent.

        Also, not rounded: for captions `words`, the mean length; for questions `yes` and `neither`, the shares of
            answers that are exactly Yes, and of those that are neither Yes nor No.
        """
        return figures_of(group, total)

    def smooth(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the same figures, not rounded."""
        return figures_of(group, total, digits=None)

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of the script's figures, without the constants that it adds to them."""
        return DENOMINATORS["generative" if group == "generative" else "discriminative"]

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read answers as the script does, with `id` and `response`; all files together.

        Answers to other queries are ignored, and a part without any answers is left out.
        """
        found: dict[str, tuple[str, str]] = {}
        for path in paths:
            for where, row in read_answer_rows(path, FORM):
                id_ = str(id_of(where, row, "id"))
                if id_ not in self.annotations:
                    raise DataError(f"{where}: id {id_} is not AMBER's: expected 1 to {len(self.annotations)}")
                if id_ in found:
                    raise DataError(f"{where}: id {id_} is answered already: {found[id_][0]}: keep one of the two")
                found[id_] = where, row["text"]
        files = some(paths, 3, 1_000)
        answers = {}
        for part in self.parts:
            texts = {ask.id: found[ask.id][1] for ask in part.asks if ask.id in found}
            missing = [ask.id for ask in part.asks if ask.id not in found]
            if texts and missing:
                raise DataError(
                    f"{files}: id {missing[0]} is not answered: {len(missing)} of the {len(part.asks)} answers of "
                    f"{part.name} are missing, and figures need all of them"
                )
            if texts:
                answers[part.name] = {
                    id_: self.reduce(part, text) if self.reduced else text for id_, text in texts.items()
                }
        if not answers:
            names = " or ".join(part.name for part in self.parts)
            raise DataError(f"{files}: no answers of {names}: expected rows with id and response")
        return answers

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield how each answer was counted: a caption's words, or the expected answer of a question."""
        for ask in part.asks:
            if ask.id not in texts:
                continue
            if part.name == "generative":
                judged = self._judged(ask.id, texts[ask.id])
                yield {
                    "id": ask.id,
                    "image": ask.picture,
                    "response": texts[ask.id],
                    "mentions": list(judged.mentions),
                    "hallucinated": list(judged.hallucinated),
                    "covered": list(judged.covered),
                    "cognitive": list(judged.cognitive),
                }
            else:
                annotated, response = self.annotations[ask.id], texts[ask.id]
                right = is_right(annotated, response)
                about = {"id": ask.id, "image": ask.picture, "query": ask.prompt}
                yield about | {"truth": annotated.truth[0], "response": response, "right": right}

    def reduce(self, part: Part, text: str) -> str:
        """Return the first word of an answer to a question, if it is yes or no: only `Yes` and `No` count."""
        words = text.split(maxsplit=1)
        bare = words[0].rstrip(".,!").capitalize() if words and part.name == "discriminative" else ""
        return bare if bare in ("Yes", "No") else text

    def stand_ins(self) -> dict[str, str]:
        """Return the replacements of official parts for captions; questions need no language."""
        used = [] if self.language.official else ["nouns without NLTK's data"]
        used += [] if self.similarity.official else [f"similarity {self.similarity.name}"]
        return {part.name: ", ".join(used) for part in self.parts if used and part.name == "generative"}

    def facts(self) -> dict[str, Any]:
        """Return how captions are read; questions need no language."""
        captions = any(part.name == "generative" for part in self.parts)
        facts = {"language": self.language.facts(), "similarity": self.similarity.facts()} if captions else {}
        return facts | ({"reduced": "answers from elsewhere to their first word"} if self.reduced else {})

    def _judged(self, id_: str, text: str) -> Judged:
        annotated = self.annotations[id_]
        nouns = self.language.nouns(text)
        return self.lexicon.judge(nouns, annotated.truth, annotated.hallu, self.similarity.above)


def _part(name: PartName, queries: Sequence[Query], suffix: str, prompt: str | None) -> Part:
    captions = name == "generative"

    def asking(query: Query) -> str:
        return query.text + suffix if not captions else query.text if prompt is None else prompt

    return Part(
        name=name,
        task="caption" if captions else "ask",
        asks=tuple(Ask(str(query.id), query.image, asking(query)) for query in queries),
        groups=GROUPS[name],
        settings={"max_new_tokens": MAX_NEW_TOKENS[name]},
    )
