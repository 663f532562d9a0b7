"""AMBER (arXiv 2311.07397): captions and yes/no questions, scored as its script inference.py does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sira_cli.errors import SettingsError
from sira_cli.eval.amber_data import Annotated, PartName, Query, read_annotations, read_lexicon, read_queries
from sira_cli.eval.amber_figures import GROUPS, answer_counts, caption_counts, figures_of, groups_of, is_right
from sira_cli.eval.amber_words import Judged, Lexicon
from sira_cli.eval.base import ONE_WORD, Ask, Benchmark, Part, Tally, Texts
from sira_cli.eval.rows import id_of, read_rows, text_of
from sira_cli.eval.similarity import Similarity
from sira_cli.files import replacing, writing

PARTS: tuple[PartName, ...] = ("generative", "discriminative")
MAX_NEW_TOKENS = {"generative": 512, "discriminative": 16}


class Language(Protocol):
    """What finds nouns in captions."""

    @property
    def official(self) -> bool:
        """Whether it finds what AMBER's script finds."""

    def nouns(self, text: str) -> list[str]:
        """The nouns of a text, as AMBER's lists have them, in its order."""

    def facts(self) -> dict[str, Any]:
        """What decides the nouns."""


@dataclass(frozen=True)
class Amber(Benchmark):
    """AMBER's queries, annotations and rules.

    Attributes:
        parts: `generative` and `discriminative`, or one of them.
        annotations: by ask.
        lexicon: the words that count in captions.
        normalize: whether an answer such as `Yes.` or `no, it is not` counts as its first word, Yes or No. The script
            counts nothing but `Yes` and `No`, so that answers it never counts are neither.
    """

    name = "amber"
    parts: tuple[Part, ...]
    annotations: Mapping[str, Annotated]
    lexicon: Lexicon
    language: Language
    similarity: Similarity
    normalize: bool = False

    @classmethod
    def of(
        cls,
        data: Path,
        *,
        language: Language,
        similarity: Similarity,
        parts: Sequence[PartName] = PARTS,
        suffix: str = ONE_WORD,
        normalize: bool = False,
    ) -> Amber:
        """Read AMBER's folder `data`: annotations.json, relation.json, safe_words.txt and query/.

        Args:
            data: the folder; query/query_all.json does for a part whose own file is not there.
            language: finds nouns.
            similarity: compares them with annotated words.
            parts: what to ask.
            suffix: after each question.
            normalize: see the class; for answers that the script's users would have cleaned before scoring.

        Raises:
            SettingsError: a file cannot be read, or is not what AMBER's are.
        """
        lexicon = read_lexicon(data)
        annotations = read_annotations(data, lexicon)
        return cls(
            parts=tuple(_part(name, read_queries(data, name, annotations), suffix) for name in parts),
            annotations={str(id_): annotated for id_, annotated in annotations.items()},
            lexicon=lexicon,
            language=language,
            similarity=similarity,
            normalize=normalize,
        )

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count answers, by group; a question is in that of its dimension and in `discriminative`."""
        tallies = {group: Tally() for group in part.groups}
        for ask in part.asks:
            if ask.id not in texts:
                continue
            annotated = self.annotations[ask.id]
            if part.name == "generative":
                judged = self._judged(ask.id, texts[ask.id])
                counts, right = caption_counts(annotated, judged, texts[ask.id]), not judged.hallucinated
            else:
                response = self._response(texts[ask.id])
                counts, right = answer_counts(annotated, response), is_right(annotated, response)
            for group in groups_of(annotated):
                row = tallies[group].counts.setdefault(ask.picture, dict.fromkeys(counts, 0.0))
                for name, count in counts.items():
                    row[name] += count
                tallies[group].right[ask.id] = right
        return tallies

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """The script's figures, rounded as it rounds, in percent.

        Beside them `words`, the mean length of captions, and of questions `yes` and `neither`, the shares of answers
        that are exactly Yes, and neither Yes nor No; these are not rounded.
        """
        return figures_of(group, total)

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Answers that were made elsewhere, `{"id", "response"}` each, or sira's own records; all files together.

        A part of which nothing is answered is left out; records of pictures that failed are, too.

        Raises:
            SettingsError: a file cannot be read, a row is in no known form, an id is not asked or comes twice, or a
                part is answered but not wholly; the message names file and row.
        """
        asked = {ask.id for part in self.parts for ask in part.asks}
        found: dict[str, tuple[str, str]] = {}
        failed: set[str] = set()
        for path in paths:
            for where, row in read_rows(path):
                id_ = str(id_of(where, row, "id"))
                if id_ not in asked:
                    raise SettingsError(f"{where}: id {id_} {self._why_not(id_)}")
                if str(row.get("schema")).startswith("sira.") and row.get("status") == "error":
                    failed.add(id_)
                    continue
                text = text_of(where, row, "response", "text")
                if id_ in found:
                    raise SettingsError(f"{where}: id {id_} is answered already: {found[id_][0]}: keep one of the two")
                found[id_] = where, text
        files = ", ".join(map(str, paths))
        if not found:
            raise SettingsError(f"{files}: no answers there: expected rows with id and response")
        answers = {}
        for part in self.parts:
            texts = {ask.id: found[ask.id][1] for ask in part.asks if ask.id in found}
            missing = [ask.id for ask in part.asks if ask.id not in found and ask.id not in failed]
            if texts and missing:
                raise SettingsError(
                    f"{files}: id {missing[0]} is not answered: {len(missing)} of the {len(part.asks)} answers of "
                    f"{part.name} are missing, and figures need all of them"
                )
            if texts:
                answers[part.name] = texts
        return answers

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write each part's answers into a file of its own, in the form that the script reads.

        Raises:
            SiraError: a file cannot be written.
        """
        files = []
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            if part.name not in texts:
                continue
            answers = texts[part.name]
            ids = sorted((ask.id for ask in part.asks if ask.id in answers), key=int)
            respond = str if part.name == "generative" else self._response
            rows = [{"id": int(id_), "response": respond(answers[id_])} for id_ in ids]
            files.append(folder / f"{part.name}.json")
            with replacing(files[-1]) as file:
                file.write(json.dumps(rows, indent=4).encode())
        return files

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """How each answer was counted: a caption's words, or what a question's answer was compared with."""
        for ask in part.asks:
            if ask.id not in texts:
                continue
            if part.name == "generative":
                judged = self._judged(ask.id, texts[ask.id])
                yield {
                    "id": ask.id,
                    "mentions": list(judged.mentions),
                    "hallucinated": list(judged.hallucinated),
                    "covered": list(judged.covered),
                    "cognitive": list(judged.cognitive),
                }
            else:
                annotated, response = self.annotations[ask.id], self._response(texts[ask.id])
                right = is_right(annotated, response)
                yield {"id": ask.id, "truth": annotated.truth[0], "response": response, "right": right}

    def stand_ins(self) -> dict[str, str]:
        """Of captions; questions need no language."""
        used = [] if self.language.official else ["nouns without NLTK's data"]
        used += [] if self.similarity.official else [f"similarity {self.similarity.name}"]
        return {part.name: ", ".join(used) for part in self.parts if used and part.name == "generative"}

    def facts(self) -> dict[str, Any]:
        """How answers are read; questions need no language."""
        captions = any(part.name == "generative" for part in self.parts)
        words = {"language": self.language.facts(), "similarity": self.similarity.facts()} if captions else {}
        return {"normalize": self.normalize, **words}

    def _judged(self, id_: str, text: str) -> Judged:
        annotated = self.annotations[id_]
        nouns = self.language.nouns(text)
        return self.lexicon.judge(nouns, annotated.truth, annotated.hallu, self.similarity.above)

    def _response(self, text: str) -> str:
        """The answer to a question as it counts."""
        words = text.split(maxsplit=1)
        bare = words[0].rstrip(".,!").capitalize() if self.normalize and words else ""
        return bare if bare in ("Yes", "No") else text

    def _why_not(self, id_: str) -> str:
        if id_ not in self.annotations:
            return f"is not AMBER's: expected 1 to {len(self.annotations)}"
        names = " and ".join(part.name for part in self.parts)
        return f"({self.annotations[id_].kind}) is not among the queries: expected only those of {names}"


def _part(name: PartName, queries: Sequence[Query], suffix: str) -> Part:
    after = suffix if name == "discriminative" else ""
    return Part(
        name=name,
        task="caption" if name == "generative" else "ask",
        asks=tuple(Ask(str(query.id), query.image, query.text + after) for query in queries),
        groups=GROUPS[name],
        settings={"max_new_tokens": MAX_NEW_TOKENS[name]},
    )
