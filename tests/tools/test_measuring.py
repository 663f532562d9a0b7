"""What is measured on drawn scenes: faults of texts, settings that the rule picks, figures, intervals, what ships."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sira_cli.analysis.bench.measure import Spread
from sira_cli.analysis.caption_rule import by_captions, captions_fit
from sira_cli.analysis.experiment import Units
from sira_cli.demo.measure import SceneReport
from sira_cli.demo.questions import caption, hallucinated, held_out, mentions
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, SceneObject, render
from sira_cli.eval import figures
from sira_cli.eval.statistics import Figure, estimates, student
from sira_cli.look.claims import unsupported
from sira_cli.methods import METHODS
from sira_cli.models import presets
from sira_cli.run.lvlm import load
from sira_cli.run.task import Caption
from tools import choose, looks, support
from tools import comparison as comparison_module
from tools.choose import Chosen, method_of, read_chosen, write_chosen
from tools.comparison import Comparison, compare
from tools.grammar import broken_sentences, instances, is_broken, is_right, is_right_about_present

REPORTED = ("settings", "figures", "differences", "outcomes")  # fields of a report, by method


def test_what_ships_was_chosen_by_the_rule(tmp_path):
    chosen = read_chosen()
    for name, row in chosen.items():
        assert [each.settings for each in row.tried] == choose.settings_to_try(name), name
        changes = {}
        for number, each in enumerate(row.tried):
            points = {key: each.figures[key] - row.greedy[key] for key in ("coverage", "CHAIRi")}
            change = {key: Figure(value, value, value) for key, value in points.items()}
            if each.accuracy is None:  # the captions already decide
                assert row.fulfils
                assert not captions_fit(change)
            else:
                changes[number] = change | {"adversarial accuracy": Figure(**each.accuracy)}
        best, fulfils = by_captions(changes)
        assert (row.settings, row.fulfils) == (row.tried[best].settings, fulfils), name
        assert method_of(name, chosen) == METHODS[name].with_values(**row.settings)
    write_chosen(chosen, tmp_path / "settings.yaml")
    assert read_chosen(tmp_path / "settings.yaml") == chosen


@pytest.mark.parametrize("method", choose.STRENGTHS)
def test_each_method_is_tried_from_mild_to_strong(method):
    """At 1/4, 1/2, 1 and 2 of its authors' distance from the value that changes nothing."""
    nothing = {("pai", "gamma"): 1, ("vaf", "enhance"): 1, ("vaf", "suppress"): 1}
    for_captions = {("vista", "strength"): 0.17, ("vti", "alpha_image"): 0.9}
    authors = METHODS[method].settings()
    for name, values in choose.STRENGTHS[method].items():
        assert values[2] == authors[name]
        full = [for_captions[method, name] if value is None else value for value in values]
        distance = np.array(full) - nothing.get((method, name), 0)
        if method == "dola":
            distance = np.log(full)  # of a cut-off
        assert distance / distance[2] == pytest.approx([0.25, 0.5, 1, 2], rel=0.01)
    assert {name: authors[name] for name in choose.settings_to_try(method)[0]} in choose.settings_to_try(method)


def test_all_answers_decide_where_no_captions_fulfil_the_rule(monkeypatch):
    """The strongest of these breaks texts; the mildest changes little, and its answers are asked for after all."""
    monkeypatch.setitem(choose.STRENGTHS, "ict", {"strength": (16.0, 0.0)})
    found = choose.choose("ict", 2, Units())
    assert found.settings == {"strength": 0.0}
    assert found.fulfils is False
    assert found.tried[1].figures == found.greedy
    assert [each.accuracy is None for each in found.tried] == [False, False]


def test_settings_are_shown_with_where_they_come_from():
    shown = comparison_module.settings_text
    assert shown("vcd", {"alpha": 0.25, "noise_step": 300}, "validation") == "alpha = 0.25, noise_step = 300"
    assert shown("vcd", {"alpha": 1.0, "noise_step": 500}, "validation") == "alpha = 1, noise_step = 500 ¹"
    assert shown("vcd", {"alpha": 0.25, "noise_step": 500}, "least") == "alpha = 0.25, noise_step = 500 ²"
    assert shown("vcd", {"alpha": 1.0, "noise_step": 500}, "least") == "alpha = 1, noise_step = 500 ¹ ²"
    assert shown("vcd", {"alpha": 0.25, "noise_step": 300}, "earlier") == "alpha = 0.25, noise_step = 300 ³"
    assert shown("greedy+apc", {"beta": 0.1}, "authors") == ""
    assert shown("sira", {"k": 4, "alpha": 0.5}, "validation") == "K = 4, alpha = 0.5"


