"""CHAIR (Rohrbach et al. 2018): objects in captions of COCO's images that are not in them, as OPERA's chair.py."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.answers import Form, read_answer_rows
from sira_cli.eval.benchmark import AnswerFiles, Ask, Asking, Benchmark, Counted, Part, Texts
from sira_cli.eval.figures import (
    CHAIR_DENOMINATORS,
    TEXT_DENOMINATORS,
    chair_figures,
    mention_counts,
    text_counts,
    text_figures,
)
from sira_cli.eval.statistics import Denominators, ratio
from sira_cli.language import CHAIR_WORDS, Need, find_language
from sira_cli.pictures.rows import brief, entries, read_json, read_rows, some

PROMPT = "Please describe this image in detail."
RULES: dict[str, Need] = {"lemma": "lemmas", "singular": "singulars"}  # the part of the language that each rule needs
ANSWERS = "captions"  # name of the part when captions from elsewhere are scored
LENGTHS = (64, 512)  # of captions in tokens, as in the paper's Table 2
OVER_KINDS = "over kinds"  # 100 minus the precision of kinds
FORM = Form("caption", ("image_id",))  # of OPERA's chair.py
_SAMPLE = re.compile(r"(\d{1,7})@(\d{1,18})")  # number of images and seed, such as 500@0


class Chair(Benchmark):
    """CHAIR over some images of COCO; `truth` holds the objects in them."""

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
        sample: str = "",
    ) -> None:
        """Read COCO's folder.

        Args:
            annotations: the folder of COCO's instances and captions.
            ids: the images to caption.
            rule: `lemma` as OPERA's script, or `singular` as the first one.
            language: which data makes words singular: `auto`, or one of `language.CHOICES`.
            lengths: of captions in tokens, a part for each; none: one part.
            prompt: the request for a caption.
            sample: how `ids` were drawn, for the report.

        Raises:
            SettingsError: `rule` or `language` has another value.
            DataError: the annotations lack an image, or cannot be read.
        """
        if rule not in RULES:
            raise SettingsError(f"`rule=` {rule!r}: expected {' or '.join(RULES)}")
        self._rule = rule
        self._language = find_language(language, (RULES[rule],))
        self._sample = sample
        self._words: Callable[[str], list[str]] = getattr(self._language, RULES[rule])
        self.truth = find_truth(annotations, ids, self._words)
        asks = tuple(Ask(str(image), self.truth.names[image], prompt) for image in ids)
        parts = []
        for length in lengths:
            parts.append(Part(str(length), "caption", asks, (f"{length} tokens",), {"max_new_tokens": length}))
        self.parts = tuple(parts) or (Part(ANSWERS, "caption", asks, (ANSWERS,)),)

    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        """Count each caption."""
        for ask in part.asks:
            if ask.id in texts:
                text = texts[ask.id]
                read = mentions(self._words(text))
                truth = self.truth.objects[int(ask.id)]
                counts = mention_counts(read.heads, truth) | text_counts(text, read.heads) | {"tokens": read.length}
                yield Counted(ask.id, ask.picture, part.groups, truth.issuperset(read.heads), counts)

    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        """Return CHAIRs, CHAIRi, recall and length in tokens, in the official script's steps, and `text_figures`.

        After CHAIRi, which counts mentions, comes CHAIRi over the kinds of objects in each caption.
        """
        figures = chair_figures(total)
        absent_kinds = total["kinds"] - total["recalled objects"]
        return {
            "CHAIRs": figures["CHAIRs"],
            "CHAIRi": figures["CHAIRi"],
            OVER_KINDS: 100 * ratio(absent_kinds, total["kinds"]),
            "recall": figures["recall"],
            "length": 100 * ratio(0.01 * total["tokens"], total["captions"]),
            **text_figures(total),
        }

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of `chair_figures` and `text_figures`."""
        return CHAIR_DENOMINATORS | {OVER_KINDS: ("kinds",)} | TEXT_DENOMINATORS

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read captions of one method and one length."""
        (part,) = self.parts
        captions = read_captions(paths)
        missing = {int(ask.id) for ask in part.asks} - captions.keys()
        if missing:
            raise DataError(
                f"{some(paths, 3, 1_000)}: no caption of image {min(missing)} ({len(missing)} of {len(part.asks)} are "
                "missing): finish the run, or give `ids=` FILE with the images to score"
            )
        return {part.name: {ask.id: captions[int(ask.id)][0] for ask in part.asks}}

    def stand_ins(self) -> dict[str, str]:
        """Return the replacement of missing NLTK data."""
        if self._language.official:
            return {}
        return {part.name: "words without NLTK's data" for part in self.parts}

    def facts(self) -> dict[str, Any]:
        """Return the rule, the language with its versions, the annotation files, and the sample of images, if drawn."""
        facts = {"rule": self._rule, **self._language.facts()}
        if self._sample:
            facts["sample"] = self._sample
        facts["annotations"] = [str(path) for path in self.truth.files]
        return facts


def read_captions(paths: Sequence[Path]) -> dict[int, tuple[str, str]]:
    """Read captions by image, each with its file and row."""
    captions: dict[int, tuple[str, str]] = {}
    for path in paths:
        where = ""
        for where, row in read_answer_rows(path, FORM):
            image = image_of(row.get("image_id"))
            if image is None:
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
    lengths = _lengths(options)
    listed = Path(options.get("ids", path / "ids.txt"))
    drawn = None if listed.exists() else _SAMPLE.fullmatch(options.get("ids", ""))
    images: dict[int, str] | None = None
    if drawn is not None:
        images = sample_ids(path, int(drawn[1]), int(drawn[2]))
    elif "ids" in options or listed.is_file():
        images = read_ids(listed)
    if asking.sources:
        places, lengths = _answered(asking.sources, lengths)
        # The folder's list tells which captions are missing, unless they are of other images.
        if images is None or ("ids" not in options and not places.keys() <= images.keys()):
            images = places
    elif lengths and asking.max_new_tokens:
        raise SettingsError("give `lengths=` or `max_new_tokens=`, not both")
    elif asking.max_new_tokens:
        lengths = (asking.max_new_tokens,)
    else:
        lengths = lengths or LENGTHS
    if images is None:
        raise SettingsError(
            f"`ids=` FILE is needed: the images to caption, one id per line; or put it at {listed}; or `ids=` 500@0 "
            "draws 500 by the seed 0"
        )
    ids = [*itertools.islice(images, asking.limit)]
    given = asking.given("rule", "language", "prompt")
    try:
        return Chair(path, ids=ids, lengths=lengths, sample="" if drawn is None else drawn[0], **given)
    except UnknownImageError as error:
        raise DataError(f"{images[error.image]}: {error}") from None


def _lengths(options: Mapping[str, str]) -> tuple[int, ...]:
    """Return the lengths that are asked for, each once; empty if none are given."""
    if "lengths" not in options:
        return ()
    numbers = [text.strip() for text in options["lengths"].split(",")]
    if not all(number.isdecimal() and number.isascii() and int(number) for number in numbers):
        raise SettingsError(f"`lengths=` {options['lengths']}: expected numbers of tokens, such as 64,512")
    return tuple(dict.fromkeys(map(int, numbers)))


def _answered(sources: Sequence[AnswerFiles], asked: tuple[int, ...]) -> tuple[dict[int, str], tuple[int, ...]]:
    """Return the images of the captions in files, with a place of each, and their lengths, if all files record them."""
    places: dict[int, str] = {}
    recorded: list[set[int]] = []
    for source in sources:
        recorded.append(set())
        if not source.own:
            for image, (_, where) in read_captions(source.paths).items():
                places[image] = where
            continue
        for where, row in itertools.chain.from_iterable(map(read_rows, source.paths)):
            if row.get("schema") != "sira.caption/1" or not str(row.get("part", 0)).isdecimal():
                raise DataError(f"{where}: is not a caption of sira caption or sira eval chair")
            number = image_of(row["id"] if "id" in row else row["file_name"])
            if number is not None:
                places[number] = where
            if "part" in row:
                recorded[-1].add(int(row["part"]))
    every = sorted(set[int]().union(*recorded))
    several = max(map(len, recorded)) > 1
    if (several or len(asked) > 1) and not all(recorded):
        raise SettingsError("only captions of sira eval chair have several lengths: score each file by itself")
    if not asked and all(recorded) and (several or len(every) == 1):
        return places, tuple(every)
    return places, asked


def read_ids(path: Path) -> dict[int, str]:
    """Read a list of images, with the line of each: one per line, or a JSON array; numbers, or COCO's file names."""
    places: dict[int, str] = {}
    for where, entry in entries(path):
        image = image_of(entry)
        if image is None:
            raise DataError(f"{where}: expected an image's number or its file name in COCO, got {brief(entry)}")
        if image in places:
            raise DataError(f"{where}: image {image} is also in {places[image]}")
        places[image] = where
    if not places:
        raise DataError(f"{path}: holds no images")
    return places


