"""Drift and KL of the references: against the two-pass masked reference, as algebra, and as a command."""

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
from torch.nn import functional as F

from sira_cli.analysis.drift import (
    REFERENCES,
    Divergence,
    DriftReport,
    Estimate,
    LastRow,
    Profile,
    cosine_distance,
    diverge,
    last_rows,
    measure_drift,
    shuffle_patches,
)
from sira_cli.cli.terminal.output import save_plot
from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.errors import PictureError, SettingsError
from sira_cli.run.lvlm import load
from tests.support import tiny
from tests.support.helpers import generate_sira

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))


def states(model: Any, run: Any) -> Tensor:
    """The last position's row after every decoder layer while `run()` runs the model, `[L, d]` float64."""
    rows: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda layer, args, hidden: rows.append(hidden[0, -1].double()))
        for layer in model.get_decoder().layers
    ]
    run()
    for handle in handles:
        handle.remove()
    return torch.stack(rows)


def naive_kl(full: Tensor, other: Tensor) -> float:
    p, q = full.double().softmax(-1), other.double().softmax(-1)
    return float((p * (p / q).log()).sum())


def agree(measured: Divergence, full: LastRow, other: LastRow) -> None:
    one, two = full.hidden.double(), other.hidden.double()
    expected = 1 - (one * two).sum(-1) / (one.norm(dim=-1) * two.norm(dim=-1))
    torch.testing.assert_close(torch.tensor(measured.drift).double(), expected, atol=2e-6, rtol=1e-3)
    assert measured.kl == pytest.approx(naive_kl(full.logits, other.logits), rel=1e-3, abs=1e-6)


# --- against Algorithm 1 by the letter


@pytest.mark.parametrize("k", [1, tiny.LAYERS // 2])
@torch.no_grad()
def test_the_cf_stream_drifts_as_the_reference_says(family: tiny.Tiny, k: int):
    model, inputs = family.model, family.inputs
    logits: list[Tensor] = []
    full = states(model, lambda: logits.append(model(**inputs, use_cache=False).logits[0, -1]))
    cf = states(model, lambda: logits.append(reference.counterfactual(model, inputs, family.image, k)))
    rows = last_rows(model, inputs, SiraConfig(k=k))
    measured, boundary = diverge(*rows), tiny.LAYERS - k
    assert measured.drift[:boundary] == (0.0,) * boundary
    agree(measured, LastRow(full, logits[0]), LastRow(cf, logits[1]))
    # Else the agreement would prove little. A short convolution may see text alone, in both streams.
    mixers = find_backbone(model).mixers
    assert min(measured.drift[layer] for layer in range(boundary, tiny.LAYERS) if not mixers[layer].recurrent) > 1e-3
    # It is the position from which `generate` goes on.
    _, steps = generate_sira(model, inputs, SiraConfig(k=k))
    for row, stream in zip(rows, (steps[0].full, steps[0].cf), strict=True):
        torch.testing.assert_close(row.logits, stream[0], atol=1e-4, rtol=0)


# --- the metrics


def test_cosine_distance():
    rows = torch.randn(2, 50, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cosine_distance(*rows), 1 - F.cosine_similarity(*rows))
    assert torch.equal(cosine_distance(rows[0], rows[0]), torch.zeros(50))
    angle = 1e-5  # 1 - cos = 5e-11, far below float32's resolution at 1
    small = cosine_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, angle]]))
    assert small.item() == pytest.approx(angle**2 / 2, rel=1e-4)


# --- perturbed pictures


def example(number: int) -> Image.Image:
    with Image.open(EXAMPLES[number]) as opened:
        return opened.convert("RGB")


