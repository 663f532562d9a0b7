"""Methods side by side: intervals, differences, paired tests, means; and which files are which method's."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from sira_cli.bootstrap import Figure, draws, interval
from sira_cli.cli.eval_table import print_report
from sira_cli.errors import SettingsError
from sira_cli.eval.answers import SAME, AnswerFiles, Answers, Failure, find_files, read_answers
from sira_cli.eval.base import Ask, Benchmark, Part, Tally
from sira_cli.eval.formats import to_csv, to_latex
from sira_cli.eval.names import named_after
from sira_cli.eval.paired import mcnemar, resample
from sira_cli.eval.pope import Pope
from sira_cli.eval.report import EvalReport, Row


@pytest.mark.parametrize("only_first", range(0, 40, 3))
@pytest.mark.parametrize("only_second", [0, 1, 5, 20, 300])
def test_mcnemar_is_the_binomial_test_of_discordant_answers(only_first: int, only_second: int):
    discordant = only_first + only_second
    expected = stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
    assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(only_second, only_first) == mcnemar(only_first, only_second)


def share(total: Mapping[str, float]) -> dict[str, float]:
    return {"share": 100 * total["right"] / total["all"] if total["all"] else 0.0}


def counts(right: list[bool], times: int = 1) -> list[dict[str, float]]:
    return [{"right": times * one, "all": times} for one in right]


def test_an_interval_is_as_wide_as_that_of_a_mean():
    right = [number % 10 < 7 for number in range(500)]
    found = interval(70.0, resample(counts(right), share)["share"])
    error = 100 * np.sqrt(0.7 * 0.3 / 500)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert (found.high + found.low) / 2 == pytest.approx(70, abs=0.3)


def test_questions_about_one_picture_are_drawn_together():
    """Ten equal answers about a picture tell as much as one."""
    right = [number % 3 > 0 for number in range(90)]
    one, ten = (resample(counts(right, times), share)["share"] for times in (1, 10))
    assert np.array_equal(one, ten)


class Made(Benchmark):
    """A benchmark of two groups: what is said is right if it is `1`."""

    name = "made"
    averaged = True

    def __init__(self, pictures: int = 40) -> None:
        asks = (Ask(f"{group}/{number}", f"{number}.jpg", "?") for group in "ab" for number in range(pictures))
        self.parts = (Part("only", "ask", tuple(asks), ("a", "b")),)

    def score(self, part, texts):
        tallies = {group: Tally() for group in part.groups}
        for ask in part.asks:
            if ask.id in texts:
                tally, right = tallies[ask.id[0]], texts[ask.id] == "1"
                tally.counts[ask.picture] = {"right": right, "all": 1}
                tally.right[ask.id] = right
        return tallies

    def figures(self, group, total):
        return share(total)

    def reduce(self, part, text):
        return text.rstrip(".")

    def read(self, paths):
        return {"only": json.loads(paths[0].read_text())}

    def export(self, texts, folder):
        raise NotImplementedError


def said(name: str, a: str, b: str) -> Answers:
    texts = {f"{group}/{number}": text for group, row in (("a", a), ("b", b)) for number, text in enumerate(row)}
    return Answers(name, {"only": {ask: text for ask, text in texts.items() if text != "-"}})


def test_methods_side_by_side():
    report = EvalReport.of(
        Made(4), [said("base", "1100", "1111"), said("new", "1011", "1110"), said("same", "1100", "1111")]
    )
    found = {(row.group, row.method): row for row in report.rows}
    assert list(found) == [(group, method) for group in ("a", "b", "mean") for method in ("base", "new", "same")]
    assert [row.figures["share"].value for row in found.values()] == [50, 75, 50, 100, 75, 100, 75, 75, 75]
    assert found["a", "base"].differences == {}
    assert found["a", "new"].differences["share"].value == 25
    assert found["mean", "new"].differences["share"].value == 0
    for group in ("a", "b", "mean"):
        nothing = found[group, "same"].differences["share"]
        assert (nothing.value, nothing.low, nothing.high) == (0, 0, 0)
    tests = {
        (test.group, test.first, test.second): (test.only_first, test.only_second, test.p) for test in report.tests
    }
    assert tests == {
        ("a", "base", "new"): (1, 2, 1.0),
        ("a", "base", "same"): (0, 0, 1.0),
        ("a", "new", "same"): (2, 1, 1.0),
        ("b", "base", "new"): (1, 0, 1.0),
        ("b", "base", "same"): (0, 0, 1.0),
        ("b", "new", "same"): (0, 1, 1.0),
    }


def test_a_mean_is_of_methods_with_answers_in_all_groups():
    report = EvalReport.of(Made(4), [said("base", "1111", "1111"), said("new", "1111", "----")])
    assert [row.method for row in report.rows if row.group == "mean"] == ["base"]


def test_draws_do_not_depend_on_the_order_of_answers():
    """Pictures are drawn by name."""
    made = Made()
    mixed = Made()
    (part,) = mixed.parts
    mixed.parts = (dataclasses.replace(part, asks=part.asks[::-1]),)
    first, second = (EvalReport.of(one, [said("base", "10010" * 8, "1" * 40)]) for one in (made, mixed))
    assert first.rows == second.rows


def test_a_difference_is_paired():
    """Of methods that differ on few answers it is known better than the figures are."""
    base = "10" * 20
    report = EvalReport.of(Made(), [said("base", base, base), said("new", "11" + base[2:], base)])
    row = next(row for row in report.rows if (row.group, row.method) == ("a", "new"))
    figure, difference = row.figures["share"], row.differences["share"]
    assert difference.value == pytest.approx(2.5)
    assert difference.high - difference.low < (figure.high - figure.low) / 3


def test_what_failed_under_one_method_counts_for_none():
    report = EvalReport.of(Made(4), [said("base", "1100", "1111"), said("new", "00--", "1111")])
    found = {(row.group, row.method): row for row in report.rows}
    assert (found["a", "new"].answered, found["a", "new"].failed) == (2, 2)
    assert found["a", "new"].figures["share"].value == 0
    assert found["a", "base"].figures["share"].value == 100
    assert found["a", "base"].counts == {"right": 2, "all": 2}
    assert (found["mean", "new"].answered, found["mean", "new"].failed) == (6, 2)
    assert (found["mean", "base"].answered, found["mean", "base"].failed) == (6, 2)  # the same pictures for both
    test = next(test for test in report.tests if test.group == "a")
    assert (test.only_first, test.only_second) == (2, 0)


@pytest.mark.parametrize("first", ["base", "new"])
def test_differences_are_of_the_same_draws_when_a_picture_failed(first: str):
    """What was drawn is reckoned again, picture by picture."""
    rows = {"base": "1101", "new": "-011"}
    second = next(name for name in rows if name != first)
    answers = [said(name, rows[name], "1111") for name in (first, second)]
    row = next(row for row in EvalReport.of(Made(4), answers).rows if (row.group, row.method) == ("a", second))
    drawn = {}
    for name, texts in rows.items():
        known = list(zip(draws(3).T, texts[1:], strict=True))  # the first picture counts for none
        right = sum(weights for weights, text in known if text == "1")
        drawn[name] = 100 * right / 3
    expected = np.percentile(drawn[second] - drawn[first], [2.5, 97.5])
    difference = row.differences["share"]
    assert [difference.low, difference.high] == pytest.approx(expected)


def test_a_mean_is_drawn_by_picture():
    """Where one group is right about a picture and the other wrong, the mean is the same in every draw."""
    report = EvalReport.of(Made(4), [said("base", "1100", "0011")])
    mean = next(row for row in report.rows if row.group == "mean").figures["share"]
    assert (mean.value, mean.low, mean.high) == (50, 50, 50)


def test_differences_are_to_the_first_method_or_none():
    """Also in a group that the first method has no answers of."""
    nothing = said("first", "----", "1111")
    report = EvalReport.of(Made(4), [nothing, said("second", "1111", "1111"), said("third", "1010", "1111")])
    differences = {(row.group, row.method): row.differences for row in report.rows}
    assert differences["a", "third"] == differences["mean", "third"] == {}
    assert differences["b", "third"]["share"].value == 0


def test_a_group_of_which_everything_failed_has_no_row_but_failures():
    nothing = said("new", "----", "1111")
    nothing.failures.append(Failure("new", "only", "0.jpg", "gone"))
    report = EvalReport.of(Made(4), [said("base", "1111", "1111"), nothing])
    assert [(row.group, row.method) for row in report.rows if row.method == "new"] == [("b", "new")]
    assert json.loads(report.to_json())["failures"] == [
        {"method": "new", "part": "only", "picture": "0.jpg", "error": "gone"}
    ]


# --- which files are which method's


@pytest.fixture
def files(tmp_path: Path):
    def write(**contents: dict) -> list[Path]:
        paths = [tmp_path / f"{name}.jsonl" for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_text(json.dumps(content) + "\n")
        return paths

    return write


OWN = {"schema": "sira.ask/1", "method": "vcd", "id": "a/0", "part": "only", "text": "1", "status": "ok"}


def test_files_are_named_by_label_method_or_name(files, tmp_path):
    paths = files(llava={"answer": "a"}, shard_1=OWN, shard_2=OWN)
    sources = find_files([f"mine={paths[0]}", str(paths[0]), *map(str, paths[1:])])
    assert [(source.label, len(source.paths), source.own) for source in sources] == [
        ("vcd", 2, True),
        ("mine", 1, False),
        ("llava", 1, False),
    ]
    (source,) = find_files([str(tmp_path)])  # of a folder, only what sira wrote
    assert (source.label, source.paths) == ("vcd", tuple(paths[1:]))


QUESTIONS = [Path("pope/coco_pope_random.json"), Path("pope/coco_pope_popular.json")]


def methods(sources: list[AnswerFiles]) -> dict[str, list[str]]:
    return {source.label: [path.stem for path in source.paths] for source in sources}


def test_files_of_one_method_go_with_several_question_files(files):
    """By their names, as a shell sorts those of VCD; else in the given order."""
    names = [f"{model}_coco_pope_{split}_{how}" for model in "ab" for split in ("popular", "random") for how in "xy"]
    paths = files(**{name: {} for name in names})
    assert methods(find_files(list(map(str, paths)), QUESTIONS)) == {
        f"{model}_coco_pope_{how}": [f"{model}_coco_pope_{split}_{how}" for split in ("random", "popular")]
        for model in "ab"
        for how in "xy"
    }
    paths = [str(path) for path in files(base_1={}, base_2={}, new_1={}, new_2={})]
    assert methods(find_files(paths, QUESTIONS)) == {"base": ["base_1", "base_2"], "new": ["new_1", "new_2"]}
    with pytest.raises(SettingsError, match="3 files of answers to 2 files of questions"):
        find_files(paths[:3], QUESTIONS)


def test_a_folder_tells_methods_apart(tmp_path):
    paths = [tmp_path / method / f"{split}.jsonl" for split in ("popular", "random") for method in ("base", "new")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}\n")
    found = find_files(list(map(str, paths)), QUESTIONS)
    assert [source.paths for source in found] == [(paths[2], paths[0]), (paths[3], paths[1])]
    assert [source.label for source in found] == ["base-answers", "new-answers"]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("vcd_coco_pope_random.jsonl", 0),
        ("POPULAR.json", 1),
        ("random-popular.json", None),
        ("randomly.json", None),
        ("coco_pope.json", None),
    ],
)
def test_a_file_is_named_after_its_questions(name, named):
    assert named_after(Path("answers", name), QUESTIONS) == (None if named is None else QUESTIONS[named])
    assert named_after(Path(name), QUESTIONS[:1]) is None
    assert named_after(Path(name), []) is None


def test_greedy_is_what_others_are_compared_with(files):
    paths = files(dola={**OWN, "method": "dola"}, greedy={**OWN, "method": "greedy"})
    assert [source.label for source in find_files(list(map(str, paths)))] == ["greedy", "dola"]


def test_one_name_for_two_methods_is_refused(files):
    paths = files(vcd={"answer": ""}, mine=OWN)
    with pytest.raises(SettingsError, match="'vcd' names two methods: use LABEL=FILE"):
        find_files(list(map(str, paths)))


def test_a_file_may_have_an_equals_sign_in_its_name(files):
    (path,) = files(**{"alpha=1": {"answer": ""}})
    assert find_files([str(path)])[0].label == "alpha=1"


def test_the_newest_record_counts(tmp_path):
    path = tmp_path / "vcd.jsonl"
    rows = [
        {**OWN, "text": "", "status": "error", "error": "gone"},
        {**OWN, "text": "1"},
        {**OWN, "text": "1"},
        {**OWN, "id": "a/1", "text": "1"},
        {**OWN, "id": "b/0", "text": "", "status": "error", "error": "gone"},
        {**OWN, "id": "of another file", "text": "1"},
        {**OWN, "id": "b/1", "text": "1"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = read_answers(Made(2), find_files([str(path)])[0])
    assert answers.texts == {"only": {"a/0": "1", "a/1": "1", "b/1": "1"}}
    assert answers.failures == [Failure("vcd", "only", "0.jpg", "gone")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    with pytest.raises(SettingsError, match=r"no answer to 'b/1' and 0 more of 4: is it finished"):
        read_answers(Made(2), find_files([str(path)])[0])


FOUR = ("a/0", "a/1", "b/0", "b/1")


def write_own(path: Path, **changes) -> AnswerFiles:
    """Records of all four asks; `changes` by id, with / as _."""
    records = [{**OWN, "id": ask, **changes.get(ask.replace("/", "_"), {})} for ask in FOUR]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return find_files([str(path)])[0]


def test_one_file_must_not_answer_the_same_differently(tmp_path):
    path = tmp_path / "vcd.jsonl"
    write_own(path)
    path.write_text(path.read_text() + json.dumps({**OWN, "id": "a/1", "text": "0"}) + "\n")
    with pytest.raises(SettingsError, match=r"line 5: 'a/1' has another answer in .*line 2: keep one of the two"):
        read_answers(Made(2), find_files([str(path)])[0])


def test_a_record_takes_the_place_of_an_earlier_one(tmp_path):
    error = {"status": "error", "error": "gone"}
    path = tmp_path / "vcd.jsonl"
    write_own(path, a_1=error)
    lines = path.read_text()
    path.write_text(lines + json.dumps({**OWN, "id": "a/1", "text": "0"}) + "\n")
    answers = read_answers(Made(2), find_files([str(path)])[0])
    assert (answers.texts["only"]["a/1"], answers.failures) == ("0", [])
    path.write_text(lines + json.dumps({**OWN, "id": "a/0", **error}) + "\n")
    answers = read_answers(Made(2), find_files([str(path)])[0])
    assert sorted(answers.texts["only"]) == ["b/0", "b/1"]
    assert [failure.picture for failure in answers.failures] == ["0.jpg", "1.jpg"]


def test_only_what_sira_answered_is_reduced(tmp_path):
    own = write_own(tmp_path / "vcd.jsonl", a_0={"text": "1."})
    assert read_answers(Made(2), own).texts["only"]["a/0"] == "1"
    (tmp_path / "other.json").write_text(json.dumps(dict.fromkeys(FOUR, "1.")))
    (other,) = find_files([str(tmp_path / "other.json")])
    assert read_answers(Made(2), other).texts["only"]["a/0"] == "1."


@pytest.mark.parametrize("setting", [name for name in SAME if name != "method"])
def test_records_of_one_method_have_the_same_settings(tmp_path, setting):
    files = write_own(tmp_path / "vcd.jsonl", b_1={setting: "another"})
    with pytest.raises(SettingsError, match=f"line 4: {setting} is 'another' here and None before: .* LABEL=FILE"):
        read_answers(Made(2), files)


def test_two_files_must_not_answer_the_same_differently(tmp_path):
    write_own(tmp_path / "one.jsonl")
    write_own(tmp_path / "two.jsonl")
    assert read_answers(Made(2), find_files([str(tmp_path)])[0]).texts["only"]["b/1"] == "1"
    write_own(tmp_path / "two.jsonl", b_1={"text": "0"})
    with pytest.raises(SettingsError, match=r"two.jsonl: line 4: 'b/1' has another answer in .*one.jsonl: line 4"):
        read_answers(Made(2), find_files([str(tmp_path)])[0])


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_an_answer_stands_whatever_the_order_of_files(tmp_path, order):
    write_own(tmp_path / "one.jsonl")
    write_own(tmp_path / "two.jsonl", b_1={"status": "error", "text": "", "error": "gone"})
    (files,) = find_files([str(tmp_path / f"{name}.jsonl") for name in order])
    answers = read_answers(Made(2), files)
    assert (answers.texts["only"]["b/1"], answers.failures) == ("1", [])


def test_records_of_another_benchmark_are_no_answers(tmp_path):
    path = tmp_path / "vcd.jsonl"
    path.write_text(json.dumps({**OWN, "id": "another"}) + "\n")
    with pytest.raises(SettingsError, match=r"vcd.jsonl: no record there answers what made asks"):
        read_answers(Made(2), find_files([str(path)])[0])


def test_records_without_id_are_told_by_picture_and_prompt(tmp_path):
    """As `sira ask` writes them."""
    rows = [{"image": "0.jpg", "text": text, "label": "yes"} for text in ("A dog?", "A dog? Or two?")]
    (tmp_path / "made.json").write_text(json.dumps(rows))
    prompts = {"USER: A dog? Or two? ASSISTANT:": "No", "A dog? Please answer this question with one word.": "Yes"}
    record = {"schema": "sira.ask/1", "method": "sira", "file_name": "../pictures/0.jpg", "status": "ok"}
    records = [{**record, "prompt": prompt, "text": text} for prompt, text in prompts.items()]
    records.append({**record, "file_name": "1.jpg", "prompt": "A dog?", "text": "No"})
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    (files,) = find_files([str(tmp_path / "own.jsonl")])
    answers = read_answers(Pope([tmp_path / "made.json"]), files)
    assert answers.texts == {"pope": {"made/1": "Yes", "made/2": "No"}}


# --- formats


def test_csv_has_a_line_a_row_with_its_interval():
    report = EvalReport.of(Made(), [said("base", "10" * 20, "1" * 40)])
    lines = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [line["group"] for line in lines] == ["a", "b", "mean"]
    low, value, high = (float(lines[0][name]) for name in ("share low", "share", "share high"))
    assert low < value == 50 < high
    figure = report.rows[0].figures["share"]
    assert (low, high) == (figure.low, figure.high)


@dataclasses.dataclass
class Named(Made):
    """With figures of any names, the same for all methods but the first; not official."""

    figure: str = "share"

    def __post_init__(self) -> None:
        super().__init__(2)

    def figures(self, group, total):
        return {self.figure: share(total)["share"]}

    def stand_ins(self):
        return {"only": "a coin"}


@pytest.mark.parametrize("name", ["FPR", "CHAIRs", "CHAIRi", "CHAIR", "Hal", "Cog"])
def test_latex_knows_what_should_be_low(name):
    lines = to_latex(EvalReport.of(Named(name), [said("base", "11", "11"), said("new", "10", "11")])).splitlines()
    assert lines[0] == "% NOT the official figures: a coin"
    assert rf"{name}$\downarrow$" in lines[3]
    assert lines[5:7] == [r"a & base & 100.00 \\", r" & new & \textbf{50.00} \\"]


@pytest.mark.parametrize("name", ["yes", "neither", "words", "length"])
def test_latex_prefers_none_of_what_is_neither_good_nor_bad(name):
    latex = to_latex(EvalReport.of(Named(name), [said("base", "11", "11"), said("new", "10", "11")]))
    assert "arrow" not in latex
    assert "textbf" not in latex


def made_report(*rows: tuple[str, str, str, dict[str, float], dict[str, float] | None], **more) -> EvalReport:
    """Of part, group, method, figures and the paper's."""
    made = [
        Row(
            part,
            group,
            method,
            8,
            0,
            {},
            {name: Figure(value, value, value) for name, value in figures.items()},
            {},
            of,
        )
        for part, group, method, figures, of in rows
    ]
    settings = {row.method: {} for row in made}
    known = {"stand_ins": {}, "facts": {}, "not_run": {}, "paper": ""} | more
    return EvalReport(benchmark="made", settings=settings, rows=tuple(made), tests=(), failures=(), **known)


