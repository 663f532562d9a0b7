"""Several benchmarks asked of one model, from Python: what `sira eval` does without a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from sira_cli.errors import PictureError, SettingsError
from sira_cli.eval.chair import Chair
from sira_cli.eval.evaluation import Evaluation, methods_of
from sira_cli.eval.pope import Pope
from sira_cli.eval.suite import Suite
from sira_cli.look.claims import Verify
from sira_cli.pictures.fetching import Fetched, ImageFolder
from sira_cli.run.events import Advanced, Remark, StageStarted


@pytest.fixture
def pope_part(scenes) -> Pope:
    return Pope([scenes / "pope" / "scenes_pope_random.json"])


@pytest.fixture
def chair(scenes) -> Chair:
    """About two pictures."""
    ids = [int(line) for line in (scenes / "coco" / "ids.txt").read_text().split()][:2]
    return Chair(scenes / "coco", ids=ids, language="fallback")


def test_each_benchmark_has_the_report_that_it_has_alone(demo, scenes, pope_part, chair, tmp_path):
    """And a second look where it can have one: what a method cannot do is left out, with the reason."""
    images = str(scenes / "images")
    look = Verify(mode="guide")
    chosen = methods_of(demo.preset, ["sira", "opera"])
    suite = Suite(
        [pope_part, chair],
        images,
        chosen,
        output=str(tmp_path),
        in_folders=True,
        batch_size=16,
        max_new_tokens=4,
        verify=look,
        looked_at=["sira", "opera"],
        able_only=True,
    )
    (remark,) = (event.text for event in suite.events(demo) if isinstance(event, Remark))
    assert remark.startswith("opera has no second look: ")
    for report, benchmark, looks in zip(suite.reports, (pope_part, chair), ({}, {"sira": look}), strict=True):
        settings = {"max_new_tokens": 4}
        alone = Evaluation(benchmark, images, chosen, batch_size=16, settings=settings, looks=looks)
        list(alone.events(demo))
        assert [row.counts | {"seconds": 0} for row in report.rows] == [
            row.counts | {"seconds": 0} for row in alone.report().rows
        ]
        assert (tmp_path / benchmark.name / "report.json").read_text() == f"{report.to_json()}\n"


def test_a_second_look_that_a_method_cannot_have_is_refused(demo, scenes, chair):
    chosen = methods_of(demo.preset, ["opera"])
    suite = Suite([chair], ImageFolder(scenes / "images"), chosen, verify=Verify(mode="guide"), looked_at=["opera"])
    with pytest.raises(SettingsError, match="opera"):
        list(suite.events(lambda: pytest.fail("a model was loaded")))


def test_who_asks_again_has_each_report_once(demo, scenes, chair):
    suite = Suite([chair], ImageFolder(scenes / "images"), methods_of(demo.preset, ["sira"]), max_new_tokens=4)
    for _ in range(2):
        list(suite.events(demo))
        assert [report.benchmark for report in suite.reports] == ["chair"]


def test_a_model_that_can_run_no_method_is_refused(demo, scenes, chair, monkeypatch):
    def refuse(method, model, config):
        raise SettingsError(f"{method.name} cannot")

    chosen = methods_of(demo.preset, ["sira"])
    for _, method in chosen.values():
        monkeypatch.setattr(type(method), "check_model", refuse)
    suite = Suite([chair], ImageFolder(scenes / "images"), chosen, able_only=True)
    with pytest.raises(SettingsError, match="greedy cannot"):
        list(suite.events(demo))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"looked_at": ["opera"]}, "opera: a second look is for"),
        ({"in_folders": False}, "each benchmark needs an `output=` of its own"),
    ],
)
def test_what_does_not_fit_together_is_refused(wrong, said, demo, scenes, pope_part, chair, tmp_path):
    how = {"output": tmp_path, "in_folders": True} | wrong
    with pytest.raises(SettingsError, match=said):
        Suite([pope_part, chair], ImageFolder(scenes / "images"), methods_of(demo.preset, ["sira"]), **how)


def test_pictures_are_fetched_benchmark_by_benchmark(demo, pope_part, chair, tmp_path, monkeypatch):
    """One whose first pictures cannot be fetched ends it, before the next."""
    monkeypatch.setattr("sira_cli.pictures.fetching.SAMPLE", 1)
    there = {ask.picture for part in chair.parts for ask in part.asks}
    asked = []

    def fetch(base: str, name: str, folder: Path) -> Fetched:  # in place of a server
        asked.append(name)
        (folder / name).touch()
        return Fetched(name, 10) if name in there else Fetched(name, 0, f"{name}: the server answers 404")

    monkeypatch.setattr("sira_cli.pictures.fetching._fetch", fetch)
    images = ImageFolder(tmp_path, "http://a.org/val2014")
    suite = Suite([chair, pope_part], images, methods_of(demo.preset, ["sira"]))
    events = suite.fetch()
    seen = [type(next(events)) for _ in range(4)]
    assert seen == [StageStarted, Advanced, Remark, Advanced]
    first = next(ask.picture for part in pope_part.parts for ask in part.asks if ask.picture not in there)
    with pytest.raises(PictureError, match="the server answers 404"):
        list(events)
    assert asked == [*chair.truth.names.values(), first]
