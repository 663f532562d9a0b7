"""HallusionBench (Guan et al. 2024): the same questions about a picture and its changed copies, counted together.

The words of an answer make it yes, no or neither, as in VLMEvalKit without a judge. The authors let GPT-4 compare
answers with references; all later steps follow their utils.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sira_cli.data.rows import brief, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.eval.base import Part, Texts
from sira_cli.eval.card import WORDING, Asking, Card
from sira_cli.eval.stats.tally import Denominators, Tally, ratio
from sira_cli.eval.yes_no import Question, YesNo, ours, shared_figures

KEY = ("category", "subcategory", "set_id", "figure_id", "question_id")
EVERYTHING = "all questions"  # the part with those that have no picture; only answers of other tools have it
CAUSES = ("LH", "VI", "mixed")
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_PERIODS = 32  # vlmeval/smp/misc.py passes re.UNICODE where re.sub expects the number of replacements


@dataclass(frozen=True)
class Figured(Question):
    """A question about one figure of a set.

    Attributes:
        key: category, subcategory, set, figure and question, as in the file.
        visual: `0`: without a picture; `1`: the original picture; `2`: a changed one.
    """

    key: tuple[str, ...] = ()
    visual: str = "1"

    @property
    def supplement(self) -> bool:
        """Whether the question needs no picture (category VS), and is asked without one."""
        return self.key[0] == "VS" and self.key[3] == "0"


def extracted(text: str) -> str:
    """Return `yes` or `no` if the answer has just one of these words, else an empty string, as VLMEvalKit's yorn.py."""
    lower = text.lower()
    glued = re.search(r"\d,\d", lower) is not None
    said = lower
    for sign in _PUNCTUATION:
        said = said.replace(sign, "" if glued or f"{sign} " in lower or f" {sign}" in lower else " ")
    words = {*re.sub(r"(?<!\d)\.(?!\d)", "", said, count=_PERIODS).split()} & {"yes", "no"}
    return words.pop() if len(words) == 1 else ""