def sample_ids(folder: Path, count: int, seed: int) -> dict[int, str]:
    """Draw images from COCO's files by a seed, each with its file; a smaller sample is the beginning of a larger one.

    The order is that of SHA-256 over `SEED:ID`, so that it is the same on every machine and in every version.
    """
    path = _pairs(folder)[0][1]  # the captions: they list the same images as the instances, and are smaller
    ids = {row["id"] for row in coco_rows(path, read_json(path), "images", id=int)}
    if not 0 < count <= len(ids):
        raise SettingsError(f"`ids=` {count}@{seed}: {path} has {len(ids):,} images: expected from 1 to that many")
    order = sorted(ids, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).digest())
    return dict.fromkeys(order[:count], str(path))


# The text rule, and the ground truth that it makes of COCO's annotation files. Oddities of the rule are also in the
# official scripts, and are kept because they change figures.

YEARS = ("2014", "2017")
SPLITS = ("val", "train")  # val first: it has all of CHAIR's usual images, and train is five times as large

_NAME = re.compile(r"(?:COCO_[a-z0-9]+_)?(\d{1,12})\.(?:jpg|jpeg|png)", re.IGNORECASE)


def read_synonyms(text: str) -> dict[str, str]:
    """Read every word of the list with the head of its line, which is the category's name in COCO.

    Lines are split at a comma and exactly one space, so " motor bike" and " cheesecake", which follow two spaces, keep
    one and never match a caption. iPhone never matches either, because captions are lower-cased.
    """
    heads: dict[str, str] = {}
    for line in text.splitlines():
        words = line.strip().split(", ")
        heads |= dict.fromkeys(words, words[0])
    return heads


