"""Match files of answers to files of questions and to methods, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def named_after(answers: Path, questions: Sequence[Path]) -> Path | None:
    """Return the only file of questions whose name occurs in a file name of answers; None unless there is exactly one.

    Only words that differ between files of questions count: `random` and `popular` in `coco_pope_random.json` and
    `coco_pope_popular.json`. So `vcd_coco_pope_random.jsonl` and `random.jsonl` belong to
    the first.
    """
    words = {path: {*_words(path)} for path in questions}
    shared = set.intersection(*words.values()) if words else set()
    found = [path for path in questions if words[path] - shared and words[path] - shared <= {*_words(answers)}]
    return found[0] if len(found) == 1 else None


def by_method(answers: Sequence[Path], questions: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Group files of answers by method: in each group, one file per file of questions.

    If all names contain the name of their questions, the rest of the name and the folder identify the method.
    Otherwise consecutive files belong to one method. Without questions every file is a method of its own.
    """
    named: dict[tuple[Path, frozenset[str]], dict[Path | None, Path]] = {}
    for path in answers:
        asked = named_after(path, questions)
        rest = frozenset(_words(path)) - frozenset(_words(asked) if asked else ())
        named.setdefault((path.parent, rest), {})[asked] = path
    complete = all(files.keys() == {*questions} for files in named.values())
    if complete and sum(map(len, named.values())) == len(answers):
        return [tuple(files[asked] for asked in questions) for files in named.values()]
    size = len(questions) or 1
    return [tuple(answers[start : start + size]) for start in range(0, len(answers), size)]


def labels(methods: Sequence[tuple[Path, ...]]) -> list[str]:
    """Name methods by the words that all their files share, and by the folder if these are not enough."""
    names = []
    for first, *others in methods:
        shared = [word for word in _words(first) if all(word in _words(other) for other in others)]
        names.append(("_".join(shared) or "answers") if others else first.stem)
    return [
        name if names.count(name) == 1 else f"{paths[0].parent.name}-{name}"
        for name, paths in zip(names, methods, strict=True)
    ]


def _words(path: Path) -> list[str]:
    return re.findall(r"[^\W_]+", path.stem.lower())