class Hallusion(YesNo):
    """HallusionBench's questions about pictures; in answers of other tools also those without one."""

    name = "hallusionbench"

    def __init__(self, questions: Sequence[Figured], known: Sequence[Figured]) -> None:
        """Take the questions to ask, and all questions of the file."""
        kinds = dict.fromkeys(" ".join(each.key[:2]) for each in questions)
        self._asked = tuple(questions)
        super().__init__(questions, ("with pictures", *_categories(questions), *kinds), known=known)
        self._everything = tuple(known)

    def said(self, question: Question, text: str) -> str:
        """Read an answer as VLMEvalKit."""
        return extracted(text)

    def right(self, question: Question, text: str) -> bool:
        """Return whether an answer counts; in category VS without a picture, neither yes nor no also does."""
        said = self.said(question, text)
        return said == question.expected or (not said and isinstance(question, Figured) and question.supplement)

    def score(self, part: Part, texts: Texts) -> dict[str, Tally]:
        """Count whole sets: figures and pairs of questions are inside of one. Sets without all answers are left out."""
        tallies = {group: Tally() for group in part.groups}
        for questions in _sets(self._everything if part.name == EVERYTHING else self._asked):
            if any(each.id not in texts for each in questions):
                continue
            counts = self._counts(questions, texts)
            for group in tallies:
                if _is_in(questions[0], group):
                    tallies[group].counts[questions[0].together] = counts
                    tallies[group].right |= {each.id: self.right(each, texts[each.id]) for each in questions}
        return tallies

    def _counts(self, questions: Sequence[Figured], texts: Texts) -> dict[str, float]:
        said = {each.key: self.said(each, texts[each.id]) for each in questions}
        right = {each.key: self.right(each, texts[each.id]) for each in questions}
        kinds = {f"{kind}s": _whole(questions, right, kind) for kind in ("figure", "pair", "easy pair", "hard pair")}
        wrong = [each for each in questions if not right[each.key]]
        causes = Counter(filter(None, (_cause(each, said, questions) for each in questions)))
        return {
            "right": sum(right.values()),
            **{name: len(of) for name, of in kinds.items()},
            **{f"{name} right": of.count(1) for name, of in kinds.items()},
            "figures wrong": kinds["figures"].count(0),
            "figures' shares": sum(kinds["figures"]),
            "yes": sum(right[each.key] == (each.expected == "yes") for each in questions),
            "true yes": sum(each.expected == "yes" for each in questions),
            "false": len(wrong),
            "false yes": sum(each.expected == "no" for each in wrong),
            **{name: causes[name] for name in CAUSES},
            "neither": sum(not each for each in said.values()),
            "words": sum(len(texts[each.id].split()) for each in questions),
            "answers": len(questions),
        }

    def figures(self, group: str, total: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of evaluation.py, all in percent.

        LH, VI and mixed (language hallucination, visual illusion) compare an answer with the one about the set's first
        figure; in VS they need the questions without a picture.
        """
        causes = sum(total[name] for name in CAUSES)
        shares = {
            "qAcc": ratio(total["pairs right"], total["pairs"]),
            "fAcc": ratio(total["figures right"], total["figures"]),
            "easy": ratio(total["easy pairs right"], total["easy pairs"]),
            "hard": ratio(total["hard pairs right"], total["hard pairs"]),
            "aAcc": ratio(total["right"], total["answers"]),
            "inconsistent": ratio(total["figures"] - total["figures right"] - total["figures wrong"], total["figures"]),
            "wrong": ratio(total["figures wrong"], total["figures"]),
            "per figure": ratio(total["figures' shares"], total["figures"]),
            "yes diff": ratio(total["yes"] - total["true yes"], total["answers"]),
            "FP ratio": ratio(total["false yes"], total["false"]),
        }
        if group.startswith(("VD", EVERYTHING)):
            shares |= {name: ratio(total[name], causes) for name in CAUSES}
        return {name: 100 * share for name, share in shares.items()} | shared_figures(total)

    def denominators(self, group: str) -> Denominators:
        """Return the counts that each share divides by; the difference of yes is not a share."""
        return {
            "qAcc": ("pairs",),
            **dict.fromkeys(("fAcc", "inconsistent", "wrong", "per figure"), ("figures",)),
            "easy": ("easy pairs",),
            "hard": ("hard pairs",),
            "aAcc": ("answers",),
            "neither": ("answers",),
            "FP ratio": ("false",),
            **dict.fromkeys(CAUSES, CAUSES),
        }

    def find(self, row: Mapping[str, Any], path: Path) -> str | None:
        """Find a question by the five keys of the authors' file, or by VLMEvalKit's index, which holds them."""
        if all(name in row for name in KEY):
            return super().find({"id": "_".join(str(row[name]) for name in KEY)}, path)
        parts = str(row.get("Index")).split("_")  # VD_illusion_1_0_0_0: the third says what the picture is
        return super().find({"id": "_".join(parts[:2] + parts[3:])} if len(parts) == 6 else row, path)

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        """Read one file; if it answers also the questions without a picture, these make a second part."""
        texts = super().read(paths)
        whole = type(self)(self._everything, self._everything)
        if len(self._asked) < sum(each.visual != "0" for each in self._everything):
            return texts  # a limit
        try:
            texts[EVERYTHING] = YesNo.read(whole, paths)[self.name]
        except DataError:  # some are missing: the rows themselves have been read above
            return texts
        if len(self.parts) == 1:
            groups = (EVERYTHING, f"{EVERYTHING} of VS")
            self.parts = (*self.parts, replace(whole.parts[0], name=EVERYTHING, groups=groups))
        return texts

    def official(self, question: Question, text: str) -> dict[str, Any]:
        """Return a row as evaluation.py reads it, without what GPT-4 adds."""
        assert isinstance(question, Figured)
        about = dict(zip(KEY, question.key, strict=True)) | {"visual_input": question.visual}
        truth = {"question": question.text, "gt_answer": str(int(question.expected == "yes"))}
        return about | truth | {"filename": f"./{question.picture}", "model_prediction": text}

    def details(self, part: Part, texts: Texts) -> Iterator[dict[str, Any]]:
        """Yield each answer of a part, and how it was read."""
        everything = self._everything if part.name == EVERYTHING else self._asked
        yield from YesNo.details(type(self)(everything, everything), part, texts)

    def stand_ins(self) -> dict[str, str]:
        """Return how answers are read: the authors use GPT-4."""
        return {part.name: "answers read by their words (VLMEvalKit), not by GPT-4" for part in self.parts}


def _categories(questions: Sequence[Figured]) -> list[str]:
    return sorted({each.key[0] for each in questions})


def _sets(questions: Sequence[Figured]) -> list[list[Figured]]:
    found: dict[tuple[str, ...], list[Figured]] = {}
    for each in questions:
        found.setdefault(each.key[:3], []).append(each)
    return list(found.values())


def _is_in(question: Figured, group: str) -> bool:
    category, kind = question.key[0], " ".join(question.key[:2])
    return group in ("with pictures", EVERYTHING, category, kind, f"{EVERYTHING} of {category}")


def _whole(questions: Sequence[Figured], right: Mapping[tuple[str, ...], bool], kind: str) -> list[float]:
    """Return the share of right answers of each figure, or of each question over its figures (`pair`).

    Args:
        questions: of one set.
        right: by key.
        kind: `figure`, or `pair`, of which `easy pair` takes the original figures and `hard pair` the changed ones.
    """
    found: dict[str, list[bool]] = {}
    for each in questions:
        if kind == "figure":
            if not each.supplement:
                found.setdefault(each.key[3], []).append(right[each.key])
        elif kind == "pair" or (each.visual == "2") == (kind == "hard pair"):
            found.setdefault(each.key[4], []).append(right[each.key])
    return [sum(of) / len(of) for of in found.values()]


def _cause(question: Figured, said: Mapping[tuple[str, ...], str], questions: Sequence[Figured]) -> str:
    """Return the reason that utils.py gives for a wrong answer: LH, VI, mixed; an empty string for a right one.

    There GPT-4 decides whether an answer repeats the one about the first figure (`same`); here both must be yes, or
    both no.
    """
    first = next((each for each in questions if each.key[3] == "0" and each.key[4] == question.key[4]), None)
    now = _correctness(question, said)
    if question.key[0] == "VD":
        before = now if first is None else _correctness(first, said)
        repeated = first is not None and said[first.key] == said[question.key]
        if now == "right":
            return ""
        return "mixed" if question is not first and (before, now) == ("right", "wrong") and repeated else "VI"
    if question.supplement or first is None:
        return "LH" if question.supplement and now == "wrong" else ""
    before, repeated = _correctness(first, said), said[first.key] == said[question.key]
    if now == "right":
        return ""
    if before == "wrong":
        return "LH" if now == "wrong" and repeated else "mixed"
    return "LH" if before == "right" and now == "wrong" and question.visual == "2" and repeated else "VI"


def _correctness(question: Figured, said: Mapping[tuple[str, ...], str]) -> str:
    answer = said[question.key]
    return "unclear" if not answer else "right" if answer == question.expected else "wrong"


def _read(folder: Path, asking: Asking) -> Hallusion:
    (path,) = CARD.find(folder)
    known = _questions(path, asking)
    first = {next((each.picture for each in of if each.picture), "") for of in _sets(known)[: asking.limit]}
    asked = [each for each in known if each.picture and each.visual != "0" and each.together in first]
    if not asked:
        raise DataError(f"{path}: holds no questions about pictures")
    return Hallusion(asked, known)


def _questions(path: Path, asking: Asking) -> list[Figured]:
    found: dict[str, Figured] = {}
    for where, row in read_rows(path):
        key = tuple(text_of(where, row, name) for name in KEY)
        truth, visual = str(row.get("gt_answer")), str(row.get("visual_input"))
        if truth not in ("0", "1") or visual not in ("0", "1", "2"):
            raise DataError(f"{where}: expected gt_answer 0 or 1 and visual_input 0, 1 or 2, got {brief(row, 200)}")
        if (id_ := "_".join(key)) in found:
            raise DataError(f"{where}: {id_} stands twice: every question needs its own ids")
        picture = "" if visual == "0" else text_of(where, row, "filename").removeprefix("./")
        text = text_of(where, row, "question")
        prompt = text if asking.wording == "official" else ours(text)
        found[id_] = Figured(id_, picture, text, prompt, ("no", "yes")[int(truth)], "", key=key, visual=visual)
    sets = _sets(list(found.values()))
    return [replace(each, together=_shared(of), picture=each.picture or _shared(of)) for of in sets for each in of]


def _shared(questions: Sequence[Figured]) -> str:
    """Return the first picture of a set, which identifies it."""
    return next((each.picture for each in questions if each.picture), "")


CARD = Card(
    name=Hallusion.name,
    title="Yes/no questions about pictures and their changed copies",
    source="Guan et al. 2024",
    figures="qAcc, fAcc, aAcc, easy, hard, LH, VI",
    files=("HallusionBench.json",),
    pictures="hallusion_bench",
    size="0.4 MB of questions; 346 pictures (hallusion_bench.zip)",
    licence="BSD-3-Clause",
    url="https://github.com/tianyi-lab/HallusionBench",
    main=("with pictures", "VD", "VS"),
    answers="the authors' rows with {model_prediction}",
    read=_read,
    options=(WORDING,),
    note="Answers are read by their words, as VLMEvalKit does; the authors let GPT-4 compare them.",
)
