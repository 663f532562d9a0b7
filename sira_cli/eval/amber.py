"""AMBER (arXiv 2311.07397): captions and yes/no questions, scored as its script inference.py does, quirks included."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import Form, read_answer_rows
from sira_cli.eval.benchmark import ONE_WORD, Ask, Asking, Benchmark, Counted, Part, Texts
from sira_cli.eval.cards import DIMENSIONS
from sira_cli.eval.similarity import Similarity, find_similarity
from sira_cli.eval.statistics import Denominators
from sira_cli.language import Language, find_language
from sira_cli.pictures.rows import brief, id_of, read_json, read_rows, read_text, some, text_of

PartName = Literal["generative", "discriminative"]
PARTS: tuple[PartName, ...] = ("generative", "discriminative")
MAX_NEW_TOKENS = {"generative": 512, "discriminative": 16}
# AMBER's script reads these two fields. Rows of other tools have more; with a label, `response` may be one of several.
FORM = Form("response", ("id",), unless=("truth", "hallu", "label", "answer", "prediction"))
FILES = ("annotations.json", "relation.json", "safe_words.txt", "query")
URL = "https://github.com/junyangwang0410/AMBER"
GROUPS: dict[PartName, tuple[str, ...]] = {
    "generative": ("generative",),
    "discriminative": ("discriminative", "existence", "attribute", "state", "number", "action", "relation"),
}
GROUPS_OF = {  # by `type` in annotations.json
    "generative": ("generative",),
    "discriminative-hallucination": ("discriminative", "existence"),
    "discriminative-attribute-state": ("discriminative", "attribute", "state"),
    "discriminative-attribute-number": ("discriminative", "attribute", "number"),
    "discriminative-attribute-action": ("discriminative", "attribute", "action"),
}
OTHERWISE = ("discriminative", "relation")  # for every other type, as in the script

# The script reads AMBER's metrics.txt, where every denominator starts at 0.001; attribute is three of them together.
# That keeps every share off the middle between two roundings, so the order in which floats are added does not matter.
START = 0.001
STARTS = {"attribute": 3 * START}
F1_START = 0.0001
F1_STARTS = {"existence": 0.001}  # perhaps a slip, but it changes digits
DENOMINATORS: dict[PartName, Denominators] = {
    "generative": {"CHAIR": ("mentions",), "Cover": ("truth",), "Hal": ("answers",), "Cog": ("hallu words",)},
    "discriminative": {
        "accuracy": ("answers",),
        "precision": ("answered no",),
        "recall": ("no",),
        "F1": ("no", "answered no"),
        "yes": ("answers",),
        "neither": ("answers",),
    },
}


@dataclass(frozen=True)
class Annotated:
    """The ground truth of one query."""

    kind: str  # its `type` in annotations.json, such as `generative` or `discriminative-attribute-state`
    truth: tuple[str, ...]  # words for objects in the picture; for a question only `yes` or `no`
    hallu: tuple[str, ...] = ()  # words that models tend to hallucinate about the picture; empty for a question

    @property
    def groups(self) -> tuple[str, ...]:
        """The part and the other groups that count an answer; every query but a caption is a question."""
        return GROUPS_OF.get(self.kind, OTHERWISE)


class Judged(NamedTuple):
    """The objects that a caption mentions."""

    mentions: tuple[str, ...]  # nouns of AMBER's vocabulary, in the caption's order, repeats included
    hallucinated: tuple[str, ...]  # the mentions that are not in the picture
    covered: tuple[str, ...]  # annotated words of the picture that are mentioned
    cognitive: tuple[str, ...]  # mentioned words that are annotated as typical hallucinations


@dataclass(frozen=True)
class Lexicon:
    """AMBER's vocabulary."""

    relation: Mapping[str, tuple[str, ...]]  # for each annotated word, other words that name the same thing
    safe: frozenset[str]  # words that are never counted as hallucinated, whatever the picture shows

    @functools.cached_property
    def vocabulary(self) -> frozenset[str]:
        """All nouns that count; others are ignored."""
        return frozenset(self.relation).union(*self.relation.values())

    def judge(
        self, nouns: Sequence[str], truth: Sequence[str], hallu: Sequence[str], similar: Callable[[str, str], bool]
    ) -> Judged:
        """Sort a caption's nouns into mentions, hallucinations and covered words.

        Quirks of the script that change figures: a safe word stays among the mentions. If several words name the same
        object, only the first is covered, so a word that is annotated twice is covered at most once. An annotated
        hallucination can still be cleared by a similar word of the picture, but stays marked.
        """

        def listed(words: Sequence[str]) -> list[tuple[str, int]]:
            """List all accepted names, each with the place of its word: related words first, as in the script."""
            related = []
            own = []
            for place, word in enumerate(words):
                related += [(other, place) for other in self.relation[word]]
                own.append((word, place))
            return related + own

        def first(names: list[tuple[str, int]], like: Callable[[str, str], bool]) -> int | None:
            return next((place for word, place in names if like(noun, word)), None)

        shown = listed(truth)
        made_up = listed(hallu)
        mentions = tuple(noun for noun in nouns if noun in self.vocabulary)
        hallucinated: list[str] = []
        covered: set[int | None] = set()
        cognitive: set[int | None] = set()
        for noun in mentions:
            if noun in self.safe:
                continue
            place = first(shown, operator.eq)
            if place is None:
                cognitive |= {first(made_up, operator.eq), first(made_up, similar)}
                place = first(shown, similar)
            if place is None:
                hallucinated.append(noun)
            else:
                covered.add(place)
        return Judged(
            mentions=mentions,
            hallucinated=tuple(hallucinated),
            covered=tuple(word for place, word in enumerate(truth) if place in covered),
            cognitive=tuple(word for place, word in enumerate(hallu) if place in cognitive),
        )


