"""Which K, without labels: the curves against whole-sequence re-runs, the rule, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sira_cli.analysis.calibration.k_report import KReport, agreement
from sira_cli.analysis.calibration.which_k import Divergences, choose_k, measure_divergence, text_divergence
from sira_cli.core.config import SiraConfig
from sira_cli.core.reference import counterfactual, extend
from sira_cli.errors import SiraError
from sira_cli.models import presets
from sira_cli.models.loading import load
from sira_cli.pictures.sources import as_picture
from tests.support import tiny
from tests.support.checkpoints import write_qwen
from tests.support.decoding import case_of
from tests.support.helpers import hooks, left_pad
from tests.support.prompts import llava_prompts

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))
TEXT = [11, 57, 23]


def by_hand(case: tiny.Tiny, text: list[int], k: int) -> tuple[float, float]:
    """KL and late drift, token by token, each of two passes over the whole sequence."""
    inputs, image, kls, drifts = dict(case.inputs), case.image, [], []
    rows: list[Tensor] = []
    layers = case.model.get_decoder().layers[-k:]
    handles = [
        layer.register_forward_hook(lambda layer, args, out: rows.append(out[0, -1].double())) for layer in layers
    ]
    for token in text:
        rows.clear()
        full = case.model(**inputs, use_cache=False).logits[0, -1].double().log_softmax(0)
        cf = counterfactual(case.model, inputs, image, k).double().log_softmax(0)
        kls.append(sum(math.exp(p) * (p - q) for p, q in zip(full.tolist(), cf.tolist(), strict=True)))
        pairs = list(zip(rows[:k], rows[k:], strict=True))
        drifts.append(sum(float(1 - torch.dot(a, b) / a.norm() / b.norm()) for a, b in pairs) / k)
        inputs = extend(inputs, token, case.grown)
        image = torch.nn.functional.pad(image, (0, 1))
    for handle in handles:
        handle.remove()
    return sum(kls) / len(text), sum(drifts) / len(text)


@pytest.mark.parametrize("name", list(tiny.FAMILIES))
def test_kl_and_drift_equal_whole_sequence_re_runs(name):
    case = case_of(name)
    for k in case.boundaries:
        kl, drift = text_divergence(case.model, SiraConfig(k=k), case.inputs, [TEXT])
        expected_kl, expected_drift = by_hand(case, TEXT, k)
        assert float(kl) == pytest.approx(expected_kl, rel=1e-3, abs=1e-5)
        assert float(drift) == pytest.approx(expected_drift, rel=1e-3, abs=1e-5)


def test_texts_of_a_batch_do_not_depend_on_each_other():
    model, singles = case_of("LLaVA-1.5").model, llava_prompts()[:2]
    texts = [TEXT, [31, 44, 52, 17, 61]]
    model(**singles[0])  # transformers puts hooks of its own on a model that runs for the first time
    before = hooks(model)
    together = text_divergence(model, SiraConfig(k=3), left_pad(singles), texts)
    for row, (single, text) in enumerate(zip(singles, texts, strict=True)):
        alone = text_divergence(model, SiraConfig(k=3), single, [text])
        for one, two in zip(together, alone, strict=True):
            assert float(one[row]) == pytest.approx(float(two), rel=1e-3)
    assert hooks(model) == before


@pytest.mark.parametrize(
    ("kl", "k"),
    [
        ([1.0, 2.0, 3.0, 4.0], 4),  # grows to the end
        ([0.1, 0.95, 0.97, 1.0], 2),  # a plateau
        ([0.1, 0.5, 0.9, 1.0], 3),  # the edge counts
        ([0.1, 0.5, 0.899, 1.0], 4),
        ([0.1, 1.0, 0.2, 0.3], 2),  # a peak
        ([5.0, 5.0, 5.0], 1),
        ([2.0], 1),
    ],
)
def test_the_rule_takes_the_deepest_prefix_that_has_lost_nearly_all(kl, k):
    assert choose_k(kl) == k
    assert choose_k([1000 * value for value in kl]) == k


def test_a_model_that_does_not_look_at_the_pictures_has_no_k():
    with pytest.raises(SiraError, match="does not look at them"):
        choose_k([0.0, 1e-9, 0.0])


def test_agreement_is_the_share_of_resamples_with_the_same_k():
    same = np.array([[0.1, 1.0, 1.0]] * 7)
    assert agreement(same) == 1.0
    split = np.array([[0.1, 1.0, 1.0], [0.1, 0.3, 1.0]])  # together 0.2, 1.3, 2.0: K = 3; the first alone: K = 2
    assert choose_k(split.mean(axis=0).tolist()) == 3
    assert agreement(split) == pytest.approx(0.75, abs=0.05)  # the first twice in a quarter of all draws


def test_the_report_is_made_of_means_over_pictures():
    lvlm = load("demo")
    kl = [tuple(0.1 * (k + picture) for k in range(1, 8)) for picture in (0, 1)]
    report = KReport.of(
        lvlm, [Divergences(each, tuple(2 * value for value in each), 10 + n) for n, each in enumerate(kl)]
    )
    assert [row.kl.mean for row in report.rows] == pytest.approx([0.1 * (k + 0.5) for k in range(1, 8)])
    assert [row.drift.mean for row in report.rows] == pytest.approx([0.2 * (k + 0.5) for k in range(1, 8)])
    assert report.rows[0].kl.stderr == pytest.approx(0.1 / 2)
    assert (report.k, report.half, report.layers, report.pictures, report.tokens) == (7, 4, 8, 2, 21)
    assert json.loads(report.to_json())["schema"] == "sira.which_k/1"


def test_a_model_with_deepstack_gets_no_k_that_it_cannot_fork_at(photos, tmp_path):
    folder = write_qwen(tmp_path / "qwen3", "3")
    lvlm = load(folder, max_new_tokens=3, dtype="float32")
    ((_, found),) = measure_divergence(lvlm, [as_picture(photos["coffee"])])
    assert len(found.kl) == len(found.drift) == 6 - 2
    assert all(value > 0 for value in found.kl)


def test_the_command_end_to_end_with_a_picture_that_fails(sira, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    figure, record, preset = (tmp_path / name for name in ("k.png", "k.json", "mine.yaml"))
    command = ("calibrate", "k", EXAMPLES[0], tmp_path / "broken.png", "-p", "demo", "-b", 2)
    code, out, err = sira(*command, "--plot", figure, "-o", record, "--write-preset", preset)
    assert code == 3, err
    assert "1 of 2 pictures failed" in err
    assert "L/2, the paper's" in out
    assert "the rule" in out
    last = out.strip().splitlines()[-1]
    assert "without labels" in out
    assert "sira sweep" in last
    report = json.loads(record.read_text())
    assert [row["k"] for row in report["rows"]] == list(range(1, 8))
    most = max(row["kl"]["mean"] for row in report["rows"])
    assert report["k"] == next(row["k"] for row in report["rows"] if row["kl"]["mean"] >= 0.9 * most)
    assert report["failures"][0]["file_name"].endswith("broken.png")
    assert figure.read_bytes().startswith(b"\x89PNG")
    written = presets.read(preset)
    assert written.sira.k == report["k"]
    assert load(written).k == report["k"]
    code, _, err = sira("calibrate", "k", tmp_path / "broken.png", "-p", "demo")
    assert (code, "no picture could be measured" in err) == (1, True)
    assert sira(*command, "--write-preset", preset)[0] == 2
    assert sira(*command, "--plot", tmp_path / "k.txt")[0] == 2
