"""POPE and RePOPE to the digit: every rule on odd answers, and over all nine files."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.figures import RULES
from sira_cli.eval.pope import Pope, read_questions
from tests.support.eval.writing import lines, read, save

# What an answer is taken for: yes, no, or neither, by the rules in their order; by VCD's if it is there, and if not.
ORDER = ("official", "opera", "strict", "repope")
GOLDEN = {
    "yy--ny": ("", "n o", "0", "nó"),
    "ynnnnn": ("NO", ".No", "NO."),
    "yynnnn": ("No!", "No\tdog", "“No”"),
    "yn--ny": ("isn't", "It isn't there."),
    "yyyyyn": ("Yes\nno", "Yes,no"),
    "yyyyyy": ("Yes, it is", "Yes.", "yes", "YES!"),
    "nnnnnn": ("No, there is no dog", "  no", "No.", "no", "no."),
    "yy-nnn": ("Nope", "noise", "Know", "cannot"),
    "yn-nnn": ("There is one. No",),
    "nn-nnn": ("There is no, dog", "I do not see it", "not. sure"),
    "nnyyyn": ("Yes no",),
}
ODD = [answer for answers in GOLDEN.values() for answer in answers]
MEANS = {"y": True, "n": False, "-": None}


@pytest.mark.parametrize("taken", GOLDEN)
def test_what_answers_are_taken_for(taken):
    for answer in GOLDEN[taken]:
        read = [RULES[rule](answer, expected) for rule in ORDER for expected in (True, False)]
        assert read == [MEANS[letter] for letter in taken[:4] for _ in range(2)], answer
        assert [RULES["vcd"](answer, expected) for expected in (True, False)] == [MEANS[each] for each in taken[4:]]


@pytest.fixture
def ask(tmp_path):

    def write(*labels: str, name: str = "coco_pope_random") -> Path:
        rows = [
            {"question_id": number, "image": f"{number // 3}.jpg", "text": f"Is there a {number}?", "label": label}
            for number, label in enumerate(labels, start=1)
        ]
        return lines(tmp_path / f"{name}.json", rows)

    return write


def texts(*answers: str, split: str = "coco random") -> dict[str, str]:
    return {f"{split}/{number}": answer for number, answer in enumerate(answers, start=1)}


def figures(benchmark: Pope, *answers: str) -> dict[str, float]:
    tally = benchmark.score(benchmark.parts[0], texts(*answers))["coco random"]
    return benchmark.figures("coco random", tally.total())


def test_neither_is_told_by_the_first_word_whatever_the_rule(ask):
    """Most rules take hedging for yes, so that only this figure shows it."""
    answers = ("Yes, there is.", "No.", "no", "I am not sure", "There isn't a dog", "Know? Yes", "Maybe", "YES")
    for rule in RULES:
        assert figures(Pope([ask(*["yes", "no"] * 4)], rule=rule), *answers)["neither"] == 50


def test_strict_counts_what_is_neither_as_wrong_but_in_no_cell(ask):
    benchmark = Pope([ask("yes", "yes", "no", "no")], rule="strict")
    answers = ("Yes", "Maybe", "No", "It isn't")
    tally = benchmark.score(benchmark.parts[0], texts(*answers))["coco random"]
    cells = ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no")
    assert [tally.total()[cell] for cell in cells] == [1, 0, 1, 0, 1, 1]
    found, names = figures(benchmark, *answers), ("accuracy", "recall", "precision", "neither", "yes")
    assert [found[name] for name in names] == [50, 50, 100, 50, 25]  # yes: one of all four
    assert figures(benchmark, "Yes", "Maybe", "Yes", "It isn't")["FPR"] == 50  # one of two, answered or not
    assert [*tally.right.values()] == [True, False, True, False]
    assert (benchmark.stand_ins(), Pope([ask("yes")]).stand_ins()) == ({"pope": "rule strict"}, {})


def test_a_question_that_two_splits_share_is_asked_once(ask):
    files = [ask("yes", "no"), ask("yes", "yes", name="coco_pope_popular")]
    asks = Pope(files, suffix=" One word.").parts[0].asks
    assert [each.id for each in asks] == ["coco random/1", "coco random/2", "coco popular/1", "coco popular/2"]
    assert [each.unit for each in asks] == 2 * ["0.jpg: Is there a 1?", "0.jpg: Is there a 2?"]
    assert asks[0].prompt == "Is there a 1? One word."


def test_one_file_need_not_be_a_list(ask):
    path = ask("yes", "no")
    for one in (path, str(path)):
        assert Pope(one).parts == Pope([path]).parts


def test_files_of_questions(ask, tmp_path):
    """They may be arrays without ids; names and rules have to be known."""
    content = [{"image": "a", "text": "b?", "label": label} for label in ("yes", "No ")]
    read = read_questions(save(tmp_path / "a.json", content))
    assert [(question.number, question.expected) for question in read] == [(1, True), (2, False)]
    with pytest.raises(SettingsError, match="another file is also named coco random"):
        Pope([ask("yes"), save(tmp_path / "b" / "coco_pope_random.json", content)])
    with pytest.raises(SettingsError, match="`rule=` 'loose': expected official, vcd, opera, strict, repope"):
        Pope([ask("yes")], rule="loose")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"holds no questions"),
        ('{"image"', r"line 1 is not JSON"),
        ('[{"image": "a", "text": "b"}]', r"row 1: expected label, found image, text"),
        ('{"image": "a", "text": "b", "label": "maybe"}', r"line 1: label must be yes or no, got 'maybe'"),
        (2 * '{"question_id": 1, "image": "a", "text": "b", "label": "no"}\n', r"line 2: question_id 1 stands twice"),
    ],
)
def test_bad_question_files_name_the_row(tmp_path, content: str, message: str):
    with pytest.raises(DataError, match=rf"coco_pope_random.json: {message}"):
        Pope([save(tmp_path / "coco_pope_random.json", content)])


@pytest.mark.parametrize(
    "rows",
    [
        [{"question": "Is there a 1?", "answer": "Yes"}, {"question": "Is there a 2? One word.", "answer": ""}],
        [
            {"question_id": 2, "text": ""},
            {"question_id": "1", "prompt": "USER: Is there a 1? ASSISTANT:", "text": "Yes", "image": "0.jpg"},
        ],
    ],
)
def test_both_forms_of_answer_files(ask, tmp_path, rows):
    benchmark = Pope([ask("yes", "no")])
    for path in (lines(tmp_path / "a.jsonl", rows), save(tmp_path / "a.json", rows)):
        assert benchmark.read([path]) == {"pope": texts("Yes", "")}


def test_answers_find_their_questions_by_name(ask, tmp_path):
    splits = ("random", "popular", "adversarial")
    benchmark = Pope([ask("yes", "no", name=f"coco_pope_{split}") for split in splits])
    said = {split: lines(tmp_path / f"vcd_coco_pope_{split}.jsonl", [{"answer": split}] * 2) for split in splits}
    expected = {id_: text for split in splits for id_, text in texts(split, split, split=f"coco {split}").items()}
    assert benchmark.read([said[split] for split in sorted(splits)])["pope"] == expected
    unnamed = [lines(tmp_path / f"{number}.jsonl", [{"answer": split}] * 2) for number, split in enumerate(splits)]
    mixed = [said["random"], said["popular"], unnamed[2]]
    for paths in (unnamed, mixed):
        assert benchmark.read(paths)["pope"] == expected
    with pytest.raises(SettingsError, match=r"vcd_coco_pope_popular.jsonl: the name does not match .*random"):
        benchmark.read([mixed[1], mixed[0], mixed[2]])
    with pytest.raises(SettingsError, match="1 files of answers to 3 files of questions"):
        benchmark.read(mixed[:1])


# All questions of the nine files; RePOPE: the same answers under corrected labels.


@pytest.fixture(scope="module")
def both(benchmarks: Path, tmp_path_factory) -> tuple[list[Path], list[Path]]:
    """POPE's files, and files like RePOPE's: some labels turned, some questions left out, ids and texts kept."""
    pope, repope = sorted((benchmarks / "pope" / "coco").glob("*.json")), []
    for path in pope:
        draw, kept = random.Random(path.name), []
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if (fate := draw.random()) >= 0.08:
                turned = {"yes": "no", "no": "yes"}[row["label"]]
                kept.append(row | ({"label": turned} if fate < 0.2 else {}))
        repope.append(lines(tmp_path_factory.mktemp("repope") / path.name.replace("_pope_", "_repope_"), kept))
    return pope, repope


def plain(pairs: list[tuple[bool, bool | None]]) -> dict[str, float]:
    """The figures of (true answer, answer as it is read) in percent, by their definitions; None is in no cell."""
    tp, fn, fp, tn = (pairs.count(pair) for pair in itertools.product((True, False), (True, False)))
    every = tp + fn + fp + tn
    found = {"accuracy": Fraction(tp + tn, every), "precision": Fraction(tp, tp + fp), "recall": Fraction(tp, tp + fn)}
    found |= {"F1": Fraction(2 * tp, 2 * tp + fp + fn), "FPR": Fraction(fp, fp + tn), "yes": Fraction(tp + fp, every)}
    return {name: float(100 * share) for name, share in found.items()}


@pytest.mark.parametrize("rule", ["official", "vcd", "repope"])
def test_all_nine_files_by_exact_fractions(rule: str, benchmarks, both):
    pope = sorted((benchmarks / "pope").glob("*/*.json"))
    repope = both[1] if rule == "repope" else []
    benchmark = Pope(pope, rule=rule, repope=repope[::-1])
    (part,) = benchmark.parts
    assert (len(pope), len(part.asks)) == (9, 27_000)  # for RePOPE, nothing more is asked
    splits = [path.stem.replace("_pope_", " ") for path in pope]
    assert part.groups == (*splits, *(f"{split}, RePOPE" for split in splits if repope and split.startswith("coco")))
    assert benchmark.means(part) == {"mean": tuple(splits), "mean, RePOPE": part.groups[9:]}
    odd = itertools.cycle([*ODD, *ODD[::3]])  # its length has no factor in common with the order of labels
    answers = {each.id: next(odd) for each in part.asks}
    tallies = benchmark.score(part, answers)
    for path, group in zip([*pope, *repope], part.groups, strict=True):
        questions = [json.loads(line) for line in path.read_text().splitlines()]
        labels = [row["label"] == "yes" for row in questions]
        said = [answers[f"{group.removesuffix(', RePOPE')}/{row['question_id']}"] for row in questions]
        expected = plain([(label, RULES[rule](text, label)) for label, text in zip(labels, said, strict=True)])
        found = benchmark.figures(group, tallies[group].total())
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-13)
        assert len(tallies[group].right) == len(questions)


def test_files_of_repope_go_with_the_questions(both):
    (pope, *others), (repope, other, _) = both
    limited = Pope([pope], repope=[repope], limit=90)
    first, corrected = limited.score(limited.parts[0], {each.id: "Yes" for each in limited.parts[0].asks}).values()
    assert 60 < len(corrected.right) < len(first.right) == 90
    with pytest.raises(DataError, match=r"coco_repope_popular.json: question \d+, 'Is there .* is not in any of the"):
        Pope([pope], repope=[other])
    with pytest.raises(SettingsError, match="another file is also of coco adversarial"):
        Pope([pope, *others], repope=[repope, repope])


@pytest.fixture(scope="module")
def editions(benchmarks, tmp_path_factory) -> tuple[Path, Path]:
    """COCO's adversarial file as VCD ships it, and as POPE and RePOPE have it."""
    vcd = benchmarks / "pope" / "coco" / "coco_pope_adversarial.json"
    text = vcd.read_text(encoding="utf-8")
    assert text.count("in the imange?") == 57
    return vcd, save(tmp_path_factory.mktemp("own") / vcd.name, text.replace("imange", "image"))


