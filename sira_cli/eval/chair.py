"""CHAIR (Rohrbach et al. 2018): objects in captions of COCO's images that are not in them, as OPERA's chair.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import Form, read_answer_rows
from sira_cli.eval.benchmark import AnswerFiles, Ask, Asking, Benchmark, Counted, Part, Texts
from sira_cli.eval.coco import UnknownImageError, find_truth, image_of, mentions
from sira_cli.eval.figures import (
    CHAIR_DENOMINATORS,
    TEXT_DENOMINATORS,
    chair_figures,
    mention_counts,
    text_counts,
    text_figures,
)
from sira_cli.eval.statistics import Denominators, ratio
from sira_cli.language import Need, find_language
from sira_cli.pictures.rows import brief, entries, read_rows, some

PROMPT = "Please describe this image in detail."
RULES: dict[str, Need] = {"lemma": "lemmas", "singular": "singulars"}  # the part of the language that each rule needs
ANSWERS = "captions"  # name of the part when captions from elsewhere are scored
LENGTHS = (64, 512)  # of captions in tokens, as in the paper's Table 2
FORM = Form("caption", ("image_id",))  # of OPERA's chair.py


class Chair(Benchmark):
    """CHAIR over some images of COCO.

    Attributes:
        truth: the objects in the images.
    """

    name = "chair"

    def __init__(
        self,
        annotations: Path,
        *,
        ids: Sequence[int],
        rule: str = "lemma",
        language: str = "auto",
        lengths: Sequence[int] = (),
        prompt: str = PROMPT,
    ) -> None:
        """Read the objects in some images, with the language that `find_language` finds.

        Args:
            annotations: COCO's folder, or its subfolder `annotations`.
            ids: numbers of the images.
            rule: how words are compared, `lemma` or `singular`.
            language: as for `find_language`.
            lengths: in tokens, one part for each; none for captions from elsewhere.
            prompt: the request for a caption.

        Raises:
            SettingsError: no such rule or language.
            DataError: a file cannot be read, or lacks an image.
        """
        if rule not in RULES:
            raise SettingsError(f"`rule=` {rule!r}: expected {' or '.join(RULES)}")
        self._rule, self._language = rule, find_language(language, (RULES[rule],))
        self._words: Callable[[str], list[str]] = getattr(self._language, RULES[rule])
        self.truth = find_truth(annotations, ids, self._words)
        asks = tuple(Ask(str(image), self.truth.names[image], prompt) for image in ids)
        self.parts = tuple(
            Part(str(length), "caption", asks, (f"{length} tokens",), {"max_new_tokens": length}) for length in lengths
        ) or (Part(ANSWERS, "caption", asks, (ANSWERS,)),)

    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        """Count each caption."""
        for ask in part.asks:
            if (text := texts.get(ask.id)) is not None:
                read, truth = mentions(self._words(text)), self.truth.objects[int(ask.id)]
                counts = mention_counts(read.heads, truth) | text_counts(text, read.heads) | {"tokens": read.length}
                yield Counted(ask.id, ask.picture, part.groups, truth.issuperset(read.heads), counts)

    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        """Return CHAIRs, CHAIRi, recall and length in tokens, in the official script's steps, and `text_figures`."""
        length = 100 * ratio(0.01 * total["tokens"], total["captions"])
        return chair_figures(total) | {"length": length} | text_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of `chair_figures` and `text_figures`."""
        return CHAIR_DENOMINATORS | TEXT_DENOMINATORS

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read captions of one method and one length."""
        (part,) = self.parts
        captions = read_captions(paths)
        if missing := [int(ask.id) for ask in part.asks if int(ask.id) not in captions]:
            files, count = some(paths, 3, 1_000), f"{len(missing)} of {len(part.asks)} are missing"
            raise DataError(f"{files}: no caption of image {min(missing)} ({count})")
        return {part.name: {ask.id: captions[int(ask.id)][0] for ask in part.asks}}

    def stand_ins(self) -> dict[str, str]:
        """Return the replacement of missing NLTK data."""
        return {} if self._language.official else {part.name: "words without NLTK's data" for part in self.parts}

    def facts(self) -> dict[str, Any]:
        """Return the rule, the language with its versions, and the annotation files."""
        return {"rule": self._rule, **self._language.facts(), "annotations": [str(path) for path in self.truth.files]}


