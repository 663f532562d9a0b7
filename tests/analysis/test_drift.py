"""Drift and KL of the references: against the two-pass masked reference, by hand, and as a command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from sira_cli.analysis import drift
from sira_cli.analysis.drift import LastRow, measure_drift, shuffle_patches
from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.errors import PictureError, SettingsError
from sira_cli.run.lvlm import load
from tests.support import tiny
from tests.support.helpers import generate_sira

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))


def row_of(model: Any, run: Any) -> LastRow:
    """The last position's row after every decoder layer while `run()` runs the model and returns its logits."""
    rows: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda layer, args, hidden: rows.append(hidden[0, -1].double()))
        for layer in model.get_decoder().layers
    ]
    logits = run()
    for handle in handles:
        handle.remove()
    return LastRow(torch.stack(rows), logits)


def agree(measured: drift.Divergence, full: LastRow, other: LastRow) -> None:
    one, two = full.hidden.double(), other.hidden.double()
    expected = 1 - (one * two).sum(-1) / (one.norm(dim=-1) * two.norm(dim=-1))
    torch.testing.assert_close(torch.tensor(measured.drift).double(), expected, atol=2e-6, rtol=1e-3)
    p, q = (row.logits.double().softmax(-1) for row in (full, other))
    assert measured.kl == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("k", [1, tiny.LAYERS // 2])
@torch.no_grad()
def test_the_cf_stream_drifts_as_algorithm_1_says(family: tiny.Tiny, k: int):
    model, inputs = family.model, family.inputs
    full = row_of(model, lambda: model(**inputs, use_cache=False).logits[0, -1])
    cf = row_of(model, lambda: reference.counterfactual(model, inputs, family.image, k))
    rows = drift.last_rows(model, inputs, SiraConfig(k=k))
    measured, boundary = drift.diverge(*rows), tiny.LAYERS - k
    assert measured.drift[:boundary] == (0.0,) * boundary
    agree(measured, full, cf)
    # Else the agreement would prove little. A short convolution may see text alone, in both streams.
    mixers = find_backbone(model).mixers
    assert min(measured.drift[layer] for layer in range(boundary, tiny.LAYERS) if not mixers[layer].recurrent) > 1e-3
    # It is the position from which `generate` goes on.
    _, steps = generate_sira(model, inputs, SiraConfig(k=k))
    for row, stream in zip(rows, (steps[0].full, steps[0].cf), strict=True):
        torch.testing.assert_close(row.logits, stream[0], atol=1e-4, rtol=0)


def test_small_angles_lose_no_digits():
    angle = 1e-5  # 1 - cos = 5e-11, far below float32's resolution at 1
    small = drift.cosine_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, angle]]))
    assert small.item() == pytest.approx(angle**2 / 2, rel=1e-4)


# --- perturbed pictures


def example(number: int) -> Image.Image:
    with Image.open(EXAMPLES[number]) as opened:
        return opened.convert("RGB")


