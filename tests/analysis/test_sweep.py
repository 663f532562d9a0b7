"""`sira sweep`: every answer against `generate`, figures by hand, resuming, what is refused, what is written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sira_cli import methods
from sira_cli.analysis import sweep as sweeping
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.analysis.sweep import (
    CAPTIONS_RULE,
    GREEDY,
    Cell,
    Grid,
    SweepReport,
    by_captions,
    by_score,
    decisive,
    paper,
    parse_alphas,
    parse_ks,
    spread,
    sweep,
)
from sira_cli.cli.research import _write_preset
from sira_cli.cli.terminal.output import print_tables, save_plot
from sira_cli.demo.measure import measure
from sira_cli.demo.questions import SPLITS, Questions, held_out, validation_questions
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.eval.benchmark import ONE_WORD
from sira_cli.eval.statistics import Figure
from sira_cli.models import presets
from sira_cli.run.events import Advanced, FailedPicture, StageStarted
from sira_cli.run.lvlm import Lvlm, load

GRID = Grid((1, 4, 7), (0.5, 2.0))


@pytest.fixture(scope="module")
def lvlm() -> Lvlm:
    return load("demo")


@pytest.fixture(autouse=True)
def few_scenes_to_count(monkeypatch):
    """What goes together is counted in fewer scenes: it takes seconds and decides nothing here."""
    monkeypatch.setattr("sira_cli.demo.questions.Questions", partial(Questions, 50))


def under(lvlm: Lvlm, cell: Cell, **settings: Any) -> Lvlm:
    """The same model as `sira_cli.load` would give it with other settings."""
    preset = lvlm.preset.with_settings(k=cell.k or None, alpha=cell.alpha, **settings)
    return lvlm.under(methods.find("sira" if cell.k else "greedy"), preset)


@pytest.fixture
def loaded(lvlm, monkeypatch):
    monkeypatch.setattr(
        "sira_cli.cli.research.load_model",
        lambda preset, model, method, **more: lvlm.under(methods.find(method), preset),
    )


def answers(lvlm: Lvlm, questions: QuestionSet, grid: Grid, batch_size: int = 5) -> list[list[str]]:
    units = Units[list[str]]()
    assert not failed(sweep(lvlm, questions, grid, units, batch_size=batch_size))
    return [units[f"question {number}"] for number in range(len(questions.questions))]


def failed(events: Iterable[object]) -> list[FailedPicture]:
    return [event for event in events if isinstance(event, FailedPicture)]


def picked(questions: QuestionSet, numbers: list[int]) -> QuestionSet:
    return replace(questions, questions=tuple(questions.questions[number] for number in numbers))


# --- every answer


def test_every_answer_is_that_of_sira_ask(lvlm):
    questions, grid = validation_questions(4), Grid((1, 4, 7), (0.5, 3.0))
    assert ([int(name) for name in questions.pictures], questions.splits) == (list(VALIDATION_SEEDS[:4]), SPLITS)
    found = answers(lvlm, questions, grid, batch_size=16)
    disputed = [number for number, row in enumerate(found) if len(set(row)) > 1]
    assert len(disputed) > 4  # else equal answers would prove little
    deciders = [under(lvlm, cell, max_new_tokens=1) for cell in grid.cells()]
    for number in sorted({0, 1, *disputed[:3]}):  # slowly: a decoding for every question and setting
        asked = questions.questions[number]
        image = questions.picture(asked.picture).open().image
        assert found[number] == [decider.ask(image, asked.text).text for decider in deciders]


# --- settings and questions


def test_values_of_k_and_alpha():
    assert parse_ks("1,2,4") == (1, 2, 4)
    assert parse_ks(" 5 - 7,2,6") == (2, 5, 6, 7)
    assert parse_alphas("1, 0.25") == (0.25, 1.0)
    assert spread(8, 7) == (1, 2, 4, 5, 6, 7)
    assert spread(28, 27) == (4, 9, 14, 18, 23, 27)
    assert spread(36, 33) == (6, 12, 18, 24, 30, 33)  # DeepStack
    assert all(layers // 2 in spread(layers, layers - 1) for layers in range(2, 80))
    assert Grid((1, 2), (0.5, 1.0)).cells() == [GREEDY, Cell(1, 0.5), Cell(1, 1.0), Cell(2, 0.5), Cell(2, 1.0)]


def question(image: str, text: str, label: str) -> str:
    return json.dumps({"image": image, "text": text, "label": label})


def test_the_settings_that_decide_a_sweep():
    demo, questions = presets.find("demo"), validation_questions(1)
    settings = decisive(demo, questions, (0.5,), captions=False)
    assert settings == decisive(demo.with_settings(k=3, alpha=2, max_new_tokens=7), questions, (0.5,), captions=False)
    for changed in ({"beta": 0.1}, {"dtype": "bfloat16"}):
        assert settings != decisive(demo.with_settings(**changed), questions, (0.5,), captions=False)
    captions = decisive(demo, questions, (0.5,), captions=True)
    assert captions != settings != decisive(demo, validation_questions(2), (0.5,), captions=False)
    for changed in ({"prompt": "What?"}, {"max_new_tokens": 7}):
        assert captions != decisive(demo.with_settings(**changed), questions, (0.5,), captions=True)


# --- figures and the best setting


def made_up(texts: dict[int, list[str]], questions: list[Question], grid: Grid) -> SweepReport:
    class Loaded:
        preset, revision, quantization, layers, dtype = presets.find("demo"), "r", None, 8, "float32"

    units = Units[list[str]]()
    units.add({f"question {number}": row for number, row in texts.items()})
    splits = tuple(dict.fromkeys(split for asked in questions for split in asked.splits))
    return SweepReport.of(Loaded(), QuestionSet(splits, tuple(questions), pytest.fail), grid, units)  # type: ignore[arg-type]


def test_figures_by_hand():
    questions = [
        Question("a", "1", True, ("x", "y")),
        Question("a", "2", False, ("x",)),
        Question("b", "3", True, ("x", "y", "y")),  # asked twice in y
        Question("b", "4", False, ("y",)),
        Question("b", "5", False, ("x", "y")),  # not answered
    ]
    texts = {0: ["Yes", "Yes", "No"], 1: ["Yes", "No", "No."], 2: ["no", "Red", "Yes"], 3: ["NO", "No", "No"]}
    report = made_up(texts, questions, Grid((3,), (0.5, 1.0)))
    greedy, half, one = report.rows
    assert (report.questions, report.pictures) == (4, 2)
    assert [(row.k, row.alpha, row.neither) for row in report.rows] == [(0, 0.0, 0), (3, 0.5, 1), (3, 1.0, 0)]

    def accuracy(row):
        return [pytest.approx(row.figures[f"{split} accuracy"].value) for split in ("x", "y", "mean")]

    # x: three questions; y: one, one twice, one. POPE's rule takes NO and Red for yes.
    assert accuracy(greedy) == [100 / 3, 100 / 4, (100 / 3 + 100 / 4) / 2]
    assert accuracy(half) == [100, 100, 100]
    assert accuracy(one) == [200 / 3, 75, (200 / 3 + 75) / 2]
    assert greedy.figures["mean yes"].value == pytest.approx((200 / 3 + 50) / 2)
    assert one.figures["y F1"].value == pytest.approx(200 * 2 / 5)
    assert half.differences["mean accuracy"].value == pytest.approx(100 - (100 / 3 + 25) / 2)
    assert (report.best, report.by, report.by_default) == (Cell(3, 0.5), "mean accuracy", False)
    assert json.loads(report.to_json())["best"] == {"k": 3, "alpha": 0.5}
    assert SweepReport.from_json(report.to_json()) == report
    with pytest.raises(PictureError, match="no question could be answered"):
        made_up({}, questions, GRID)


def test_the_rules_for_scores_and_captions():
    def figures(**values: float) -> dict[str, Figure]:
        return {name.replace("_", " "): Figure(value, value, value) for name, value in values.items()}

    scores = {GREEDY: 99, Cell(7, 0.5): 90, Cell(4, 2.0): 90 + 1e-12, Cell(4, 0.5): 90, Cell(1, 0.5): 80}
    scored = {cell: figures(mean_accuracy=score) for cell, score in scores.items()}
    assert by_score(scored) == Cell(4, 0.5)  # ties go to the smaller K, then the smaller alpha

    def row(coverage: float, accuracy: float, chair_i: float) -> dict[str, Figure]:
        return figures(coverage=coverage, adversarial_accuracy=accuracy, CHAIRi=chair_i)

    rows = {GREEDY: row(80, 70, 10), Cell(1, 1.0): row(78.9, 75, 1), Cell(2, 1.0): row(79.1, 70, 8)}
    assert by_captions(rows | {Cell(3, 1.0): row(90, 80, 9)}, GREEDY) == Cell(2, 1.0)
    unfit = {GREEDY: rows[GREEDY], Cell(1, 1.0): row(90, 69.9, 1), Cell(1, 2.0): row(90, 80, 10)}
    assert by_captions(unfit, GREEDY) is None
    assert paper(28) == Cell(14, 0.5)


@pytest.mark.parametrize(("ks", "chosen"), [((5, 7), None), ((4, 5), Cell(4, 0.5))])
def test_a_setting_that_was_not_measured_is_never_the_best(monkeypatch, capsys, tmp_path, ks, chosen):
    """Where no setting fulfils the rule, the paper's is named only if it is in the grid."""
    monkeypatch.setattr(sweeping, "by_score", lambda figures: None)
    report = made_up({0: ["Yes"] * 5}, [Question("a", "?", True, ("x",))], Grid(ks, (0.5, 1.0)))
    assert (report.best, report.by_default) == (chosen, True)
    assert SweepReport.from_json(report.to_json()) == report
    print_tables(report.table())
    best = "best: K = 4, alpha = 0.5: " if chosen else "best: none of these settings"
    assert f"\n{best}" in capsys.readouterr().out
    if chosen is None:
        with pytest.raises(SettingsError, match="is not written: no setting fulfils the rule, and the paper's was not"):
            _write_preset(report, presets.find("demo"), tmp_path / "best.yaml")
        assert not (tmp_path / "best.yaml").exists()