def test_settings_that_are_not_chosen_now_are_those_of_an_earlier_rule():
    choice = Chosen(settings={"gamma": 0.3}, fulfils=False, scenes=1, greedy={}, tried=())
    now = partial(comparison_module.origin_now, "flb")
    assert now({"gamma": 0.3}, {"flb": choice}) == "least"
    assert now({"gamma": 0.3}, {"flb": replace(choice, fulfils=True)}) == "validation"
    assert now({"gamma": 0.1}, {"flb": choice}) == now({"gamma": 0.3}, {}) == "earlier"


def test_a_method_measured_later_joins_the_others():
    shipped, chosen = Comparison.read(), read_chosen()

    def only(*names: str) -> Comparison:
        parts = {field: {name: getattr(shipped.report, field).get(name) for name in names} for field in REPORTED}
        parts = {field: {name: row for name, row in rows.items() if row is not None} for field, rows in parts.items()}
        rows = {field: {name: getattr(shipped, field).get(name) for name in names} for field in ("settings", "cost")}
        return replace(shipped, report=replace(shipped.report, **parts), **rows)

    _, _, early, *_, late = shipped.report.figures
    first, second = only("greedy", "sira", early), only("greedy", late)
    found = comparison_module.joined(first, second, chosen)
    assert [*found.report.figures] == ["greedy", "sira", early, late]
    assert found.report.figures["sira"] == shipped.report.figures["sira"]
    assert found.cost[late] == shipped.cost[late]
    assert found.settings[early] == shipped.settings[early]
    with pytest.raises(ValueError, match="other scenes or another model"):
        comparison_module.joined(replace(first, report=replace(first.report, scenes=9)), second, chosen)


def test_figures_of_methods_are_those_of_their_texts():
    greedy, wrong = load("demo", method="greedy"), {}
    scenes = [held_out(VALIDATION_SEEDS[number]) for number in (500_000, 500_002)]  # a cup is hallucinated; nothing
    report = compare(greedy, ["sira", "m3id"], scenes, Units()).report
    for name in ("greedy", "sira"):
        lvlm = greedy.under(METHODS[name])
        texts = [lvlm.caption(render(scene)[0]).text for scene in scenes]
        wrong[name] = sum(bool(hallucinated(*pair)) for pair in zip(scenes, texts, strict=True))
        assert report.figures[name]["CHAIRs"].value == 50 * wrong[name]
        assert report.figures[name]["words"].value == sum(len(text.split()) for text in texts) / 2
        assert report.figures[name]["broken"].value == 50 * sum(map(is_broken, texts))
        named = [{kind for _, _, kind in mentions(text)} for text in texts]
        kinds = [(named[number], {*scene.objects}) for number, scene in enumerate(scenes)]
        right, every = sum(len(a & b) for a, b in kinds), sum(len(a) + len(b) for a, b in kinds)
        assert report.figures[name]["F1"].value == pytest.approx(200 * right / every)
    assert report.differences["sira"]["CHAIRs"].value == 50 * (wrong["sira"] - wrong["greedy"])


@pytest.mark.parametrize("way", ["", "flag", "best", "guide"])
@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_figures_of_second_looks_are_those_of_their_texts(measured_looks, method, way):
    """`flag` leaves the own text, whose marked objects do not count."""
    lvlm, scenes, found = measured_looks
    lvlm = lvlm.under(method)
    prompts = [lvlm.preset.prompts.caption] * len(scenes)
    shown = [render(scene)[0] for scene in scenes]
    seeds = lvlm.text_seeds([str(scene.seed) for scene in scenes], prompts)
    task = Caption.of(lvlm.preset, lvlm.decoder, verify=way or None)
    answers = task.way(lvlm).answers(shown, lvlm.prepare(shown, prompts), seeds)
    wrong = named = 0
    for scene, answer in zip(scenes, answers, strict=True):
        marked = {one["thing"] for one in unsupported({"objects": answer.objects, "verify": answer.verify})}
        left_out = marked if way == "flag" else set()
        kinds = [kind for _, _, kind in mentions(answer.text) if kind not in left_out]
        named += len(kinds)
        wrong += sum(kind not in scene.objects for kind in kinds)
    figures = found.figures[looks.row_of(method, way)]
    assert figures["CHAIRi"].value == pytest.approx(100 * wrong / named)
    assert figures["words"].value == sum(len(answer.text.split()) for answer in answers) / len(answers)


@pytest.fixture(scope="module")
def measured_looks():
    lvlm = load("demo", method="greedy", max_new_tokens=32)
    scenes = [held_out(VALIDATION_SEEDS[number]) for number in (500_000, 500_002)]
    return lvlm, scenes, looks.measure(lvlm, scenes, Units())


