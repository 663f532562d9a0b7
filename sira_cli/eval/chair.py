"""CHAIR (Rohrbach et al. 2018): objects in captions of COCO's images that are not in them, as OPERA's chair.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
            annotations: COCO's folder, its subfolder `annotations`, or a table of ground truth that is ready.
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
        self.truth = find_truth(annotations, ids, self._words, rule=rule, **self._language.facts())
        asks = tuple(Ask(str(image), self.truth.names[image], prompt) for image in ids)
        self.parts = tuple(
            Part(str(length), "caption", asks, (f"{length} tokens",), {"max_new_tokens": length}) for length in lengths
        ) or (Part(ANSWERS, "caption", asks, (ANSWERS,)),)

    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        """Count each caption; of several about an image all. Details are the official script's record; Len is 0."""
        for ask in part.asks:
            truth = self.truth.objects[int(ask.id)]
            for number in itertools.count(1):
                if (text := texts.get(_numbered(ask.id, number))) is None:
                    break
                read = mentions(self._words(text))
                counts = mention_counts(read.heads, truth) | text_counts(text, read.heads)
                counts["tokens"] = len(read.tokens)
                every = zip(read.words, read.heads, read.places, strict=True)
                wrong = [mention for mention in every if mention[1] not in truth]
                details = {
                    "image_id": int(ask.id),
                    "caption": text,
                    "mscoco_hallucinated_words": [[word, head] for word, head, _ in wrong],
                    "mscoco_gt_words": sorted(truth),
                    "mscoco_generated_words": list(read.heads),
                    "hallucination_idxs": [place for _, _, place in wrong],
                    "words": list(read.tokens),
                    "metrics": {
                        "CHAIRs": int(bool(wrong)),
                        "CHAIRi": ratio(len(wrong), len(read.words)),
                        "Recall": ratio(len(truth.intersection(read.heads)), len(truth)),
                        "Len": 0.0,
                    },
                }
                yield Counted(ask.id, ask.picture, part.groups, not wrong, counts, details)

    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        """Return CHAIRs, CHAIRi, recall and length in tokens, in the official script's steps, and `text_figures`."""
        length = 100 * ratio(0.01 * total["tokens"], total["captions"])
        return chair_figures(total) | {"length": length} | text_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the denominators of `chair_figures` and `text_figures`."""
        return CHAIR_DENOMINATORS | TEXT_DENOMINATORS

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read captions of one method and one length; the second one of an image has the id of its ask and `#2`."""
        (part,) = self.parts
        captions = read_captions(paths)
        asked = {int(ask.id) for ask in part.asks}
        if missing := [image for image in sorted(asked) if image not in captions]:
            files = some(paths, 3, 1_000)
            raise DataError(f"{files}: no caption of image {missing[0]} ({len(missing)} of {len(asked)} are missing)")
        several = ((ask.id, enumerate(captions[int(ask.id)], start=1)) for ask in part.asks)
        return {part.name: {_numbered(id_, number): text for id_, given in several for number, (text, _) in given}}

    def stand_ins(self) -> dict[str, str]:
        """Return the replacements of missing NLTK data, and of COCO's annotations."""
        used = [] if self._language.official else ["words without NLTK's data"]
        used += ["ground truth from a table"] if self.truth.ready else []
        return {part.name: ", ".join(used) for part in self.parts if used}

    def facts(self) -> dict[str, Any]:
        """Return the rule, the language with its versions, and the annotation files."""
        return {"rule": self._rule, **self._language.facts(), "annotations": [str(path) for path in self.truth.files]}


def _numbered(ask: str, number: int) -> str:
    return ask if number == 1 else f"{ask}#{number}"


def read_captions(paths: Sequence[Path]) -> dict[int, list[tuple[str, str]]]:
    """Read captions by image, each with its file and row: one or several per image, the same number for all."""
    captions: dict[int, list[tuple[str, str]]] = {}
    for path in paths:
        where = ""
        for where, row in read_answer_rows(path, FORM):
            captions.setdefault(_image_of_row(where, row, "image_id"), []).append((row["text"], where))
        if not where:
            raise DataError(f"{path}: holds no captions")
    most = max(captions, key=lambda image: len(captions[image]))
    for image, given in captions.items():
        if len(given) < len(captions[most]):
            places = " and ".join(where for _, where in captions[most][:2])
            raise DataError(
                f"image {most} has {len(captions[most])} captions ({places}), image {image} has {len(given)} "
                f"({given[0][1]}): give one per image, or the same number"
            )
    return captions


def opened(path: Path, asking: Asking) -> Chair:
    """Read CHAIR as `sira eval` asks for it."""
    options = asking.options
    listed = Path(options.get("ids", path / "ids.txt"))
    lengths = tuple(
        dict.fromkeys(int(each) if each.strip().isdecimal() else 0 for each in options["lengths"].split(","))
        if "lengths" in options
        else ()
    )
    if not all(lengths):
        raise SettingsError(f"`lengths=` {options['lengths']}: expected numbers of tokens, such as 64,512")
    images = read_ids(listed) if "ids" in options or (not asking.sources and listed.is_file()) else None
    if asking.sources:
        places, recorded = _answered(asking.sources, find_images=images is None)
        images, lengths = images or places, _lengths_of(recorded, lengths)
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


def _answered(sources: Sequence[AnswerFiles], *, find_images: bool) -> tuple[dict[int, str], list[set[int]]]:
    """Return the images of the captions in files, with a place of each, and each method's lengths, where recorded."""
    places: dict[int, str] = {}
    recorded: list[set[int]] = []
    for source in sources:
        recorded.append(set())
        if not source.own:
            if find_images:
                places |= {image: given[0][1] for image, given in read_captions(source.paths).items()}
            continue
        for where, row in (row for path in source.paths for row in read_rows(path)):
            if row.get("schema") != "sira.caption/1" or not str(row.get("part", 0)).isdecimal():
                raise DataError(f"{where}: is not a caption of sira caption or sira eval chair")
            if find_images:
                places[_image_of_row(where, row, "id", "file_name")] = where
            recorded[-1] |= {int(row["part"])} if "part" in row else set()
    return places, recorded


def _lengths_of(recorded: Collection[set[int]], asked: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of the captions in files: those that are asked for, else those that all files record."""
    if len(asked) > 1 and not all(recorded):
        raise SettingsError("`lengths=`: only captions of sira eval chair have several lengths: give one, or none")
    every = set[int]().union(*recorded)
    if asked or (all(recorded) and (max(map(len, recorded)) > 1 or len(every) == 1)):
        return asked or tuple(sorted(every))
    if any(len(one) > 1 for one in recorded):
        raise SettingsError("`answers=`: some files hold captions of several lengths: score each file by itself")
    return ()


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


def _image_of_row(where: str, row: dict[str, Any], *names: str) -> int:
    """Return the image that the first of some fields names."""
    name = next((name for name in names if name in row), None)
    if name is None:
        raise DataError(f"{where}: expected {' or '.join(names)}, found {some(row) or 'nothing'}")
    if (image := _image(row[name])) is None:
        raise DataError(f"{where}: {name} is not an image of COCO: {brief(row[name])}")
    return image


def _image(value: Any) -> int | None:
    return value if type(value) is int else image_of(value) if isinstance(value, str) else None