def test_the_figure(tmp_path):
    questions = [Question(str(number), "?", number % 2 == 0, SPLITS[: 1 + number % 3]) for number in range(60)]
    rng = np.random.default_rng(1)
    texts = {number: [("No", "Yes")[int(rng.random() < 0.7)] for _ in GRID.cells()] for number in range(60)}
    report = made_up(texts, questions, GRID)
    for best in (report.best, None):  # without one, the setting that is nearest to the paper's
        save_plot(replace(report, best=best), tmp_path / "sweep.png")
        with Image.open(tmp_path / "sweep.png") as picture:
            pixels = np.asarray(picture.convert("RGB")).astype(int)
        for colour in ((0, 114, 178), (213, 94, 0), (0, 158, 115)):  # a line for each split
            assert (np.abs(pixels - colour).sum(axis=-1) < 8).sum() > 100


# --- the file of units


def test_units_are_kept(tmp_path):
    path = tmp_path / "units.jsonl"
    units = Units(path)
    units.begin({"k": [1], "alpha": [0.5]})
    units.add({"a": ["Yes"], "b": ["Nö"]})
    with pytest.raises(SettingsError, match="another process writes to it"):
        Units(path)
    units.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"unit": "c", "tex')
    again = Units(path)
    assert again == {"a": ["Yes"], "b": ["Nö"]}
    again.check({"k": [1], "unknown": 1})
    for refused, now in ((again.check, {"k": [2], "alpha": [1]}), (again.begin, {"k": [1], "alpha": [2]})):
        with pytest.raises(SettingsError, match=rf"alpha is \[0.5\] there and \{now['alpha']} now"):
            refused(now)
    assert path.read_bytes().endswith(b'"tex')
    again.begin({"k": [1], "alpha": [0.5]})
    assert path.read_bytes() == whole
    again.close()
    anew = Units(path, overwrite=True)
    anew.begin({"k": [2]})
    anew.close()
    assert json.loads(path.read_text()) == {"schema": "sira.sweep.units/1", "settings": {"k": [2]}}
    for line, content in ((1, b"precious"), (2, path.read_bytes() + b"precious\n")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"line {line} was not written by a sweep"):
            Units(path)
        assert path.read_bytes() == content


