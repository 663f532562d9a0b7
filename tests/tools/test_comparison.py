"""All methods on drawn scenes: settings that the rule picks, texts that are kept, what tables say, one command."""

from __future__ import annotations

from functools import partial

import pytest

from sira_cli.analysis.bench.measure import Spread
from sira_cli.analysis.sweep import by_captions
from sira_cli.demo.measure import SceneReport
from sira_cli.demo.questions import SPLITS, held_out
from sira_cli.demo.scenes import TEST_SEEDS, Scene
from sira_cli.errors import SettingsError
from sira_cli.eval.statistics import Figure
from sira_cli.methods import METHODS
from sira_cli.methods.vcd import Vcd
from sira_cli.run.lvlm import load
from tools import choose
from tools import comparison as comparison_module
from tools.choose import Chosen, Tried, method_of, read_chosen, write_chosen
from tools.comparison import Comparison, load_all


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [held_out(seed) for seed in TEST_SEEDS[:2]]


def row(**values: float) -> dict[str, Figure]:
    return {name.replace("_", " "): Figure(value, value, value) for name, value in values.items()}


# --- the choice


def test_every_grid_begins_with_the_authors_settings_and_holds_valid_ones():
    for name, grid in choose.GRIDS.items():
        if name in METHODS:
            tried = choose.settings_to_try(name)
            own = METHODS[name].settings()
            assert tried[0] == {key: own[key] for key in grid}
            assert all(tried.count(cell) == 1 for cell in tried)
            for cell in tried:
                METHODS[name].with_values(**cell)


def chosen_of(fulfils: bool, **settings: object) -> Chosen:
    return Chosen(settings, fulfils, 160, {"CHAIRi": 9.0}, (Tried(settings, {"CHAIRi": 8.0}),))


def test_what_was_chosen_is_read_as_it_was_written(tmp_path):
    chosen = {"vcd": chosen_of(True, noise_step=300), "sid": chosen_of(False, visible=None)}
    write_chosen(chosen, tmp_path / "settings.yaml")
    assert read_chosen(tmp_path / "settings.yaml") == chosen
    assert read_chosen(tmp_path / "nothing.yaml") == {}
    assert method_of("vcd", chosen) == Vcd(noise_step=300)
    assert method_of("icd", chosen) == METHODS["icd"]


def test_what_ships_was_chosen_by_the_rule():
    for name, row_of in read_chosen().items():
        assert row_of.tried[0].settings == choose.settings_to_try(name)[0]
        figures = {
            number: row(**{key.replace(" ", "_"): value for key, value in each.figures.items()})
            for number, each in enumerate(row_of.tried)
            if "adversarial accuracy" in each.figures
        }
        figures[None] = row(**{key.replace(" ", "_"): value for key, value in row_of.greedy.items()})
        best = by_captions(figures, None)
        assert row_of.fulfils == (best is not None)
        assert row_of.settings == row_of.tried[best or 0].settings, name


# --- measuring


def test_a_method_that_cannot_run_is_left_out_with_its_reason(monkeypatch, sira):
    def refuse(self: object, model: object, config: object) -> None:
        raise SettingsError("it needs a calibration: sira calibrate icd")

    monkeypatch.setattr("sira_cli.methods.icd.Icd.check_model", refuse)
    methods, failed = load_all(["icd", "sid", "greedy"], {})
    assert list(methods) == ["greedy", "sid"]
    assert failed == {"icd": "it needs a calibration: sira calibrate icd"}


# --- tables


def comparison() -> Comparison:
    figures = {
        name: {
            **{key: Figure(10 + n, 9 + n, 11 + n) for key in ("CHAIRs", "CHAIRi", "coverage", "words")},
            **{f"{split} {key}": Figure(90 + n, 89, 91) for split in SPLITS for key in ("accuracy", "F1")},
        }
        for n, name in enumerate(("greedy", "sira", "vcd"))
    }
    differences = {name: {key: Figure(-1.25, -2, -0.5) for key in figures["vcd"]} for name in ("sira", "vcd")}
    report = SceneReport(1000, {}, figures, differences, {})
    settings = {"sira": {"k": 7, "alpha": 0.5}, "vcd": {"noise_step": 500}}
    cost = {"greedy": Spread(1, 1, 1), "sira": Spread(1.06, 1, 2), "vcd": Spread(2, 1, 3)}
    return Comparison(report, settings, {"sira": "validation", "vcd": "authors"}, cost, 20)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_tables_say_figures_differences_settings_and_cost():
    head, _, greedy, sira, vcd = cells(comparison().table())
    assert head == ["method", "settings", "CHAIRs", "CHAIRi", "coverage", "words", "adversarial accuracy", "time"]
    assert greedy == ["greedy", "", *["10.0 ±1.0"] * 4, "90.0 ±1.0", "x1.00"]
    assert sira == ["sira", "K = 7, alpha = 0.5 (validation)", *["11.0 (-1.2 ±0.8)"] * 4, "91.0 (-1.2 ±0.8)", "x1.06"]
    assert vcd[:2] == ["vcd", "its defaults"]
    assert "1,000 test scenes" in comparison().legend()
    assert "median of 20" in comparison().legend()


def test_a_comparison_is_read_as_it_was_written(tmp_path):
    comparison().write(tmp_path / "made.json")
    assert Comparison.read(tmp_path / "made.json") == comparison()


# --- the command line


@pytest.mark.slow
def test_it_measures_methods_beside_greedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison_module, "load", partial(load, max_new_tokens=8))
    monkeypatch.setattr(comparison_module, "Questions", partial(comparison_module.Questions, sample=50))

    def run() -> tuple[Comparison, str]:
        given = ["sira", "m3id", "--count", 2, "--texts", tmp_path / "texts.jsonl", "--output", tmp_path / "found.json"]
        monkeypatch.setattr("sys.argv", ["comparison", *map(str, given)])
        comparison_module.main()
        return Comparison.read(tmp_path / "found.json"), capsys.readouterr().out

    found, out = run()
    assert list(found.report.figures) == list(found.cost) == ["greedy", "sira", "m3id"]
    assert found.timed == 2
    assert found.cost["greedy"] == Spread(1, 1, 1)
    assert found.settings["sira"] == {"k": 7, "alpha": 0.5}
    assert found.origin["sira"] == "validation"
    assert out.endswith(f"{found.tables()}\n")
    kept = (tmp_path / "texts.jsonl").read_bytes()
    assert len(kept.splitlines()) == 1 + 3 * 2
    again, _ = run()
    assert again.report == found.report
    assert (tmp_path / "texts.jsonl").read_bytes() == kept


def test_what_ships_was_measured_on_all_test_scenes_under_the_chosen_settings():
    shipped, chosen = Comparison.read(), read_chosen()
    assert shipped.report.scenes >= 1000
    assert {"greedy", "sira"} <= {*shipped.report.figures} <= {*METHODS}
    for name in shipped.report.figures:
        if name in chosen:
            assert shipped.settings[name] == chosen[name].settings
            assert shipped.origin[name] == ("validation" if chosen[name].fulfils else "authors")
    card = SceneReport.shipped()  # the same model, scenes and settings
    for name in ("greedy", "sira"):
        for key, figure in card.figures[name].items():
            assert shipped.report.figures[name][key].value == pytest.approx(figure.value, abs=0.5), (name, key)