def test_latex_has_a_table_a_part_and_the_papers_rows():
    report = made_report(
        ("one", "a~b", r"x\y^2", {"accuracy": 50.0, "yes": 40.0}, {"accuracy": 61.25}),
        ("two", "c", "50%", {"Hal": 12.345}, None),
    )
    assert (
        to_latex(report)
        == r"""\begin{tabular}{llrr}
\toprule
 & Method & accuracy$\uparrow$ & yes \\
\midrule
a\~{}b & x\textbackslash{}y\^{}2 & 50.00 & 40.00 \\
 & x\textbackslash{}y\^{}2 (paper) & 61.25 &  \\
\bottomrule
\end{tabular}

\begin{tabular}{llr}
\toprule
 & Method & Hal$\downarrow$ \\
\midrule
c & 50\% & 12.35 \\
\bottomrule
\end{tabular}
"""
    )


@pytest.mark.parametrize(
    ("columns", "heads", "left_out"),
    [(80, "share hits neither words", ""), (44, "share hits", ""), (24, "share", "too narrow for hits: see --json")],
)
def test_a_narrow_table_leaves_out_what_one_can_do_without(monkeypatch, columns, heads, left_out):
    figures = {"share": 50.0, "hits": 7.0, "neither": 1.0, "words": 2.5}
    out = printed(made_report(("one", "all", "a_name_of_its_own", figures, None)), monkeypatch, columns)
    assert next(line for line in out.splitlines() if "share" in line).split() == heads.split()
    assert "50.0" in out
    assert "…" not in out  # names go on in the next line, and no figure is cut
    assert ("too narrow" in out) == bool(left_out)
    assert left_out in out


