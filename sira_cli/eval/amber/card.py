"""AMBER's card. Its code is imported when files are read: the catalogue is read whenever the command line starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.errors import SettingsError
from sira_cli.eval.base import ONE_WORD, first_pictures
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.chair.card import LANGUAGE, PROMPT
from sira_cli.eval.options import Option
from sira_cli.eval.pope_card import SUFFIX

if TYPE_CHECKING:
    from sira_cli.eval.amber.benchmark import Amber

DIMENSIONS = ("existence", "attribute", "relation")


def _read(path: Path, asking: Asking) -> Amber:
    from sira_cli.eval.amber.benchmark import PARTS, Amber
    from sira_cli.eval.amber.data import read_numbers
    from sira_cli.eval.amber.similarity import find_similarity
    from sira_cli.language.language import find_language

    CARD.find(path / "data" if (path / "data").is_dir() else path)  # the folder, or AMBER's repository
    options = asking.options
    task = options.get("task", "all")
    captions, questions = task in ("generative", "all"), task != "generative"
    reduced = options.get("reduce") == "yes"
    if "prompt" in options and not captions:
        raise SettingsError("`prompt=`: asks for captions: leave it out, or `task=`")
    if reduced and all(source.own for source in asking.sources):
        raise SettingsError("`reduce=` yes is for answers from other tools: sira's own are read that way: leave it out")
    benchmark = Amber.of(  # questions need neither nouns nor vectors
        path,
        language=find_language(options.get("language", "auto") if captions else "fallback", ["nouns"]),
        similarity=find_similarity(options.get("similarity", "spacy") if captions else "exact"),
        parts=PARTS[not captions : 1 + questions],
        suffix=options.get("suffix", ONE_WORD),
        prompt=options.get("prompt"),
        reduced=reduced,
    )
    if "ids" in options:
        benchmark = benchmark.picked(read_numbers(Path(options["ids"])))
    if task in DIMENSIONS:
        benchmark = benchmark.only(task)
    if asking.limit is None:
        return benchmark
    return replace(benchmark, parts=tuple(first_pictures(part, asking.limit) for part in benchmark.parts))


CARD = Card(
    name="amber",
    title="Captions and yes/no questions about 1,004 pictures",
    source="Wang et al. 2023",
    figures="CHAIR, Cover, Hal, Cog; accuracy, precision, recall, F1",
    files=("annotations.json", "relation.json", "safe_words.txt", "query"),
    size="7 MB of files; 1,004 pictures",
    licence="Apache-2.0",
    url="https://github.com/junyangwang0410/AMBER",
    answers='{"id", "response"}',
    read=_read,
    main=("generative", "discriminative", *DIMENSIONS),
    options=(
        Option(
            "task",
            "captions, yes/no questions, one dimension of the questions, or all",
            ("generative", "discriminative", *DIMENSIONS, "all"),
            "all",
        ),
        Option(
            "similarity",
            "how words compare: spacy (en_core_web_lg), exact, auto (spacy if installed), a spaCy pipeline, or a .json "
            "file of numbers",
            default="spacy",
        ),
        LANGUAGE,
        Option("ids", "file with the ids of AMBER's queries to take, one per line", default="all"),
        PROMPT,
        SUFFIX,
        Option("reduce", "normalise answers from other tools: `Yes.` counts as Yes", ("yes", "no"), "no"),
    ),
)
