"""Fixtures that several tests of `sira eval` share."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path

import pytest

from sira_cli.demo.export import export
from sira_cli.demo.questions import Questions, held_out
from sira_cli.demo.scenes import TEST_SEEDS
from sira_cli.eval.amber import Amber
from sira_cli.eval.chair import Chair
from sira_cli.run.lvlm import Lvlm
from tests.support.eval.benchmarks import IMAGES, benchmark, write_amber, write_coco
from tests.support.eval.writing import SCENES, SPLITS


@pytest.fixture(scope="session")
def scenes(tmp_path_factory) -> Path:
    """What the demo exports of drawn scenes: pictures, and each benchmark's files about them."""
    folder = tmp_path_factory.mktemp("scenes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sira_cli.demo.export.Questions", functools.partial(Questions, sample=50))
        export([held_out(seed) for seed in TEST_SEEDS[:SCENES]], folder)
    return folder


@pytest.fixture
def loaded(demo, monkeypatch) -> Counter:
    """Commands get the model that is loaded already; what it is asked is counted, by method."""
    asked: Counter = Counter()
    answer = Lvlm.answer

    def counted(self, inputs, *args, **options):
        asked[self.method] += len(inputs["input_ids"])
        return answer(self, inputs, *args, **options)

    monkeypatch.setattr(Lvlm, "answer", counted)
    monkeypatch.setattr(
        "sira_cli.cli.eval.load_model", lambda preset, model, method, **more: demo.under(method, preset)
    )
    return asked


@pytest.fixture
def pope(sira, scenes, loaded):
    """`sira eval pope` on the scenes, as JSON."""

    def run(*args: object, images: Path = scenes / "images", splits=SPLITS) -> tuple[int, dict, str]:
        files = [scenes / "pope" / f"scenes_pope_{split}.json" for split in splits]
        given = [] if "--answers" in args else ["--images", images, "-p", "demo", "-b", 16]
        code, out, err = sira("eval", "pope", *files, *given, "--json", *args)
        return code, json.loads(out) if out else {}, err

    return run


@pytest.fixture
def coco(tmp_path) -> Path:
    return write_coco(tmp_path / "coco" / "annotations").parent


@pytest.fixture
def chair(coco) -> Chair:
    return Chair(coco, ids=list(IMAGES), language="fallback")


@pytest.fixture
def data(tmp_path) -> Path:
    return write_amber(tmp_path / "amber")


@pytest.fixture
def amber(data) -> Amber:
    return benchmark(data)