def test_remarks_say_what_was_not_run_and_what_decides(monkeypatch):
    report = made_report(
        ("one", "all", "base", {"share": 50.0}, {"share": 61.25}),
        ("one", "all", "other", {"share": 50.0}, None),
        not_run={"other": "base"},
        paper="llava-1.5-7b",
        facts={"rule": "official", "questions": {"a": "b"}, "language": "nltk"},
    )
    assert printed(report, monkeypatch, 200).splitlines()[-5:] == [
        "in percent but for words and length, ± half a 95 % interval (bootstrap over pictures)",
        "p: McNemar's exact test, on which answers only one of base and the method is right",
        "other: not run, as it picks what base picks unless one samples",
        "in the paper: llava-1.5-7b; nothing there of other",
        "rule: official, language: nltk",
    ]


def printed(report: EvalReport, monkeypatch, columns: int) -> str:
    console = Console(width=columns, file=io.StringIO(), highlight=False)
    monkeypatch.setattr("sira_cli.cli.eval_table.table_console", lambda: console)
    print_report(report)
    return console.file.getvalue()


def test_latex_of_one_method_has_no_best():
    assert "textbf" not in to_latex(EvalReport.of(Made(2), [said("base", "11", "11")]))


def test_the_table_has_p_values_and_says_what_is_not_official(capsys):
    print_report(EvalReport.of(Named("share"), [said("base", "11", "11"), said("[red]new", "10", "11")]))
    out = capsys.readouterr().out
    assert "only: NOT the official figures: a coin" in out
    assert [line.split()[-1] for line in out.splitlines() if "[red]new" in line] == ["1.000", "1.000", "±25.0"]
    report = EvalReport.of(Made(), [said("base", "1" * 40, "1" * 40), said("new", "0" * 40, "1" * 40)])
    print_report(report)
    out = capsys.readouterr().out
    assert "NOT the official" not in out
    assert [line.split()[-1] for line in out.splitlines() if line.split()[:1] == ["new"]] == ["<0.001", "1.000", "±0.0"]


@pytest.mark.parametrize(("columns", "expected"), [(200, "50.0 ±50.0"), (24, "50.0")])
def test_a_narrow_table_leaves_intervals_out(monkeypatch, columns, expected):
    out = printed(EvalReport.of(Made(2), [said("base", "10", "11"), said("new", "10", "11")]), monkeypatch, columns)
    row = next(line for line in out.splitlines() if line.split()[:1] == ["base"])
    assert row.split(maxsplit=1)[1].strip() == expected
    assert "…" not in out.split("in percent")[0]