@pytest.mark.parametrize("order", [1, -1])
def test_repopes_labels_go_with_both_editions(editions, order):
    one, other = editions[::order]
    assert Pope([one], repope=[other]).parts[0].groups == ("coco adversarial", "coco adversarial, RePOPE")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("form", ["answer", "text", "filtered_resps"])
def test_answers_to_one_edition_are_scored_with_the_other(editions, tmp_path, order, form):
    one, other = editions[::order]
    expected, rows = {}, []
    for row in read(other):
        number, text = row["question_id"], f"Yes, {row['question_id']}"
        expected[f"coco adversarial/{number}"] = text
        asked = {"question": row["text"], "answer": text}
        if form == "text":
            asked = {"question_id": number, "prompt": row["text"], "text": text}
        if form == "filtered_resps":
            asked = {"input": row["text"], "filtered_resps": [text], "pope_accuracy": {"question_id": str(number)}}
        rows.append(asked)
    assert Pope([one]).read([lines(tmp_path / "a.jsonl", rows)]) == {"pope": expected}


@pytest.mark.parametrize("form", ["a person", "an umbrella"])
def test_another_object_is_another_question(editions, tmp_path, form):
    rows = [{"question": row["text"], "answer": "Yes"} for row in read(editions[0])]
    rows[10]["question"] = f"Is there {form} in the image?"
    benchmark, file = Pope(editions[1:]), lines(tmp_path / "a.jsonl", rows)
    if form == "an umbrella":  # is asked
        assert len(benchmark.read([file])["pope"]) == 3000
    else:
        with pytest.raises(DataError, match="line 11: answers 'Is there a person in the image"):
            benchmark.read([file])