# --- the command


SETTINGS = ("-p", "demo", "--k", "1,7", "--alpha", "0.5,2")


def test_question_files(sira, loaded, lvlm, tmp_path):
    """Accuracies against a decoding for each, and pictures that fail: one is missing, one is none."""
    for seed in VALIDATION_SEEDS[:2]:
        render(held_out(seed))[0].save(tmp_path / f"{seed}.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    about = [
        (f"{seed}.png", asked.name, asked.expected)
        for seed in VALIDATION_SEEDS[:2]
        for asked in Questions(50).about(held_out(seed))[1:5]
    ]
    about[3:3] = [("missing.png", "dog", True), ("missing.png", "cat", False)]
    about.insert(7, ("bad.png", "dog", True))
    rows = [question(image, f"Is there a {name}?", "yes" if there else "no") for image, name, there in about]
    files = (tmp_path / "popular.json", tmp_path / "random.json")
    for file, count in zip(files, (None, 6), strict=True):
        file.write_text("\n".join(rows[:count]))

    code, out, err = sira("sweep", *files, "--images", tmp_path, *SETTINGS, "--json", "-b", 3)
    record = json.loads(out)
    assert code == 3
    assert err.splitlines() == [
        f"sira: {tmp_path / 'missing.png'}: no such file",
        f"sira: {tmp_path / 'bad.png'}: is not a picture that Pillow can read; convert it to PNG or JPEG",
        "sira: 2 of 4 pictures failed",
    ]
    assert [failure["picture"] for failure in record["failures"]] == ["missing.png", "bad.png"]
    assert (record["splits"], record["questions"], record["pictures"]) == (["popular", "random"], 8, 2)
    for row in record["rows"]:
        decider = under(lvlm, Cell(row["k"], row["alpha"]), max_new_tokens=1)
        for file, count in zip(files, (None, 6), strict=True):
            right = [
                (decider.ask(tmp_path / image, f"Is there a {name}?{ONE_WORD}").text != "No") == there
                for image, name, there in about[:count]
                if image[0].isdigit()
            ]
            assert row["figures"][f"{file.stem} accuracy"]["value"] == pytest.approx(100 * np.mean(right))