class Amber(Benchmark):
    """AMBER's queries, its annotations by ask, and the lexicon for captions."""

    name = "amber"

    def __init__(
        self,
        data: Path,
        *,
        language: Language,
        similarity: Similarity,
        task: str = "all",
        suffix: str = ONE_WORD,
        prompt: str | None = None,
    ) -> None:
        """Read AMBER's folder.

        Args:
            data: the folder with annotations.json.
            language: the data that finds nouns in captions.
            similarity: the rule by which two words are synonyms.
            task: `all`, `generative` (captions), `discriminative` (questions), or one dimension of the questions.
            suffix: added to each question.
            prompt: the request for a caption; None: AMBER's.

        Raises:
            SettingsError: no question is of this task.
            DataError: a file cannot be read.
        """
        data = find_data(data)
        self.lexicon = _read_lexicon(data)
        self.annotations = _read_annotations(data / FILES[0], self.lexicon)
        self._language = language
        self._similarity = similarity
        self.parts = ()
        for name in PARTS:
            if task != "all" and (task == "generative") != (name == "generative"):
                continue
            kind: Literal["caption", "ask"] = "caption" if name == "generative" else "ask"
            groups = GROUPS[name]
            asks = []
            for where, row in _read_queries(data, name, self.annotations):
                text = text_of(where, row, "query")
                if kind == "ask":
                    text += suffix
                elif prompt is not None:
                    text = prompt
                asks.append(Ask(str(row["id"]), text_of(where, row, "image"), text))
            if task in DIMENSIONS:
                asks = [ask for ask in asks if task in self.annotations[ask.id].groups]
                groups = groups[1:]  # without the figures of all questions
            if not asks:
                raise SettingsError(f"`task=` {task}: no such question in AMBER's folder")
            self.parts += (Part(name, kind, tuple(asks), groups, {"max_new_tokens": MAX_NEW_TOKENS[name]}),)

    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        """Count each answer; a question counts in its dimension and in `discriminative`."""
        for ask in part.asks:
            if ask.id not in texts:
                continue
            text = texts[ask.id]
            annotated = self.annotations[ask.id]
            counts: dict[str, float]
            if part.name == "generative":
                nouns = self._language.nouns(text)
                judged = self.lexicon.judge(nouns, annotated.truth, annotated.hallu, self._similarity.above)
                right = not judged.hallucinated
                counts = {
                    "answers": 1,
                    "clean answers": right,
                    "mentions": len(judged.mentions),
                    "hallucinated mentions": len(judged.hallucinated),
                    "truth": len(annotated.truth),
                    "covered truth": len(judged.covered),
                    "hallu words": len(annotated.hallu),
                    "marked hallu words": len(judged.cognitive),
                    "words": len(text.split()),
                }
            else:
                no = annotated.truth == ("no",)
                right = text == annotated.truth[0].capitalize()
                counts = {
                    "answers": 1,
                    "right": right,
                    "no": no,  # the positive class
                    "answered no": text == "No",
                    "rightly no": no and text == "No",
                    "answered yes": text == "Yes",
                    "neither": text not in ("Yes", "No"),
                }
            counts = {name: float(value) for name, value in counts.items()}
            yield Counted(ask.id, ask.picture, annotated.groups, right, counts)

    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        """Return the script's figures, rounded as it rounds, in percent; also `words`, `yes` and `neither`."""
        counts = defaultdict(float, total)  # missing counts are 0

        def rounded(percent: float) -> float:
            return percent if smooth else round(percent, 1)

        def percent(count: str, of: str, start: float = 0.0) -> float:
            whole = start + counts[of]
            return counts[count] / whole * 100 if whole else 0.0

        if group == "generative":
            return {
                "CHAIR": rounded(percent("hallucinated mentions", "mentions", START)),
                "Cover": rounded(percent("covered truth", "truth", START)),
                "Hal": rounded(100 - percent("clean answers", "answers", START)),
                "Cog": rounded(percent("marked hallu words", "hallu words", START)),
                "words": counts["words"] / counts["answers"] if counts["answers"] else 0.0,
            }
        start = STARTS.get(group, START)
        precision = rounded(percent("rightly no", "answered no", start))
        recall = rounded(percent("rightly no", "no", start))
        p = precision / 100  # rounded before it becomes F1
        r = recall / 100
        return {
            "accuracy": rounded(percent("right", "answers", start)),
            "precision": precision,
            "recall": recall,
            "F1": rounded(2 * p * r / (p + r + F1_STARTS.get(group, F1_START)) * 100),
            "yes": percent("answered yes", "answers"),
            "neither": percent("neither", "answers"),
        }

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of the script's figures, without the constants that it adds to them."""
        return DENOMINATORS["generative" if group == "generative" else "discriminative"]

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read answers as the script does, all files together; a part without any answers is left out."""
        texts: dict[str, str] = {}
        places: dict[str, str] = {}
        for path in paths:
            for where, row in read_answer_rows(path, FORM):
                id_ = str(id_of(where, row, "id"))
                if id_ not in self.annotations:
                    raise DataError(f"{where}: id {id_} is not AMBER's: expected 1 to {len(self.annotations)}")
                if id_ in texts:
                    raise DataError(f"{where}: id {id_} is answered already: {places[id_]}: keep one of the two")
                texts[id_] = row["text"]
                places[id_] = where
        files = some(paths, 3, 1_000)
        answers = {}
        for part in self.parts:
            ids = [ask.id for ask in part.asks]
            missing = [id_ for id_ in ids if id_ not in texts]
            if len(missing) == len(ids):
                continue
            if missing:
                raise DataError(
                    f"{files}: id {missing[0]} is not answered: {len(missing)} of the {len(part.asks)} answers of "
                    f"{part.name} are missing, and figures need all of them"
                )
            answers[part.name] = {id_: texts[id_] for id_ in ids}
        if not answers:
            names = " or ".join(part.name for part in self.parts)
            raise DataError(f"{files}: no answers of {names}: expected rows with id and response")
        return answers

    def reduce(self, part: Part, text: str) -> str:
        """Return the first word of an answer to a question, if it is yes or no: only `Yes` and `No` count."""
        if part.name == "generative":
            return text
        word, *_ = text.split(maxsplit=1) or [""]
        bare = word.rstrip(".,!").capitalize()
        return bare if bare in ("Yes", "No") else text

    def stand_ins(self) -> dict[str, str]:
        """Return the replacements of official parts for captions; questions need no language."""
        used = []
        if not self._language.official:
            used.append("nouns without NLTK's data")
        if not self._similarity.official:
            used.append(f"similarity {self._similarity.name}")
        return {"generative": ", ".join(used)} if used and self._captions else {}

    def facts(self) -> dict[str, Any]:
        """Return how captions are read; questions need no language."""
        if not self._captions:
            return {}
        return {"language": self._language.facts(), "similarity": self._similarity.facts()}

    @property
    def _captions(self) -> bool:
        """Whether captions are asked for."""
        return self.parts[0].name == "generative"


# AMBER's own files.


def opened(path: Path, asking: Asking) -> Amber:
    """Read AMBER as `sira eval` asks for it."""
    find_data(path)  # before anything slow is imported
    options = asking.options
    captions = options.get("task", "all") in ("generative", "all")  # questions need neither nouns nor vectors
    if "prompt" in options and not captions:
        raise SettingsError("`prompt=`: asks for captions: leave it out, or `task=`")
    similarity = options.get("similarity", "auto" if asking.in_folder else "spacy")
    amber = Amber(
        path,
        language=find_language(options.get("language", "auto") if captions else "fallback", ["nouns"]),
        similarity=find_similarity(similarity if captions else "exact"),
        **asking.given("suffix", "prompt", "task"),
    )
    amber.parts = tuple(part.of_first_pictures(asking.limit) for part in amber.parts)
    return amber


def find_data(folder: Path) -> Path:
    """Return AMBER's folder `data`, from it or from AMBER's repository."""
    if not folder.is_dir():
        raise SettingsError(f"{folder}: is not a folder: expected AMBER's, with {', '.join(FILES)}")
    data = folder / "data" if not (folder / FILES[0]).exists() and (folder / "data").is_dir() else folder
    for name in FILES:
        if not (data / name).exists():
            raise SettingsError(f"{data}: has no {name}: get AMBER's files from {URL}")
    return data


def _read_lexicon(data: Path) -> Lexicon:
    path = data / "relation.json"
    relation = read_json(path)
    if not isinstance(relation, dict):
        raise DataError(f"{path}: expected a JSON object of words, each with a list of related words")
    for word, related in relation.items():
        if not _is_words(related):
            raise DataError(f"{path}: {some([word])}: expected a list of related words, got {brief(related)}")
    safe = frozenset(read_text(data / "safe_words.txt").split("\n"))
    return Lexicon({word: tuple(related) for word, related in relation.items()}, safe)


def _read_annotations(path: Path, lexicon: Lexicon) -> dict[str, Annotated]:
    annotations = {}
    for number, (where, row) in enumerate(read_rows(path), start=1):
        # the script takes the annotation of id N from place N
        if id_of(where, row, "id") != number:
            raise DataError(f"{where}: expected id {number}, got {brief(row['id'])}: ids must be 1, 2, 3, ... in order")
        kind = text_of(where, row, "type")
        if kind == "generative":
            words = {name: _known_words(where, row, name, lexicon) for name in ("truth", "hallu")}
            annotations[str(number)] = Annotated(kind, **words)
            continue
        truth = text_of(where, row, "truth")
        if truth not in ("yes", "no"):
            raise DataError(f"{where}: truth must be yes or no, got {brief(truth)}")
        annotations[str(number)] = Annotated(kind, (truth,))
    return annotations


def _known_words(where: str, row: dict[str, Any], name: str, lexicon: Lexicon) -> tuple[str, ...]:
    """Return a row's list of words, all of the lexicon."""
    words: Any = row.get(name)
    if not _is_words(words):
        raise DataError(f"{where}: {name}: expected a list of words, got {brief(words)}")
    for word in words:
        if word not in lexicon.relation:
            raise DataError(f"{where}: {name}: {brief(word)} is not in relation.json: the two files do not match")
    return tuple(words)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _read_queries(
    data: Path, part: PartName, annotations: Mapping[str, Annotated]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the queries of a part from its own file; query_all.json asks another question under id 13193."""
    path = data / "query" / f"query_{part}.json"
    seen = set()
    for where, row in read_rows(path):
        id_ = str(id_of(where, row, "id"))
        if id_ not in annotations:
            raise DataError(f"{where}: id {id_} is not in {data / FILES[0]}")
        if id_ in seen:
            raise DataError(f"{where}: id {id_} is there already: each query needs an id of its own")
        seen.add(id_)
        if annotations[id_].groups[0] != part:
            raise DataError(f"{where}: id {id_} is annotated as {annotations[id_].kind}, expected {part}")
        yield where, {**row, "id": id_}
    if not seen:
        raise DataError(f"{path}: holds no queries of {part}")
