"""POPE to the digit: every rule on odd answers, and over all nine files."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.figures import RULES
from sira_cli.eval.pope import Pope, read_questions

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
        found = [RULES[rule](answer, there) for rule in ORDER for there in (True, False)]
        assert found == [MEANS[letter] for letter in taken[:4] for _ in range(2)], answer
        assert [RULES["vcd"](answer, there) for there in (True, False)] == [MEANS[letter] for letter in taken[4:]]


@pytest.fixture
def file(tmp_path: Path):
    def write(rows: list[dict] | str, name: str = "coco_pope_random.json") -> Path:
        path = tmp_path / name
        path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def rows(*labels: str) -> list[dict]:
    return [
        {"question_id": number, "image": f"{number // 3}.jpg", "text": f"Is there a {number}?", "label": label}
        for number, label in enumerate(labels, start=1)
    ]


def texts(*answers: str, split: str = "coco random") -> dict[str, str]:
    return {f"{split}/{number}": answer for number, answer in enumerate(answers, start=1)}


def figures(benchmark: Pope, answers: dict[str, str], split: str = "coco random") -> dict[str, float]:
    return benchmark.figures(split, benchmark.score(benchmark.parts[0], answers)[split].total())


def test_figures_by_hand(file):
    benchmark = Pope([file(rows("yes", "yes", "yes", "no", "no"))])
    found = figures(benchmark, texts("Yes", "Yes", "No", "Yes", "No it is not"))
    assert found == pytest.approx(
        {"accuracy": 60, "F1": 200 / 3, "precision": 200 / 3, "recall": 200 / 3, "FPR": 50, "yes": 60}
        | {"neither": 0, "words": 8 / 5}
    )


def test_neither_is_told_by_the_first_word_whatever_the_rule(file):
    """Most rules take hedging for yes, so that only this figure shows it."""
    answers = ("Yes, there is.", "No.", "no", "I am not sure", "There isn't a dog", "Know? Yes", "Maybe", "YES")
    for rule in RULES:
        benchmark = Pope([file(rows(*["yes", "no"] * 4))], rule=rule)
        assert figures(benchmark, texts(*answers))["neither"] == 50


def test_no_such_rule(file):
    with pytest.raises(SettingsError, match="`rule=` 'loose': expected official, vcd, opera, strict, repope"):
        Pope([file(rows("yes"))], rule="loose")


def test_strict_counts_what_is_neither_as_wrong_but_in_no_cell(file):
    benchmark = Pope([file(rows("yes", "yes", "no", "no"))], rule="strict")
    tally = benchmark.score(benchmark.parts[0], texts("Yes", "Maybe", "No", "It isn't"))["coco random"]
    total = tally.total()
    assert [total[cell] for cell in ("TP", "FP", "TN", "FN", "unanswered yes", "unanswered no")] == [1, 0, 1, 0, 1, 1]
    found = benchmark.figures("coco random", total)
    assert (found["accuracy"], found["recall"], found["precision"], found["neither"]) == (50, 50, 100, 50)
    assert found["yes"] == 25  # of all four
    answers = texts("Yes", "Maybe", "Yes", "It isn't")
    assert figures(benchmark, answers)["FPR"] == 50  # one of two no-questions, answered or not
    assert benchmark.stand_ins() == {"pope": "rule strict"}
    assert Pope([file(rows("yes"))]).stand_ins() == {}
    assert tally.right == dict(zip(texts("", "", "", ""), (True, False, True, False), strict=True))


def test_a_question_that_two_splits_share_is_asked_once(file):
    one, other = file(rows("yes", "no")), file(rows("yes", "yes"), "coco_pope_popular.json")
    asks = Pope([one, other], suffix=" One word.").parts[0].asks
    assert [ask.id for ask in asks] == ["coco random/1", "coco random/2", "coco popular/1", "coco popular/2"]
    assert [ask.unit for ask in asks] == 2 * ["0.jpg: Is there a 1?", "0.jpg: Is there a 2?"]
    assert asks[0].prompt == "Is there a 1? One word."


def test_question_files_may_be_arrays_without_ids(file):
    content = [{name: row[name] for name in ("image", "text", "label")} for row in rows("yes", "No ")]
    found = read_questions(file(json.dumps(content, indent=1)))
    assert [(asked.number, asked.expected) for asked in found] == [(1, True), (2, False)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"holds no questions"),
        ('{"image"', r"line 1 is not JSON"),
        ('{\n"image": "a"\n}', r"line 1: expected one object per line, or one JSON array of objects"),
        ('[{"image": "a", "text": "b"}]', r"row 1: expected label, found image, text"),
        ('{"image": "a", "text": "b", "label": "maybe"}', r"line 1: label must be yes or no, got 'maybe'"),
        (2 * '{"question_id": 1, "image": "a", "text": "b", "label": "no"}\n', r"line 2: question_id 1 stands twice"),
    ],
)
def test_bad_question_files_name_the_row(file, content: str, message: str):
    with pytest.raises(DataError, match=rf"coco_pope_random.json: {message}"):
        Pope([file(content)])


def read(benchmark: Pope, path: Path) -> dict[str, str]:
    return benchmark.read([path])["pope"]


def test_both_forms_of_answer_files(file):
    benchmark = Pope([file(rows("yes", "no"))])
    plain = [{"question": "Is there a 1?", "answer": "Yes"}, {"question": "Is there a 2? One word.", "answer": ""}]
    prompt = "USER: Is there a 1? ASSISTANT:"
    numbered = [{"question_id": 2, "text": ""}, {"question_id": "1", "prompt": prompt, "text": "Yes", "image": "0.jpg"}]
    expected = texts("Yes", "")
    assert read(benchmark, file(plain, "a.jsonl")) == expected
    assert read(benchmark, file(numbered, "b.jsonl")) == expected
    assert read(benchmark, file(json.dumps(plain), "c.json")) == expected


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"answer": "Yes"}], r"line 1: the file ends after 1 of 2 answers: question 2 of \S+ has none"),
        (3 * [{"answer": "Yes"}], r"line 3: too many answers: \S+ has 2 questions"),
        (
            [{"question": "Is it?", "answer": "Yes"}],
            r"line 1: answers 'Is it\?' about 0.jpg, but question 1 of \S+ is ",
        ),
        ([{"question_id": 1, "text": "a"}, {"question_id": 1, "text": "b"}], r"line 2: question 1 is answered twice"),
        ([{"question_id": 1, "text": "a"}, {"question_id": 9, "text": "b"}], r"line 2: question_id 9 is not in"),
        ([{"question_id": 1, "text": float("nan")}], r"line 1: cannot be read as JSON: NaN is not a number"),
        ([{"question_id": 1, "note": "a"}], r"line 1: expected an answer with .*, found question_id, note"),
    ],
)
def test_answers_that_do_not_match_name_the_row(file, answers: list[dict], message: str):
    benchmark = Pope([file(rows("yes", "no"))])
    with pytest.raises(DataError, match=rf"a.jsonl: {message}"):
        read(benchmark, file(answers, "a.jsonl"))


def test_every_question_file_needs_its_answers(file):
    benchmark = Pope([file(rows("yes")), file(rows("no"), "coco_pope_popular.json")])
    with pytest.raises(SettingsError, match="1 files of answers to 2 files of questions"):
        benchmark.read([file([{"answer": "Yes"}], "a.jsonl")])


def test_answers_find_their_questions_by_name(file):
    splits = ("random", "popular", "adversarial")
    labels = {"random": ("yes", "no"), "popular": ("no", "no"), "adversarial": ("no", "yes")}
    benchmark = Pope([file(rows(*labels[split]), f"coco_pope_{split}.json") for split in splits])
    said = {split: file([{"answer": split}] * 2, f"vcd_coco_pope_{split}.jsonl") for split in splits}
    expected = {ask: text for split in splits for ask, text in texts(split, split, split=f"coco {split}").items()}
    assert benchmark.read([said[split] for split in sorted(splits)])["pope"] == expected
    unnamed = [file([{"answer": split}] * 2, f"{number}.jsonl") for number, split in enumerate(splits)]
    assert benchmark.read(unnamed)["pope"] == expected
    (mixed := list(said.values()))[2] = unnamed[2]
    assert benchmark.read(mixed)["pope"] == expected
    with pytest.raises(SettingsError, match=r"vcd_coco_pope_popular.jsonl: the name does not match .*random"):
        benchmark.read([mixed[1], mixed[0], mixed[2]])


def test_details_say_what_an_answer_was_taken_for(file):
    benchmark = Pope([file(rows("yes", "no", "yes"))], rule="strict")
    found = list(benchmark.details(benchmark.parts[0], texts("Yes", "Yes", "Hm")))
    assert [(row["label"], row["taken_for"], row["right"]) for row in found] == [
        ("yes", "yes", True),
        ("no", "yes", False),
        ("yes", "", False),
    ]


@pytest.fixture(scope="module")
def nine(benchmarks: Path) -> tuple[list[Path], Pope]:
    paths = sorted((benchmarks / "pope").glob("*/*.json"))
    assert len(paths) == 9
    return paths, Pope(paths)


@pytest.mark.parametrize("rule", ["official", "vcd"])
def test_all_nine_files_by_exact_fractions(rule: str, nine: tuple[list[Path], Pope]):
    paths, benchmark = nine
    benchmark.rule = rule
    (part,) = benchmark.parts
    assert len(part.asks) == 27_000
    odd = itertools.cycle([*ODD, *ODD[::3]])  # its length has no factor in common with the order of labels
    answers = {ask.id: next(odd) for ask in part.asks}
    tallies = benchmark.score(part, answers)
    for path, split in zip(paths, part.groups, strict=True):
        labels = [json.loads(line)["label"] == "yes" for line in path.read_text().splitlines()]
        said = [RULES[rule](answers[f"{split}/{n}"], there) for n, there in enumerate(labels, start=1)]
        pairs = list(zip(labels, said, strict=True))
        tp, fn, fp, tn = (pairs.count(pair) for pair in itertools.product((True, False), (True, False)))
        expected = {
            "accuracy": Fraction(tp + tn, 3000),
            "precision": Fraction(tp, tp + fp),
            "recall": Fraction(tp, tp + fn),
            "F1": Fraction(2 * tp, 2 * tp + fp + fn),
            "FPR": Fraction(fp, fp + tn),
            "yes": Fraction(sum(said), 3000),
        }
        found = benchmark.figures(split, tallies[split].total())
        assert {name: found[name] for name in expected} == pytest.approx(
            {name: float(100 * value) for name, value in expected.items()}, rel=1e-14
        )


def test_two_files_of_one_name_are_refused(file, tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "coco_pope_random.json").write_text(json.dumps(rows("yes")[0]))
    with pytest.raises(SettingsError, match="another file is also named coco random"):
        Pope([file(rows("yes")), tmp_path / "b" / "coco_pope_random.json"])