def test_scenes_table_figure_and_preset(sira, loaded, tmp_path):
    """All that is written, of one run."""
    figure, preset = tmp_path / "sweep.png", tmp_path / "mine.yaml"
    options = (*SETTINGS, "--limit", 2)
    written = ("--plot", figure, "--write-preset", preset)
    code, out, err = sira("sweep", *options, *written)
    assert (code, err.count("\n")) == (0, 1)
    record = json.loads(sira("sweep", *options, "--json")[1])
    assert (record["schema"], record["rule"]) == ("sira.sweep/1", "the highest mean accuracy over the splits")
    table = [line.split() for line in out.splitlines() if line.split()[:1] in (["-"], ["1"], ["7"])]
    assert [line[:2] for line in table] == [["-", "greedy"], ["1", "0.5"], ["1", "2"], ["7", "0.5"], ["7", "2"]]
    for line, row in zip(table, record["rows"], strict=True):
        shown = [f"{row['figures'][f'{split} accuracy']['value']:.1f}" for split in (*SPLITS, "mean")]
        assert (line[2:10:2], line[-1]) == (shown, str(row["neither"]))
    chosen = record["best"]
    best = f"K = {chosen['k']}, alpha = {chosen['alpha']:g}"
    assert f"best: {best}: mean accuracy " in out
    with Image.open(figure) as picture:
        assert picture.format == "PNG"
    assert f"mine.yaml: {best}" in err
    expected = presets.find("demo").with_settings(**chosen)
    assert presets.read(preset).decisive() == expected.decisive()
    assert presets.read(preset).prompts == expected.prompts