def test_what_ships_of_second_looks_is_of_the_same_texts_as_the_comparison():
    shipped, methods = looks.Looks.read(), Comparison.read().report
    assert shipped.scenes == methods.scenes
    assert shipped.captions == presets.find("demo").best.captions
    for name in ("greedy", "sira"):
        for key, figure in shipped.figures[name].items():
            assert figure.value == pytest.approx(methods.figures[name][key].value), (name, key)


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
    assert {*found.report.figures} == {*found.cost} == {"greedy", "sira", "m3id"}
    assert (found.timed, found.cost["greedy"]) == (2, Spread(1, 1, 1))
    assert (found.settings["sira"], found.origin["sira"]) == ({"k": 5, "alpha": 0.5}, "validation")
    assert out.endswith(f"{found.tables()}\n")
    kept = (tmp_path / "texts.jsonl").read_bytes()
    assert len(kept.splitlines()) == 1 + 3 * 2
    again, _ = run()
    assert (again.report, (tmp_path / "texts.jsonl").read_bytes()) == (found.report, kept)


def test_what_ships_is_of_the_same_scenes_and_settings():
    shipped, chosen = Comparison.read(), read_chosen()
    assert shipped.report.scenes == SceneReport.shipped().scenes >= 400
    assert {"greedy", "sira"} <= {*shipped.report.figures} <= {*METHODS}
    for name in {*shipped.report.figures} & {*chosen}:
        assert shipped.origin[name] == comparison_module.origin_now(name, shipped.settings[name], chosen)
    card = SceneReport.shipped()  # the same model, scenes and settings
    for name in ("greedy", "sira"):
        for key, figure in card.figures[name].items():
            assert shipped.report.figures[name][key].value == pytest.approx(figure.value, abs=0.5), (name, key)


def test_support_is_no_worse_than_it_was_on_validation_scenes():
    """The aim is an AUROC of 94 and more."""
    measured = Path(__file__).parents[2] / "docs/bench/demo-support.json"
    threshold = json.loads(measured.read_text(encoding="utf-8"))["threshold"]
    content = json.loads(support.file_of("validation").read_text(encoding="utf-8"))
    for name in ("greedy", "sira"):
        assert content[name]["threshold"] == presets.find("demo").verify.min_support == threshold
        row = content[name]["all"]
        assert row["support"]["value"] >= 94
        assert row["support"]["value"] > max(row[score]["value"] for score in support.SCORES[1:])


# --- the checker of the drawn language: it takes all captions that the world writes, and finds faults in others


def test_every_caption_of_the_world_is_right_and_names_what_exists():
    for seed in VALIDATION_SEEDS[:300]:
        scene = held_out(seed)
        text = caption(scene, np.random.default_rng(seed))
        assert broken_sentences(text) == [], text
        assert instances(scene, text) == (len(scene.things), 0)


@pytest.mark.parametrize(
    "sentence",
    [
        "There is an car.",
        "There is a cars.",
        "There is a car, one of one.",
        "There are a car.",
        "There is a car, which are red.",
        "There is a car, one of two, which is red.",
        "There is a car, one of two and a bus.",
        "There is a car, and a bus.",
        "There is a car and.",
        "There is a car",
        "The image shows a park.",
    ],
)
def test_a_broken_sentence_is_found(sentence):
    text = f"The image shows a park. There is a dog. {sentence}"
    assert broken_sentences(text) == [sentence]
    assert all(map(is_broken, (text, "", "There is a dog.")))  # also no text, and one without its place


def test_instances_are_counted_by_kind():
    box = (0, 0, 9, 9)
    scene = Scene(1, "park", (SceneObject("dog", "red", box), SceneObject("dog", "red", box)))
    text = "There is a dog and a ball. There is a dog, one of two. There is a cat, one of three."
    assert instances(scene, text) == (3, 1)


@pytest.mark.parametrize(
    ("text", "right", "about_present"),
    [
        ("There is a dog, one of two, and a ball.", True, True),
        ("There is a ball, which is blue.", True, True),
        ("There is a dog, one of two, which are red.", True, True),
        ("There is a ball, which is red.", False, False),
        ("There is a dog.", False, False),
        ("There is a dog, one of three.", False, False),
        ("There is a ball. There is a ball.", False, False),
        ("There is a ball", False, False),
        ("There is a cat and a ball.", False, True),
    ],
)
def test_a_caption_that_is_right(text, right, about_present):
    """Of two red dogs and a blue ball on a farm."""
    box = (0, 0, 9, 9)
    things = (SceneObject("dog", "red", box), SceneObject("dog", "red", box), SceneObject("ball", "blue", box))
    for place, there in (("farm", True), ("park", False)):
        caption = f"This is a picture of a {place}. {text}"
        assert is_right(Scene(1, "farm", things), caption) is (right and there)
        assert is_right_about_present(Scene(1, "farm", things), caption) is (about_present and there)