def read_captions(paths: Sequence[Path]) -> dict[int, tuple[str, str]]:
    """Read captions by image, each with its file and row."""
    captions: dict[int, tuple[str, str]] = {}
    for path in paths:
        where = ""
        for where, row in read_answer_rows(path, FORM):
            if (image := _image(row.get("image_id"))) is None:
                raise DataError(f"{where}: image_id is not an image of COCO: {brief(row.get('image_id'))}")
            if image in captions:
                raise DataError(f"{where}: image {image} has a caption already: {captions[image][1]}: keep one of them")
            captions[image] = row["text"], where
        if not where:
            raise DataError(f"{path}: holds no captions")
    return captions


def opened(path: Path, asking: Asking) -> Chair:
    """Read CHAIR as `sira eval` asks for it."""
    options = asking.options
    listed = Path(options.get("ids", path / "ids.txt"))
    numbers = [each.strip() for each in options["lengths"].split(",")] if "lengths" in options else []
    if not all(each.isdecimal() and each.isascii() and int(each) for each in numbers):
        raise SettingsError(f"`lengths=` {options['lengths']}: expected numbers of tokens, such as 64,512")
    lengths = tuple(dict.fromkeys(map(int, numbers)))
    images = read_ids(listed) if "ids" in options or (not asking.sources and listed.is_file()) else None
    if asking.sources:
        places, lengths = _answered(asking.sources, lengths)
        images = images or places
    elif lengths and asking.max_new_tokens:
        raise SettingsError("give `lengths=` or `max_new_tokens=`, not both")
    else:
        lengths = (asking.max_new_tokens,) if asking.max_new_tokens else lengths or LENGTHS
    if images is None:
        raise SettingsError(f"`ids=` FILE is needed: the images to caption, one id per line; or put it at {listed}")
    ids = [*itertools.islice(images, asking.limit)]
    try:
        return Chair(path, ids=ids, lengths=lengths, **asking.given("rule", "language", "prompt"))
    except UnknownImageError as error:
        raise DataError(f"{images[error.image]}: {error}") from None


def _answered(sources: Sequence[AnswerFiles], asked: tuple[int, ...]) -> tuple[dict[int, str], tuple[int, ...]]:
    """Return the images of the captions in files, with a place of each, and their lengths, if all files record them."""
    places: dict[int, str] = {}
    recorded: list[set[int]] = []
    for source in sources:
        recorded.append(set())
        if not source.own:
            places |= {image: where for image, (_, where) in read_captions(source.paths).items()}
        for where, row in (row for path in source.paths if source.own for row in read_rows(path)):
            if row.get("schema") != "sira.caption/1" or not str(row.get("part", 0)).isdecimal():
                raise DataError(f"{where}: is not a caption of sira caption or sira eval chair")
            if (image := _image(row["id"] if "id" in row else row["file_name"])) is not None:
                places[image] = where
            recorded[-1] |= {int(row["part"])} if "part" in row else set()
    every = sorted(set[int]().union(*recorded))
    several = max(map(len, recorded)) > 1
    if (several or len(asked) > 1) and not all(recorded):
        raise SettingsError("only captions of sira eval chair have several lengths: score each file by itself")
    return places, asked or (tuple(every) if all(recorded) and (several or len(every) == 1) else ())


def read_ids(path: Path) -> dict[int, str]:
    """Read a list of images, with the line of each: one per line, or a JSON array; numbers, or COCO's file names."""
    places: dict[int, str] = {}
    for where, entry in entries(path):
        if (image := _image(entry)) is None:
            raise DataError(f"{where}: expected an image's number or its file name in COCO, got {brief(entry)}")
        if image in places:
            raise DataError(f"{where}: image {image} is also in {places[image]}")
        places[image] = where
    if not places:
        raise DataError(f"{path}: holds no images")
    return places


def _image(value: Any) -> int | None:
    return value if type(value) is int else image_of(value) if isinstance(value, str) else None