HEADS = read_synonyms(CHAIR_WORDS.read_text(encoding="utf-8"))

_ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "animal", "cub")
_PAIRS = (
    *("motor bike", "motor cycle", "air plane", "traffic light", "street light", "traffic signal", "stop light"),
    *("fire hydrant", "stop sign", "parking meter", "suit case", "sports ball", "baseball bat", "baseball glove"),
    *("tennis racket", "wine glass", "hot dog", "cell phone", "mobile phone", "teddy bear", "hair drier"),
    *("potted plant", "laptop computer"),
    # Not objects: they keep their words from being taken for a plate (not an object either) or a train.
    *("home plate", "train track"),
)
# Pairs of words and their replacement. The official list also has "stove top oven": never found, as it has three.
MERGES = {
    **{pair: pair for pair in _PAIRS},
    **{f"{age} {animal}": animal for animal in _ANIMALS for age in ("baby", "adult")},  # not a person
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},  # also in place of the passenger
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # `singularize` of "wine glass"
}


@dataclass(frozen=True)
class Mentions:
    """The objects that a caption's tokens mention."""

    length: int  # number of tokens after merges, the official script's length of the caption
    words: tuple[str, ...]  # words of the list, in order, repeats included
    heads: tuple[str, ...]  # of `words`, their categories


def mentions(tokens: Sequence[str]) -> Mentions:
    """Apply the rule to lemmas or singulars: pairs are merged from the left, and a toilet's seat is no chair."""
    merged: list[str] = []
    place = 0
    while place < len(tokens):
        pair = " ".join(tokens[place : place + 2])
        merged.append(MERGES.get(pair, tokens[place]))
        place += 2 if pair in MERGES else 1
    seat = {"toilet", "seat"} <= {*merged}
    words = tuple(word for word in merged if word in HEADS and not (seat and word == "seat"))
    return Mentions(len(merged), words, tuple(HEADS[word] for word in words))