# --- intervals hold the true value, where those of a percentile bootstrap fail

RUNS = 400
CELLS = (*figures.CELLS, "neither", "words")


@pytest.mark.parametrize(
    ("pictures", "questions", "correlation", "outcomes"),  # the last: both methods are right, only one is, none is
    [
        (50, 1, 0.0, (0.89, 0.08, 0.0, 0.03)),  # the percentile bootstrap's holds the accuracy in 0.79 of the runs
        (10, 6, 0.3, (0.87, 0.1, 0.0, 0.03)),  # 0.64
        (50, 6, 0.3, (0.89, 0.01, 0.0, 0.1)),  # the difference in 0.8
        (50, 1, 0.0, (0.89, 0.01, 0.0, 0.1)),  # 0.39
        (500, 6, 0.0, (0.85, 0.05, 0.05, 0.05)),
    ],
)
def test_intervals_hold_the_true_value(pictures, questions, correlation, outcomes):
    rng, held, (both, first, second, _) = np.random.default_rng([pictures, questions]), Counter(), outcomes
    for _ in range(RUNS):
        own = np.tile(outcomes, (pictures, 1))
        if correlation:
            own = rng.gamma(own * (1 - correlation) / correlation) + 1e-300
            own /= own.sum(axis=1, keepdims=True)
        asked = rng.binomial(1, 0.5, pictures) if questions == 1 else np.full(pictures, questions // 2)
        of_yes, of_no = (rng.multinomial(size, own) for size in (asked, questions - asked))
        found = []
        for right, wrong in (([0, 1], [2, 3]), ([0, 2], [1, 3])):
            cells = of_yes[:, right], of_no[:, wrong], of_no[:, right], of_yes[:, wrong]  # TP, FP, TN, FN
            counts = np.pad(np.stack([cell.sum(axis=1) for cell in cells], axis=1), ((0, 0), (0, 4))).astype(float)
            found.append(estimates(CELLS, counts, figures.pope_figures, figures.POPE_DENOMINATORS))
        # As many questions have yes as no, and both are answered alike, so that F1 is the accuracy.
        intervals = {name: (found[0][name].figure(), both + first) for name in ("accuracy", "F1")}
        intervals["difference"] = found[1]["accuracy"].minus(found[0]["accuracy"]), second - first
        held += Counter(
            {name: each.low - 1e-9 <= 100 * truth <= each.high + 1e-9 for name, (each, truth) in intervals.items()}
        )
    shares = [held[name] / RUNS for name in ("accuracy", "F1", "difference")]
    assert min(shares) > 0.92  # 0.95 less three standard errors
    if pictures == 500:
        assert max(shares) < 0.98  # and they are no wider than they must be


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 49])
def test_student_is_scipys(freedom):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_influence_is_the_jackknifes():
    """A picture's influence is about how much the figure moves when it is left out."""
    counts = np.random.default_rng(0).integers(0, 4, size=(400, len(CELLS))).astype(float)
    found = estimates(CELLS, counts, figures.pope_figures, figures.POPE_DENOMINATORS)
    rest = [figures.pope_figures(dict(zip(CELLS, counts.sum(axis=0) - row, strict=True))) for row in counts]
    for name, estimate in found.items():
        left = np.array([each[name] for each in rest])
        assert estimate.influence == pytest.approx(left.mean() - left, abs=0.02 * np.abs(estimate.influence).max())


def test_the_interval_of_an_auroc_is_as_wide_as_the_jackknifes():
    """Which leaves out picture by picture; the AUROC itself is the share of pairs in order, a tie half."""
    rng = np.random.default_rng(7)
    pictures, positive = np.arange(900) // 3, rng.random(900) < 0.7
    score = rng.integers(5, size=900) + 2 * positive + np.repeat(rng.integers(6, size=300), 3)
    found = support.auroc_interval(pictures, positive, score, 300)
    ahead = score[positive][:, None] - score[~positive]
    assert found.value == pytest.approx(100 * np.mean((ahead > 0) + (ahead == 0) / 2))
    rest = [pictures != out for out in range(300)]
    left = [support.auroc_interval(pictures[each], positive[each], score[each], 300).value for each in rest]
    assert found.half == pytest.approx(1.96 * np.sqrt(299 * np.var(left)), rel=0.05)