@pytest.mark.parametrize(("size", "patches"), [((50, 37), 4), ((9, 30), 5)])
def test_the_shuffle_moves_whole_patches(size, patches):
    number = np.arange(size[0] * size[1]).reshape(size[::-1])  # every pixel has its own colour
    before = np.stack([number % 256, number // 256, 0 * number], axis=-1).astype(np.uint8)
    after = np.array(shuffle_patches(Image.fromarray(before), patches, seed=3))
    height, width = before.shape[0] // patches, before.shape[1] // patches
    rows, columns = range(0, patches * height, height), range(0, patches * width, width)
    cut = [
        [pixels[row : row + height, column : column + width].tobytes() for row in rows for column in columns]
        for pixels in (before, after)
    ]
    assert sorted(cut[0]) == sorted(cut[1])
    assert cut[0] != cut[1]
    assert np.array_equal(after[patches * height :], before[patches * height :])  # the rest at the bottom
    assert np.array_equal(after[:, patches * width :], before[:, patches * width :])  # and at the right


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", k=4)


@torch.no_grad()
def test_blur_and_shuffle_are_the_plain_model_on_other_pictures(lvlm):
    prompt, picture = "Please describe this image in detail.", example(0)
    measured = measure_drift(lvlm, picture, prompt)

    def plain(shown: Image.Image) -> LastRow:
        return row_of(lvlm.model, lambda: lvlm.model(**lvlm.prepare([shown], [prompt])).logits[0, -1])

    full = plain(picture)
    agree(measured["blur"], full, plain(picture.filter(ImageFilter.GaussianBlur(0.05 * min(picture.size)))))
    agree(measured["shuffle"], full, plain(shuffle_patches(picture, 8, 0)))
    assert measured["blur"].drift[0] > 1e-4  # from the first layer on, unlike the CF stream
    assert measured["cf"].drift[:4] == (0.0,) * 4
    assert measured["cf"].drift[4] > 1e-4


def test_what_cannot_be_measured(lvlm):
    with pytest.raises(SettingsError, match="placeholder"):
        measure_drift(lvlm, example(0), "<image>")
    broken = load("demo")
    with torch.no_grad():
        broken.model.get_decoder().layers[2].input_layernorm.weight[0] = math.inf  # a matrix may be packed
    with pytest.raises(PictureError, match=r"out of range of torch\.float32"):
        measure_drift(broken, example(0), "Why?")


# --- the command


def test_means_and_errors_over_pictures(sira, lvlm, tmp_path):
    file, figure = tmp_path / "drift.json", tmp_path / "drift.PDF"
    options = ("-p", "demo", "--k", 4, "--question", "A dog?", "-o", file, "--plot", figure)
    code, out, err = sira("drift", *EXAMPLES[:2], *options)
    rows = {line.split("  ")[1]: line.split() for line in out.splitlines() if line.startswith("  ")}
    assert code == 0
    assert err == ""
    assert rows["early, 1-4"][2] == "0.0000"  # of the CF stream
    assert figure.read_bytes().startswith(b"%PDF-")
    record = json.loads(file.read_text(encoding="utf-8"))
    expected = {"schema": "sira.drift/1", "preset": "demo", "prompt": "A dog?", "dtype": "float32"}
    expected |= {"quantization": None, "k": 4, "layers": 8, "boundary": 4, "pictures": 2, "failures": []}
    expected |= {"perturbations": {"blur": 0.05, "patches": 8, "seed": 0}}
    assert record.items() >= expected.items()
    measured = [measure_drift(lvlm, example(number), "A dog?") for number in range(2)]
    for name, found in record["references"].items():
        one, two = (picture[name] for picture in measured)
        means = [(a + b) / 2 for a, b in zip(one.drift, two.drift, strict=True)]
        assert [layer["mean"] for layer in found["drift"]] == pytest.approx(means)
        kl = {"mean": pytest.approx((one.kl + two.kl) / 2), "stderr": pytest.approx(abs(one.kl - two.kl) / 2)}
        assert found["kl"] == kl
        assert found["early"]["mean"] == pytest.approx(sum(means[:4]) / 4)
        assert found["late"]["mean"] == pytest.approx(sum(means[4:]) / 4)


def test_bad_pictures_do_not_end_the_run(sira, tmp_path):
    bad, small = tmp_path / "bad.png", tmp_path / "small.png"
    bad.write_bytes(b"not a picture")
    Image.new("RGB", (20, 7)).save(small)
    code, out, err = sira("drift", bad, EXAMPLES[0], small, "-p", "demo", "--json")
    record = json.loads(out)
    assert (code, record["pictures"]) == (3, 1)
    assert [failure["file_name"] for failure in record["failures"]] == [str(bad), str(small)]
    assert "20 x 7 pixels cannot be cut into 8 x 8 patches: ask for fewer\nsira: 2 of 3 pictures failed\n" in err
    assert record["references"]["cf"]["kl"]["stderr"] is None
    assert sira("drift", bad, "-p", "demo", "--quiet", "-o", tmp_path / "none.json")[0] == 2
    assert not (tmp_path / "none.json").exists()


def test_without_matplotlib(sira, monkeypatch, tmp_path):
    """Known before the model is loaded."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sira_cli.cli.research.load_model", None)
    code, out, err = sira("drift", EXAMPLES[0], "-p", "demo", "--plot", tmp_path / "drift.pdf")
    assert code == 2
    assert out == ""
    assert "drift.pdf: a figure needs matplotlib: " in err
    assert "pip install 'matplotlib" in err