def noise(width: int, height: int) -> Image.Image:
    """Every pixel of its own colour, so that it can be followed."""
    number = np.arange(width * height)
    pixels = np.stack([number % 256, number // 256, np.zeros_like(number)], axis=-1)
    return Image.fromarray(pixels.reshape(height, width, 3).astype(np.uint8))


@pytest.mark.parametrize(("size", "patches"), [((50, 37), 4), ((9, 30), 5)])
def test_the_shuffle_moves_whole_patches(size, patches):
    before, after = np.array(noise(*size)), np.array(shuffle_patches(noise(*size), patches, seed=3))
    height, width = before.shape[0] // patches, before.shape[1] // patches
    cut = [
        [
            pixels[row : row + height, column : column + width].tobytes()
            for row in range(0, patches * height, height)
            for column in range(0, patches * width, width)
        ]
        for pixels in (before, after)
    ]
    assert after.shape == before.shape
    assert (sorted(cut[0]) == sorted(cut[1]), cut[0] == cut[1]) == (True, False)
    assert np.array_equal(after[patches * height :], before[patches * height :])  # the rest at the bottom
    assert np.array_equal(after[:, patches * width :], before[:, patches * width :])  # and at the right


# --- one picture


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", k=4)


@torch.no_grad()
def test_blur_and_shuffle_are_the_plain_model_on_other_pictures(lvlm):
    prompt, picture = "Is there a tree in the image?", example(0)
    measured = measure_drift(lvlm, picture, prompt)

    def plain(shown: Image.Image) -> LastRow:
        inputs, logits = lvlm.prepare([shown], [prompt]), list[Tensor]()
        return LastRow(states(lvlm.model, lambda: logits.append(lvlm.model(**inputs).logits[0, -1])), *logits)

    full = plain(picture)
    agree(measured["blur"], full, plain(picture.filter(ImageFilter.GaussianBlur(0.05 * min(picture.size)))))
    agree(measured["shuffle"], full, plain(shuffle_patches(picture, 8, 0)))
    assert tuple(measured) == tuple(REFERENCES)
    assert measured["blur"].drift[0] > 1e-4  # from the first layer on, unlike the CF stream
    assert measured["cf"].drift[:4] == (0.0,) * 4
    assert measured["cf"].drift[4] > 1e-4


def test_pictures_that_cannot_be_measured(lvlm):
    small = noise(20, 7)
    with pytest.raises(PictureError, match="20 x 7 pixels cannot be cut into 8 x 8 patches"):
        measure_drift(lvlm, small, "Why?")
    shuffle_patches(small, 7)
    with pytest.raises(SettingsError, match="placeholder"):
        measure_drift(lvlm, example(0), "<image>")
    broken = load("demo")
    with torch.no_grad():
        broken.model.get_decoder().layers[2].input_layernorm.weight[0] = math.inf  # a matrix may be packed
    with pytest.raises(PictureError, match=r"out of range of torch\.float32"):
        measure_drift(broken, example(0), "Why?")


# --- over pictures


@pytest.mark.parametrize(("ending", "beginning"), [(".png", b"\x89PNG"), (".PDF", b"%PDF-"), (".svg", b"<?xml")])
def test_every_format_of_the_figure(tmp_path, ending, beginning):
    one = Estimate(0.25, 0.001)
    profile = Profile(tuple(Estimate(layer / 100, 0.001) for layer in range(1, 41)), one, one, one)
    settings = ("", "some/model", "main", None, "float32", "Why?", 20, 40, 20, {}, 2, ())
    save_plot(DriftReport(*settings, dict.fromkeys(REFERENCES, profile)), tmp_path / f"drift{ending}")
    assert (tmp_path / f"drift{ending}").read_bytes().startswith(beginning)


# --- the command


def test_json(sira, lvlm, tmp_path):
    file = tmp_path / "drift.json"
    code, out, err = sira("drift", *EXAMPLES[:2], "-p", "demo", "--k", 4, "--question", "A dog?", "--json", "-o", file)
    assert (code, err) == (0, "")
    assert file.read_text(encoding="utf-8") == out
    record = json.loads(out)
    expected = {"schema": "sira.drift/1", "preset": "demo", "prompt": "A dog?", "dtype": "float32"}
    expected |= {"quantization": None, "k": 4, "layers": 8, "boundary": 4, "pictures": 2, "failures": []}
    expected |= {"perturbations": {"blur": 0.05, "patches": 8, "seed": 0}}
    assert {name: record[name] for name in expected} == expected
    measured = [measure_drift(lvlm, example(number), "A dog?") for number in range(2)]
    assert list(record["references"]) == [*REFERENCES]
    for name, found in record["references"].items():
        one, two = (picture[name] for picture in measured)
        means = [(a + b) / 2 for a, b in zip(one.drift, two.drift, strict=True)]
        assert [layer["mean"] for layer in found["drift"]] == pytest.approx(means)
        kl = {"mean": pytest.approx((one.kl + two.kl) / 2), "stderr": pytest.approx(abs(one.kl - two.kl) / 2)}
        assert found["kl"] == kl
        assert found["early"]["mean"] == pytest.approx(sum(means[:4]) / 4)
        assert found["late"]["mean"] == pytest.approx(sum(means[4:]) / 4)


def test_the_table_and_the_figure(sira, tmp_path):
    figure = tmp_path / "drift.png"
    options = ("--limit", 1, "--set", "prompt=Say it.", "--plot", figure)
    code, out, err = sira("drift", EXAMPLES[0].parent, "-p", "demo", "--k", 4, *options)
    assert (code, err) == (0, "")
    rows = {line.split("  ")[1]: line.split() for line in out.splitlines() if line.startswith("  ")}
    assert [row for row in rows if row.isdigit()] == [str(layer) for layer in range(1, 9)]
    assert min(map(float, rows["8"][1:])) > 0
    assert rows["early, 1-4"][-3] == "0.0000"  # of the CF stream
    assert "1 picture; K = 4 of L = 8, fork at b = 4" in out
    assert "±" not in out
    with Image.open(figure) as picture:
        assert (picture.format, picture.size) == ("PNG", (1500, 600))


def test_bad_pictures_do_not_end_the_run(sira, tmp_path):
    bad, small = tmp_path / "bad.png", tmp_path / "small.png"
    bad.write_bytes(b"not a picture")
    noise(20, 7).save(small)
    code, out, err = sira("drift", bad, EXAMPLES[0], small, "-p", "demo", "--json")
    record = json.loads(out)
    assert (code, record["pictures"]) == (3, 1)
    assert [failure["file_name"] for failure in record["failures"]] == [str(bad), str(small)]
    errors = [failure["error"] for failure in record["failures"]]
    assert errors[1] == f"{small}: 20 x 7 pixels cannot be cut into 8 x 8 patches: ask for fewer"
    assert err.endswith(f"sira: {errors[0]}\nsira: {errors[1]}\nsira: 2 of 3 pictures failed\n")
    assert record["references"]["cf"]["kl"]["stderr"] is None
    code, out, err = sira("drift", bad, "-p", "demo", "--quiet", "-o", tmp_path / "none.json")
    assert (code, out, err) == (3, "", f"sira: {errors[0]}\n")
    assert not (tmp_path / "none.json").exists()


def test_without_matplotlib(sira, monkeypatch, tmp_path):
    """Known before the model is loaded."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sira_cli.cli.research.load_model", lambda *args: pytest.fail("too late"))
    code, out, err = sira("drift", EXAMPLES[0], "-p", "demo", "--plot", tmp_path / "drift.pdf")
    assert (code, out) == (2, "")
    assert "drift.pdf: a figure needs matplotlib: " in err
    assert "[plot]'" in err
