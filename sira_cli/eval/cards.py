"""The benchmarks of `sira eval`: facts, and options.

A benchmark's module is imported when its files are read: the cards are read whenever the command line starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sira_cli.errors import SettingsError
from sira_cli.eval.benchmark import ONE_WORD, Card, Option

POPE_RULES = ("official", "vcd", "opera", "strict", "repope")
DIMENSIONS = ("existence", "attribute", "relation")  # of AMBER's questions
SIMILARITIES = ("spacy", "exact", "auto")
TASKS = ("generative", "discriminative", *DIMENSIONS, "all")

SUFFIX = Option("suffix", "text after each yes/no question; empty: none", default=ONE_WORD)
LANGUAGE = Option(
    "language",
    "words are split and lemmatized with NLTK's data (extra `eval`), or by an unofficial fallback",
    ("auto", "nltk", "fallback"),
    "auto",
)
CHAIR_RULE = Option(
    "rule", "words are compared as lemmas, or as singulars as in the first script", ("lemma", "singular"), "lemma"
)
PROMPT = Option("prompt", "text that asks for a caption, instead of the benchmark's", asks=True)

CARDS = {
    "pope": Card(
        name="pope",
        title="Yes/no questions about objects",
        source="Li et al. 2023",
        figures="accuracy, F1, precision, recall, FPR, yes-rate",
        files="POPE's files of questions, one per split, such as coco_pope_random.json",
        size="0.3 MB per file; COCO val2014 (6 GB)",
        licence="MIT",
        url="https://github.com/RUCAIBox/POPE (folder output/coco)",
        answers='{"question", "answer"} in the order of the questions, {"question_id", "text"}, or pope-audit\'s',
        several=True,
        options=(
            Option("rule", "script whose rule decides what counts as yes or no", POPE_RULES, "official"),
            Option("repope", "RePOPE's files, their folder or a pattern: also show figures with its corrected labels"),
            SUFFIX,
        ),
        folder="pope",
        note="RePOPE's files (Neuhaus and Hein 2025): https://github.com/YanNeu/RePOPE (folder annotations).",
    ),
    "chair": Card(
        name="chair",
        title="Objects in captions that are not in the pictures",
        source="Rohrbach et al. 2018",
        figures="CHAIRs, CHAIRi, the same over kinds, recall, length, F1, words",
        files="COCO's instances_*.json and captions_*.json",
        size="0.2 GB of annotations; COCO val2014 (6 GB)",
        licence="CC BY 4.0",
        url="https://cocodataset.org (2014 Train/Val annotations)",
        answers='{"image_id", "caption"}',
        options=(
            Option(
                "ids", "file of image ids, one per line; or N@SEED draws N", default="ids.txt there, else all answered"
            ),
            Option("lengths", "length limits in tokens", default="64,512, or the given length limit"),
            CHAIR_RULE,
            LANGUAGE,
            PROMPT,
        ),
        folder="coco",
    ),
    "amber": Card(
        name="amber",
        title="Captions and yes/no questions about 1,004 pictures",
        source="Wang et al. 2023",
        figures="CHAIR, Cover, Hal, Cog; accuracy, precision, recall, F1",
        files="annotations.json, relation.json, safe_words.txt and query/",
        size="7 MB of files; 1,004 pictures",
        licence="Apache-2.0",
        url="https://github.com/junyangwang0410/AMBER",
        answers='{"id", "response"}',
        options=(
            Option("task", "captions, yes/no questions, one dimension of the questions, or all", TASKS, "all"),
            Option("similarity", "how words compare; auto: by spaCy if it is installed", SIMILARITIES, "spacy"),
            LANGUAGE,
            PROMPT,
            SUFFIX,
        ),
        folder="amber",
    ),
}


def find_cards(names: Sequence[str]) -> list[Card]:
    """Return the cards of benchmarks."""
    for number, name in enumerate(names):
        if name not in CARDS:
            raise SettingsError(f"{name}: no benchmark has this name: expected {', '.join(CARDS)}")
        if name in names[:number]:
            raise SettingsError(f"{name}: is named twice: name it once")
    return [CARDS[name] for name in names]


def options_of_each(
    cards: Sequence[Card], given: Sequence[str], *, answered: bool = False
) -> dict[str, dict[str, str]]:
    """Return the options of every benchmark, by its name, from texts such as `pope.rule=vcd`."""
    options: dict[str, dict[str, str]] = {card.name: {} for card in cards}
    for text in given:
        target, equals, value = text.partition("=")
        only, _, name = target.rpartition(".")
        named = [card for card in cards if only in ("", card.name)]
        having = {}
        for card in named:
            for option in card.options:
                if equals and option.name == name:
                    having[card.name] = option
        wrong = ""
        if not equals:
            wrong = "expected NAME=VALUE, such as rule=strict"
        elif not named:
            wrong = f"{only} is not among the benchmarks: {', '.join(options)}"
        elif not having:
            known = sorted({option.name for card in named for option in card.options})
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            instead = f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}"
            wrong = f"no such option of {', '.join(card.name for card in named)}: {instead}"
        for benchmark, option in having.items():
            if option.choices and value not in option.choices:
                raise SettingsError(f"`{name}=` {value}: expected {', '.join(option.choices)}")
            if option.asks and answered:
                wrong = "is for runs: leave it out, or give `images=`, not `answers=`"
            elif option.asks and not value.strip():
                wrong = "is empty: give a text, or leave it out"
            elif name in options[benchmark]:
                wrong = f"{name} is given twice"
            options[benchmark][name] = value
        if wrong:
            raise SettingsError(f"`option=` {text}: {wrong}")
    return options