def test_an_interrupted_run_goes_on_where_it_stopped(sira, loaded, tmp_path, monkeypatch):
    options, file, whole = (*SETTINGS, "--limit", 1, "--json", "-b", 2), tmp_path / "units.jsonl", tmp_path / "w.jsonl"
    at_once = sira("sweep", *options)[1]
    assert sira("sweep", *options, "-o", whole)[1] == at_once
    first, asked = sweeping.first_tokens, []

    def until(lvlm, cells, inputs):
        asked.append(len(inputs["input_ids"]))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return first(lvlm, cells, inputs)

    monkeypatch.setattr(sweeping, "first_tokens", until)
    code, out, err = sira("sweep", *options, "-o", file)
    assert (code, out) == (130, "")
    assert err == "sira: interrupted; finished work is kept: run the same command again to resume\n"
    assert file.read_bytes().count(b"\n") == 1 + 4
    with file.open("ab") as torn:
        torn.write(b'{"unit": "question 4", "te')
    for _ in range(2):  # the second time nothing is done again
        assert sira("sweep", *options, "-o", file)[:2] == (0, at_once)
        assert sum(asked[3:]) == json.loads(at_once)["questions"] - 4
        assert file.read_bytes() == whole.read_bytes()
    code, _, err = sira("sweep", "-p", "demo", "--k", "1", "--alpha", "0.5,2", "--limit", 1, "-o", file)
    assert (code, "k is [1, 7] there and [1] now" in err) == (2, True)


@pytest.mark.slow
def test_captions(sira, loaded, lvlm, tmp_path):
    """Against measurements with a decoder for each setting."""
    preset = tmp_path / "short.yaml"
    preset.write_text("model: bundled\ngeneration: {max_new_tokens: 14}\nload: {dtype: float32}\n")
    options = ("--captions", "--limit", 2, "--k", 7, "--alpha", "0.5,8", "-p", preset)
    code, out, _ = sira("sweep", *options, "--json")
    record = json.loads(out)
    cells = [GREEDY, Cell(7, 0.5), Cell(7, 8.0)]
    deciders = {cell.name: under(lvlm, cell, max_new_tokens=14) for cell in cells}
    expected = measure(deciders, [held_out(seed) for seed in VALIDATION_SEEDS[:2]], Questions(50))
    measured = SweepReport.from_json(out).figures
    for cell, figures in measured.items():
        for name in ("CHAIRs", "CHAIRi", "coverage", "words"):
            assert figures[name] == expected.figures[cell.name][name], (cell, name)
    assert measured[cells[1]]["coverage"] != measured[cells[2]]["coverage"]  # else equal figures would prove little
    assert (code, record["captions"], record["rule"]) == (0, True, CAPTIONS_RULE)
    best = by_captions(measured, GREEDY)
    assert (record.get("best"), record["by_default"]) == (best and asdict(best), best is None)


def test_captions_are_written_together_also_where_no_question_is_left(lvlm, tmp_path, monkeypatch):
    short, questions = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=3)), validation_questions(3)
    measured = partial(sweep, short, questions, Grid((7,), (8.0,)), captions=True, batch_size="auto")
    with closing(Units[list[str]](tmp_path / "units.jsonl")) as units, closing(measured(units)) as events:
        for event in events:  # until all questions are answered
            if event == StageStarted("captions", 6):
                break
    sizes, answer = [], Lvlm.answer
    monkeypatch.setattr(Lvlm, "answer", lambda *given: sizes.append(len(given[1]["input_ids"])) or answer(*given))
    with closing(Units[list[str]](tmp_path / "units.jsonl")) as again:
        done = [event for event in measured(again) if event == Advanced(1)]
    assert (sizes, len(done)) == ([3, 3], 6)  # greedy's captions, and SIRA's


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "llava-1.5-7b"], "give POPE's question files with --images FOLDER, or --scenes"),
        (
            ["random.json", "--images", ".", "--scenes"],
            "give question files with their --images, or --scenes, not both",
        ),
        (["random.json", "--images", ".", "--captions"], "--captions is for scenes, whose content is known"),
        (["-p", "demo", "--k", "8"], "k must be 1..7"),
        (["-p", "demo", "--k", "1-"], "--k '1-': expected all, or numbers and ranges"),
        (["-p", "demo", "--alpha", "0"], "--alpha '0': expected numbers above 0"),
        (["-p", "demo", "--plot", "sweep.gif"], "sweep.gif: expected a name that ends in .png, .pdf, .svg"),
    ],
)
def test_what_cannot_be_followed(sira, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("random.json").write_text(question("random.json", "A dog?", "yes"), encoding="utf-8")
    code, out, err = sira("sweep", *options)
    assert (code, out) == (2, "")
    assert message in err
