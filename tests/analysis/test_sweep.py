"""`sira sweep`: every answer against `generate`, figures by hand, resuming, what is refused, what is written."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sira_cli.analysis import caption_rule, sweep_report
from sira_cli.analysis import sweep as sweeping
from sira_cli.analysis.caption_rule import by_captions
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.analysis.sweep import GREEDY, Cell, Grid, decisive, spread
from sira_cli.analysis.sweep_report import SweepReport
from sira_cli.cli.research import _write_preset
from sira_cli.demo.measure import measure
from sira_cli.demo.questions import SPLITS, Questions, caption_counts, held_out, validation_questions
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import PictureError, SettingsError
from sira_cli.eval.statistics import Figure
from sira_cli.models import presets
from sira_cli.pictures.sources import located
from sira_cli.run.events import Failed
from sira_cli.run.lvlm import Lvlm
from tests.support.eval.writing import lines, read
from tests.support.helpers import under


@pytest.fixture(autouse=True)
def few_scenes_to_count(monkeypatch):
    """What goes together is counted in fewer scenes: it takes seconds and decides nothing here."""
    monkeypatch.setattr("sira_cli.demo.questions.Questions", partial(Questions, 50))


def at(lvlm: Lvlm, cell: Cell, tokens: int) -> Lvlm:
    method = "sira" if cell.k else "greedy"
    return under(lvlm, method, k=cell.k or None, alpha=cell.alpha, max_new_tokens=tokens)


@pytest.fixture
def loaded(demo, monkeypatch):
    model = lambda preset, model, method, **more: demo.under(method, preset)  # noqa: E731
    monkeypatch.setattr("sira_cli.cli.research.load_model", model)


@pytest.mark.parametrize(("beta", "least"), [(None, 5), (0.1, 1)])
def test_every_answer_is_that_of_sira_ask(demo, beta, least):
    lvlm = under(demo, "sira", beta=beta)
    questions, grid, units = validation_questions(4), Grid((1, 4, 7), (0.5, 30.0)), Units[list[str]]()
    assert ([int(name) for name in questions.pictures], questions.splits) == (list(VALIDATION_SEEDS[:4]), SPLITS)
    assert Failed not in map(type, sweeping.sweep(lvlm, questions, grid, units, batch_size=16))
    found = [units[f"question {number}"] for number in range(len(questions.questions))]
    disputed = [number for number, row in enumerate(found) if len(set(row)) > 1]
    assert len(disputed) >= least  # else equal answers would prove little
    deciders = [at(lvlm, cell, 1) for cell in grid.cells()]
    for number in sorted({0, 1, *disputed[:3]}):  # slowly: a decoding for every question and setting
        asked = questions.questions[number]
        image = questions.picture_of(asked.picture).open().image
        assert found[number] == [decider.ask(image, asked.text).text for decider in deciders]


def test_values_of_k_and_alpha():
    assert [sweeping.parse_ks(text) for text in ("1,2,4", " 5 - 7,2,6")] == [(1, 2, 4), (2, 5, 6, 7)]
    assert sweeping.parse_alphas("1, 0.25") == (0.25, 1.0)
    assert spread(8, 7) == (1, 2, 4, 5, 6, 7)
    assert spread(28, 27) == (4, 9, 14, 18, 23, 27)
    assert spread(36, 33) == (6, 12, 18, 24, 30, 33)  # DeepStack
    assert spread(4, 3) == (1, 2, 3)
    assert all(layers // 2 in spread(layers, layers - 1) for layers in range(2, 80))
    assert Grid((1, 2), (0.5, 1.0)).cells() == [GREEDY, Cell(1, 0.5), Cell(1, 1.0), Cell(2, 0.5), Cell(2, 1.0)]


@pytest.mark.parametrize("text", ["10000", "1-10000", "1" * 5000, "1-" + "1" * 5000])
def test_values_of_k_that_no_model_has_are_refused_before_they_are_listed(text):
    """A range of 100 billion would fill the memory, and Python reads no number of 5,000 digits."""
    with pytest.raises(SettingsError, match="up to 9999"):
        sweeping.parse_ks(text)
    assert len(sweeping.parse_ks("1-9999")) == 9999


def test_the_settings_that_decide_a_sweep():
    demo, questions = presets.find("demo"), validation_questions(1)
    settings = decisive(demo, questions, (0.5,), captions=False)
    assert settings == decisive(demo.with_settings(k=3, alpha=2, max_new_tokens=7), questions, (0.5,), captions=False)
    for changed in ({"beta": 0.1}, {"dtype": "bfloat16"}, {"prompts.ask": "{question} Say yes or no."}):
        assert settings != decisive(demo.with_values(**changed), questions, (0.5,), captions=False)
    for other in (replace(questions, splits=("x",)), replace(questions, folder="x"), validation_questions(2)):
        assert settings != decisive(demo, other, (0.5,), captions=False)
    captions = decisive(demo, questions, (0.5,), captions=True)
    assert captions != settings
    for changed in ({"prompt": "What?"}, {"max_new_tokens": 7}):
        assert captions != decisive(demo.with_settings(**changed), questions, (0.5,), captions=True)


@pytest.mark.parametrize("first", [True, False])
def test_a_sweep_does_not_go_on_with_texts_of_another_setting(tmp_path, first):
    """Also where only one of two runs has it."""
    demo, questions = presets.find("demo"), validation_questions(1)
    two = [demo.with_settings(repetition_penalty=1.5), demo]
    there, now = (decisive(each, questions, (0.5,), captions=True) for each in (two if first else two[::-1]))
    path = tmp_path / "units.jsonl"
    for _ in range(2):
        with closing(Units[list[str]](path)) as units:
            units.begin(there)
    with closing(Units[list[str]](path)) as units, pytest.raises(SettingsError, match="repetition_penalty is"):
        units.begin(now)


def test_captions_are_refused_where_nobody_knows_what_is_in_the_pictures(demo):
    """Before anything is measured: no rule could pick a setting."""
    questions = replace(validation_questions(1), count_caption=None)
    with pytest.raises(SettingsError, match="`captions=` is for pictures whose objects are known"):
        next(sweeping.sweep(under(demo, "sira"), questions, Grid((4,), (1.0,)), Units(), captions=True))


def test_a_sampled_caption_of_a_batch_is_that_of_sira_caption(demo):
    lvlm = under(demo, "sira", temperature=1.0, max_new_tokens=12)
    questions, grid, units = validation_questions(3), Grid((4,), (0.5, 3.0)), Units[list[str]]()
    list(sweeping.sweep(lvlm, questions, grid, units, captions=True, batch_size=3))
    for name in questions.pictures:
        picture = questions.picture_of(name)
        captions = [under(at(lvlm, cell, 12), temperature=1.0).caption(picture).text for cell in grid.cells()]
        assert units[f"captions of scene {name}, K = 0"] == captions[:1]
        assert units[f"captions of scene {name}, K = 4"] == captions[1:]


def shown_as(*files: Path, asked: str) -> QuestionSet:
    """A question about each of the pictures with these names, whose files are opened in this order."""
    order = iter(files)
    split = ("adversarial",)
    questions = tuple(Question(name, f"Is there {number}?", True, split) for number, name in enumerate(asked))
    count_caption = lambda picture, caption: caption_counts(held_out(VALIDATION_SEEDS[0]), caption)  # noqa: E731
    return QuestionSet(split, questions, lambda name: located(str(next(order))), count_caption)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("drawn") / "scene.png"
    render(held_out(VALIDATION_SEEDS[0]))[0].save(path)
    return path


def test_a_picture_that_cannot_be_captioned_ends_a_sweep(demo, drawn, tmp_path):
    """Also where one of its questions failed before, and is known."""
    gone = tmp_path / "gone.png"
    questions = shown_as(gone, drawn, gone, drawn, asked="aa")
    events = sweeping.sweep(under(demo, "sira"), questions, Grid((4,), (1.0,)), Units(), captions=True)
    with pytest.raises(PictureError, match=r"gone\.png"):
        list(events)


def test_a_picture_without_an_answer_is_left_out_of_captions_and_figures(demo, drawn, tmp_path):
    gone = tmp_path / "gone.png"
    lvlm, grid, units = under(demo, "sira", max_new_tokens=3), Grid((4,), (1.0,)), Units[list[str]]()
    questions = shown_as(gone, drawn, drawn, drawn, asked="ab")
    list(sweeping.sweep(lvlm, questions, grid, units, captions=True))
    assert list(units) == ["question 1", "captions of scene b, K = 0", "captions of scene b, K = 4"]
    report = SweepReport.of(lvlm, questions, grid, units, captions=True)
    assert (report.pictures, [failure.picture for failure in report.failures]) == (1, ["a"])


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
    # x: three questions; y: one, one twice, one. POPE's rule takes NO and Red for yes.
    for row, x, y in ((greedy, 100 / 3, 100 / 4), (half, 100, 100), (one, 200 / 3, 75)):
        found = [row.figures[f"{split} accuracy"].value for split in ("x", "y", "mean")]
        assert found == pytest.approx([x, y, (x + y) / 2])
    assert greedy.figures["mean yes"].value == pytest.approx((200 / 3 + 50) / 2)
    assert one.figures["y F1"].value == pytest.approx(200 * 2 / 5)
    assert half.differences["mean accuracy"].value == pytest.approx(100 - (100 / 3 + 25) / 2)
    assert report.best == Cell(3, 0.5)
    assert report.by == "mean accuracy"
    assert report.fulfils is True
    assert json.loads(report.to_json())["best"] == {"k": 3, "alpha": 0.5}
    assert SweepReport.from_json(report.to_json()) == report
    with pytest.raises(PictureError, match="no question could be answered"):
        made_up({}, questions, Grid((1,), (0.5,)))


def test_the_rule_for_scores():
    scores = {Cell(7, 0.5): 90, Cell(4, 2.0): 90 + 1e-12, Cell(4, 0.5): 90, Cell(1, 0.5): 80}
    scored = {cell: {"mean accuracy": Figure(score, score, score)} for cell, score in scores.items()}
    assert sweep_report.by_score(scored) == Cell(4, 0.5)  # ties go to the smaller K, then the smaller alpha


def change(coverage: float, chair_i: float, accuracy: tuple[float, float, float] = (0, -1, 1)) -> dict[str, Figure]:
    """Return paired changes from greedy; of accuracy the value and its interval."""
    values = {"coverage": coverage, "CHAIRi": chair_i}
    return {name: Figure(value, value, value) for name, value in values.items()} | {
        "adversarial accuracy": Figure(*accuracy)
    }


@pytest.mark.parametrize(
    ("of", "fulfils"),
    [
        (change(-1, -0.1), True),
        (change(-1.1, -3), False),
        (change(2, 0), False),
        (change(0, -2, (-0.2, -0.7, 0.3)), True),  # 2 answers of 960: no loss is shown
        (change(0, -2, (-0.8, -1.3, -0.1)), False),
        (change(0, -2, (0.4, 0.1, 0.8)), True),
    ],
)
def test_which_settings_fulfil_the_rule_for_captions(of, fulfils):
    assert caption_rule.fulfils(of) is fulfils
    assert by_captions({1: of, 2: change(-50, 50)}) == (1, fulfils)


def test_of_settings_that_fulfil_the_rule_the_least_chairi_is_best():
    changes = {1: change(-1, -2), 2: change(-0.5, -3), 3: change(0, -3), 4: change(-2, -9)}
    assert by_captions(changes) == (2, True)  # the first on a tie


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({1: change(-3, -4), 2: change(-1.5, -0.1), 3: change(0, 0.6)}, 2),  # they miss it by 2, 0.5 and 0.6 points
        ({1: change(-1.5, -4), 2: change(0, -1, (-3, -5, -0.4)), 3: change(0, 0.6)}, 2),  # 0.5, 0.4, 0.6
        ({1: change(-60, 6, (-1, -2, -0.5)), 2: change(-7, -3)}, 2),
        ({1: change(-1.4, -1, (-1, -2, -0.3)), 2: change(-1.6, -1)}, 2),  # both limits count: 0.4 + 0.3
    ],
)
def test_else_the_setting_is_best_that_misses_the_rule_by_the_least(changes, least):
    assert by_captions(changes) == (least, False)


def test_a_preset_says_that_no_setting_fulfils_the_rule(capsys, tmp_path):
    report = made_up({0: ["Yes"] * 5}, [Question("a", "?", True, ("x",))], Grid((4, 5), (0.5, 1.0)))
    unfit = replace(report, captions=True, fulfils=False, best=Cell(5, 1.0))
    _write_preset(unfit, presets.find("demo"), tmp_path / "best.yaml")
    written = presets.read(tmp_path / "best.yaml")
    assert (written.sira.k, written.sira.alpha) == (5, 1.0)
    assert "none of its settings fulfils the rule" in written.description


# --- the command

SETTINGS = ("-p", "demo", "--k", "1,7", "--alpha", "0.5,2")


def test_pictures_that_fail_are_left_out(sira, loaded, tmp_path):
    """One is missing, one is none."""
    render(held_out(VALIDATION_SEEDS[0]))[0].save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    rows = [{"image": f"{name}.png", "label": "yes"} for name in ("good", "missing", "missing", "bad", "good")]
    rows = [{**row, "text": f"A {number}?"} for number, row in enumerate(rows)]
    files = [lines(tmp_path / f"{split}.json", rows[:count]) for split, count in (("popular", 5), ("random", 2))]

    code, out, err = sira("sweep", *files, "--images", tmp_path, *SETTINGS, "--json", "-b", 3)
    record = json.loads(out)
    assert (code, err.splitlines()[-1]) == (3, "sira: 2 of 3 pictures failed")
    assert [failure["picture"] for failure in record["failures"]] == ["missing.png", "bad.png"]
    assert record["splits"] == ["popular", "random"]
    assert record["questions"] == 2
    assert record["pictures"] == 1
    assert sira("sweep", *files, "--images", tmp_path, "-p", "demo", "--k", 8)[0] == 2  # it must be 1..7


def test_figure_and_preset_of_scenes(sira, loaded, tmp_path):
    figure, preset = tmp_path / "sweep.png", tmp_path / "mine.yaml"
    options = (*SETTINGS, "--limit", 2)
    code, out, err = sira("sweep", *options, "--plot", figure, "--write-preset", preset)
    assert (code, err.count("\n")) == (0, 1)
    record = json.loads(sira("sweep", *options, "--json")[1])
    assert (record["schema"], record["rule"]) == ("sira.sweep/1", "the highest mean accuracy over the splits")
    chosen = record["best"]
    assert f"best: K = {chosen['k']}, alpha = {chosen['alpha']:g}: mean accuracy " in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    written, expected = presets.read(preset), presets.find("demo").with_settings(**chosen)
    assert (written.decisive(), written.prompts) == (expected.decisive(), expected.prompts)


def test_an_interrupted_run_goes_on_where_it_stopped(sira, loaded, demo, tmp_path, monkeypatch):
    options, file, whole = (*SETTINGS, "--limit", 1, "--json", "-b", 2), tmp_path / "units.jsonl", tmp_path / "w.jsonl"
    at_once = sira("sweep", *options)[1]
    assert sira("sweep", *options, "-o", whole)[1] == at_once
    known = {"checkpoint": demo.revision, "dtype": "torch.float32", "quantization": None}
    assert read(whole)[0]["settings"].items() >= known.items()
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
    for option, refusal in (("--k=1", "k is [1, 7] there and [1] now"), ("--alpha=1", "alpha is [0.5, 2.0] there")):
        code, _, err = sira("sweep", *options, option, "-o", file)
        assert code == 2, err
        assert refusal in err, err
        assert file.read_bytes() == whole.read_bytes(), err
    file.write_bytes(whole.read_bytes().replace(b"torch.float32", b"torch.float16"))  # known when the model is loaded
    assert "dtype is 'torch.float16' there and 'torch.float32' now" in sira("sweep", *options, "-o", file)[2]
    file.write_bytes(b"precious\n")
    code, _, err = sira("sweep", *options, "-o", file)
    assert code == 2, err
    assert "line 1 was not written by a sweep" in err, err
    assert file.read_bytes() == b"precious\n", err


@pytest.mark.slow
def test_captions(sira, loaded, demo, tmp_path):
    """Against measurements with a decoder for each setting."""
    preset = tmp_path / "short.yaml"
    preset.write_text("model: bundled\ngeneration: {max_new_tokens: 14}\nload: {dtype: float32}\n")
    options = ("--captions", "--limit", 2, "--k", 7, "--alpha", "0.5,8", "-p", preset)
    code, out, _ = sira("sweep", *options, "--json")
    record = json.loads(out)
    cells = [GREEDY, Cell(7, 0.5), Cell(7, 8.0)]
    deciders = {cell.name: at(demo, cell, 14) for cell in cells}
    expected = measure(deciders, [held_out(seed) for seed in VALIDATION_SEEDS[:2]], Questions(50))
    measured = {row.cell: row.figures for row in SweepReport.from_json(out).rows}
    for cell, figures in measured.items():
        for name in ("CHAIRs", "CHAIRi", "coverage", "words"):
            assert figures[name] == expected.figures[cell.name][name], (cell, name)
    assert measured[cells[1]]["coverage"] != measured[cells[2]]["coverage"]  # else equal figures would prove little
    assert code == 0
    assert record["captions"] is True
    assert record["rule"] == caption_rule.CAPTIONS_RULE
    changes = {row.cell: row.differences for row in SweepReport.from_json(out).rows[1:]}
    best, fulfils = by_captions(changes)
    assert (Cell(**record["best"]), record["fulfils"]) == (best, fulfils)
