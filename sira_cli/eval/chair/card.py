"""CHAIR's card. Its code is imported when files are read: the catalogue is read whenever the command line starts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.options import Option

if TYPE_CHECKING:
    from sira_cli.eval.chair.benchmark import Chair

LENGTHS = (64, 512)  # of captions in tokens, as in the paper's Table 2
LANGUAGE = Option(
    "language",
    "words are split and lemmatized with NLTK's data (extra `eval`), or by an unofficial fallback",
    ("auto", "nltk", "fallback"),
    "auto",
)
PROMPT = Option("prompt", "text that asks for a caption, instead of the benchmark's", asks=True)


def _read(path: Path, asking: Asking) -> Chair:
    from sira_cli.eval.chair.benchmark import PROMPT as OFFICIAL
    from sira_cli.eval.chair.benchmark import Chair
    from sira_cli.eval.chair.coco import UnknownImageError
    from sira_cli.eval.chair.rows import answered, read_ids

    options = asking.options
    listed = Path(options["ids"]) if "ids" in options else path / "ids.txt"
    images = None
    if "ids" in options or (not asking.sources and listed.is_file()):
        images = dict(islice(read_ids(listed).items(), asking.limit))
    lengths = _lengths(options["lengths"]) if "lengths" in options else ()
    if asking.sources:
        lengths, images = answered(asking.sources, lengths, images, asking.limit)
    elif lengths and asking.max_new_tokens:
        raise SettingsError("give `lengths=` or `max_new_tokens=`, not both")
    else:
        lengths = (asking.max_new_tokens,) if asking.max_new_tokens else lengths or LENGTHS
    if images is None:
        raise SettingsError(f"`ids=` FILE is needed: the images to caption, one id per line; or put it at {listed}")
    try:
        return Chair.of(
            path,
            ids=list(images),
            rule=options.get("rule", "lemma"),
            language=options.get("language", "auto"),
            lengths=lengths,
            prompt=options.get("prompt", OFFICIAL),
        )
    except UnknownImageError as error:
        raise DataError(f"{images[error.image]}: {error}") from None


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(dict.fromkeys(int(part) if part.strip().isdecimal() else 0 for part in text.split(",")))
    if not all(lengths):
        raise SettingsError(f"`lengths=` {text}: expected numbers of tokens, such as 64,512")
    return lengths


CARD = Card(
    name="chair",
    title="Objects in captions that are not in the pictures",
    source="Rohrbach et al. 2018",
    figures="CHAIRs, CHAIRi, recall, length",
    files=("instances_val2014.json", "captions_val2014.json"),
    holds="COCO's instances_*.json and captions_*.json (or a JSON file of each image's objects)",
    size="0.2 GB of annotations; COCO val2014 (6 GB)",
    licence="CC BY 4.0",
    url="https://cocodataset.org (2014 Train/Val annotations)",
    answers='{"image_id", "caption"}',
    read=_read,
    folder="coco",
    options=(
        Option("ids", "file of the image ids to take, one per line", default="ids.txt in the folder, or all answered"),
        Option("lengths", "length limits in tokens", default="64,512, or the given length limit"),
        Option(
            "rule",
            "words are compared as lemmas, or as singulars as in the first script",
            ("lemma", "singular"),
            "lemma",
        ),
        LANGUAGE,
        PROMPT,
    ),
)