class UnknownImageError(DataError):
    """An image, by its id, that is not in COCO's annotation files."""

    def __init__(self, missing: Sequence[int], where: object) -> None:
        super().__init__(f"image {missing[0]} is not in {where} ({len(missing)} are missing)")
        self.image = missing[0]


@dataclass(frozen=True)
class Truth:
    """The objects in some images."""

    objects: dict[int, frozenset[str]]  # by image, the heads of CHAIR's list that are in it
    names: dict[int, str]  # by image, its file name
    files: tuple[Path, ...]  # from which they were read


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Find instances and captions of val, of train, or of both; the files of 2014 if there are two years."""
    for year in YEARS:
        for place in (folder, folder / "annotations"):
            pairs = []
            for split in SPLITS:
                instances = place / f"instances_{split}{year}.json"
                captions = place / f"captions_{split}{year}.json"
                if instances.is_file() and captions.is_file():
                    pairs.append((instances, captions))
            if pairs:
                return pairs
    raise DataError(
        f"{folder}: expected COCO's instances_val2014.json and captions_val2014.json (or those of train or 2017), "
        "here or in annotations/: get annotations_trainval2014.zip from https://cocodataset.org/#download"
    )


def find_truth(folder: Path, images: Collection[int], words: Callable[[str], Sequence[str]]) -> Truth:
    """Return the objects in some images: their instances' categories, and the mentions of their reference captions."""
    pairs = _pairs(folder)
    ids = {*images}
    names: dict[int, str] = {}
    objects: dict[int, set[str]] = {}
    for instances, captions in pairs:
        content = read_json(instances)
        if not isinstance(content, dict):
            raise DataError(f"{instances}: expected a JSON object, as in COCO's files")
        if "images" in content:
            for row in coco_rows(instances, content, "images", id=int, file_name=str):
                if row["id"] in ids:
                    names[row["id"]] = row["file_name"]
        for image, head in _heads(instances, content):
            if image in ids:
                objects.setdefault(image, set()).add(head)
        del content  # it may take hundreds of megabytes
        for row in coco_rows(captions, read_json(captions), "annotations", image_id=int, caption=str):
            if row["image_id"] in ids:
                objects.setdefault(row["image_id"], set()).update(mentions(words(row["caption"])).heads)
        for image in objects.keys() - names.keys():
            names[image] = f"COCO_{instances.stem.removeprefix('instances_')}_{image:012d}.jpg"
        if names.keys() == ids:
            break  # each image is in one split only: the rest need not be read
    missing = sorted(ids - names.keys())
    if missing:
        raise UnknownImageError(missing, " or ".join(str(instances) for instances, _ in pairs))
    files = tuple(itertools.chain.from_iterable(pairs))
    return Truth({image: frozenset(objects.get(image, ())) for image in images}, names, files)


def _heads(path: Path, content: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield image and head of every instance."""
    heads: dict[int, str] = {}
    for number, row in enumerate(coco_rows(path, content, "categories", id=int, name=str)):
        if row["name"] not in HEADS:
            raise DataError(f"{path}: categories[{number}]: {brief(row['name'])} is not in CHAIR's list of words")
        heads[row["id"]] = HEADS[row["name"]]
    for number, row in enumerate(coco_rows(path, content, "annotations", image_id=int, category_id=int)):
        if row["category_id"] not in heads:
            raise DataError(f"{path}: annotations[{number}]: category {row['category_id']} is not defined")
        yield row["image_id"], heads[row["category_id"]]


def coco_rows(path: Path, content: Any, entry: str, **fields: type) -> Iterator[dict[str, Any]]:
    """Yield the rows of a list in one of COCO's files, with some fields of these types."""
    rows = content.get(entry) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list {entry!r}, as in COCO's files")
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in fields.items()):
            expected = " and ".join(f"{name} ({kind.__name__})" for name, kind in fields.items())
            raise DataError(f"{path}: {entry}[{number}]: expected {expected}, got {brief(row, 80)}")
        yield row


def image_of(value: object) -> int | None:
    """Return the image of a number or of a COCO file name, with or without folders; None if it is neither."""
    if type(value) is int:
        return value
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    name = _NAME.fullmatch(re.split(r"[/\\]", text)[-1])
    return None if name is None else int(name[1])
