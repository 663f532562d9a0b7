"""`ict` and `maskcd`: what they change, where, and what they refuse. Their texts: test_methods.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sira_cli import attach
from sira_cli.errors import DataError, SettingsError, UnsupportedModelError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.ict import Ict, slices_of
from sira_cli.methods.maskcd import MASS, MaskCd, usual_threshold, z_scores
from sira_cli.models.presets import SHIPPED_CALIBRATIONS
from sira_cli.run.lvlm import load
from tests.support import reference_methods as slow
from tests.support import tiny
from tests.support.helpers import attached, case_of, decoded, generate, hooks
from tests.support.records import key_of
from tests.support.tiny import Tiny

EXAMPLE = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[0]

# --- ict


def tensors(accuracy: list[list[float]], level: str = "image") -> dict[str, torch.Tensor]:
    """A model of 3 layers and 2 slices; slice s of layer l has spread l + s/10 and points along axis 2l + s."""
    spread = torch.tensor([[layer + number / 10 for number in range(2)] for layer in range(3)])
    directions = torch.eye(32)[:6].view(3, 2, 32)
    return {f"{level}.direction": directions, f"{level}.spread": spread, f"{level}.accuracy": torch.tensor(accuracy)}


IMAGE = tensors([[0.6, 0.9], [0.5, 0.8], [0.7, 0.7]])
OBJECT = tensors([[0.9, 0.5], [0.5, 0.8], [0.5, 0.5]], "object")
FIRST, SECOND, THIRD = (0, 32 + 1), (1, 32 + 3), (2, 4)  # layer and number: slice 1 of layers 0 and 1, slice 0 of 2


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        (Ict(slices=2), IMAGE, {FIRST: 0.8, SECOND: 8.8}),  # the most accurate: strength 8, spreads 0.1 and 1.1
        (Ict(slices=2, strength=0.5), IMAGE, {FIRST: 0.05, SECOND: 0.55}),
        (Ict(slices=3), IMAGE, {FIRST: 0.8, SECOND: 8.8, THIRD: 16.0}),  # of equally accurate ones the first
        # Of the object level: layer 0, slice 0, whose spread is 0, and layer 1, slice 1 again.
        (Ict(slices=2), IMAGE | OBJECT, {FIRST: 0.8, SECOND: 17.6}),
        (Ict(slices=2, level="both"), IMAGE | OBJECT, {FIRST: 0.8, SECOND: 17.6}),
        (Ict(slices=2, level="image"), IMAGE | OBJECT, {FIRST: 0.8, SECOND: 8.8}),
        (Ict(slices=2, level="object"), IMAGE | OBJECT, {SECOND: 8.8}),
    ],
)
def test_the_best_slices_get_strength_times_spread_along_their_direction(method: Ict, given, expected):
    added = method.vectors(given, 3, 2)
    assert added.shape == (3, 64)
    assert {(int(i), int(j)): round(float(added[i, j]), 4) for i, j in added.nonzero()} == expected


@pytest.mark.parametrize(("layers", "slices", "expected"), [(32, 128, 256), (28, 112, 196), (8, 6, 3), (3, 2, 1)])
def test_the_number_of_slices_is_the_authors_share(layers, slices, expected):
    accuracy = torch.rand(layers, slices, generator=torch.Generator().manual_seed(0))
    given = {"image.direction": torch.ones(layers, slices, 32), "image.spread": torch.ones(layers, slices)}
    added = Ict().vectors({**given, "image.accuracy": accuracy}, layers, slices)
    assert int(added.view(-1, 32).any(dim=1).sum()) == expected


@pytest.mark.parametrize(
    ("method", "given", "shape", "error", "message"),
    [
        (Ict("c", slices=7), IMAGE, (3, 2), SettingsError, "slices of method ict must be 6 or less"),
        (Ict("c", level="object"), IMAGE, (3, 2), SettingsError, "c: has no object level, only image"),
        (Ict("c"), IMAGE, (4, 2), SettingsError, r"made for a model of 3 x 2 slices .* this one has 4 x 2"),
        (Ict("c"), {"image.spread": torch.ones(3, 2)}, (3, 2), DataError, "c: has no image.direction: make it again"),
    ],
)
def test_a_calibration_of_ict_that_does_not_fit_is_refused(method, given, shape, error, message, tmp_path):
    with pytest.raises(error, match=message):
        method.vectors(given, *shape)
    with pytest.raises(UnsupportedModelError, match="slices of 32, which do not fit into 80"):
        slices_of(80)
    case, path = case_of("LLaVA-1.5"), tmp_path / "other.safetensors"
    other = Ict().stand_in(case.model) | {"image.direction": torch.ones(6, 4, 32)}
    Calibration(Origin("ict", "tiny", "tiny", {}, "0"), other).write(path)
    before = hooks(case.model)
    with pytest.raises(SettingsError, match=r"6 x 4 slices .* this one has 6 x 2"), attached(Ict(str(path)), case):
        pass
    assert hooks(case.model) == before


def test_the_vectors_follow_the_precision_of_the_layers_and_a_prompt_in_pieces_is_refused():
    case = tiny.llava()
    with pytest.raises(UnsupportedModelError, match="chunked"):  # the last positions of pieces would change
        decoded(Ict(), case, prefill_chunk_size=8)
    half = Tiny(case.model.bfloat16(), {**case.inputs, "pixel_values": case.inputs["pixel_values"].bfloat16()})
    assert decoded(Ict(), half)[0].shape == (1, 6)


# --- maskcd

UNEVEN = [  # of 6 layers with 4 heads; above 0.7 their layer's mean, in standard deviations: none, one or two of them
    [0.1, 0.1, 0.1, 0.1],
    [0.1, 0.9, 0.1, 0.1],
    [0.9, 0.1, 0.9, 0.1],
    [0.2, 0.3, 0.4, 0.5],
    [0.8, 0.7, 0.8, 0.1],
    [0.1, 0.1, 0.1, 0.9],
]


def written(folder: Path, mass: object, **settings) -> MaskCd:
    path = folder / "maskcd.safetensors"
    Calibration(Origin("maskcd", "tiny", "r", {}, "0"), {MASS: torch.as_tensor(mass)}).write(path)
    return MaskCd(calibration=str(path), **settings)


def test_z_scores_and_the_usual_threshold_by_hand():
    assert z_scores(torch.tensor([[1.0, 1.0, 1.0, 5.0]]))[0].tolist() == pytest.approx([-1 / 3**0.5] * 3 + [3**0.5])
    assert usual_threshold(32) == usual_threshold(40) == 2.5
    # One head of many that stands out has sqrt(H - 1), and no other z-score is larger: 2.5 is 0.449 of it for 32.
    assert usual_threshold(4) == pytest.approx(2.5 * 3**0.5 / 31**0.5)
    assert usual_threshold(28) == pytest.approx(2.5 * 27**0.5 / 31**0.5)
    assert MaskCd(threshold=2.5).threshold_for(4) == 2.5


OTHER_MODEL = r"made for a model of {} heads .* has 6 x 4: sira calibrate maskcd"


@pytest.mark.parametrize(
    ("mass", "threshold", "error", "message"),
    [
        # Else it would be greedy, unseen.
        (
            UNEVEN,
            2.5,
            SettingsError,
            r"no head has a z-score above 2\.5, the largest is 1\.732 \(layer 1, head 1\): give",
        ),
        ([[0.5] * 4] * 6, 0.0, SettingsError, "no head has"),
        ([[0.1] * 3 + [0.9]] * 5, 1.0, SettingsError, OTHER_MODEL.format("5 x 4")),
        ([[0.1] * 7 + [0.9]] * 6, 1.0, SettingsError, OTHER_MODEL.format("6 x 8")),
        (torch.ones(2), 1.0, DataError, "has no image_mass"),
        (torch.full((6, 4), torch.nan), 1.0, DataError, "has no image_mass"),
    ],
)
def test_a_calibration_of_maskcd_that_does_not_fit_is_refused(mass, threshold, error, message, tmp_path):
    case, method = case_of("LLaVA-1.5"), written(tmp_path, mass, threshold=threshold)
    with pytest.raises(error, match=message):
        method.check_model(case.model, None)
    with pytest.raises(error, match=message), attached(method, case):
        pass


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Gemma 3", "Qwen3-VL"])
def test_several_heads_and_layers_without_one_equal_the_reference(tmp_path, name):
    """Gemma 3 and Qwen3-VL have heads of a size of their own, all of them share keys between heads."""
    case = case_of(name)
    mass = [[*row[:3], row[3] + 1e-4] for row in UNEVEN]  # so that the reference can divide by every spread
    expected = slow.maskcd(case, mass, 0.99)
    tokens, scores = decoded(written(tmp_path, mass, threshold=0.99), case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)


def test_records_and_keys_hold_the_threshold_in_force(tmp_path):
    lvlm, threshold = load("demo", method="maskcd", max_new_tokens=4), 2.5 * math.sqrt(2 / 31)
    held = lvlm.caption(EXAMPLE).method_settings
    assert held["threshold"] == pytest.approx(threshold)
    assert held["calibration"].startswith("sha256:")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(next((SHIPPED_CALIBRATIONS / "maskcd").glob("*.safetensors")).read_bytes())

    def key(**settings):
        return key_of(load("demo", method="maskcd", **settings), "caption", "a", "b", "c")

    assert key() == key(calibration=str(copy)) == key(threshold=threshold) != key(threshold=1.2)
    with pytest.raises(SettingsError, match=r"the largest is 1\.4"):
        load("demo", method="maskcd", threshold=2.5)
    # The shipped calibration silences some heads, and says what it is from.
    heads, origin = lvlm.decoder.image_heads(), lvlm.decoder.read().origin
    assert 0 < int(heads.sum()) < heads.numel() / 2
    assert (origin.kind, origin.model, origin.revision) == ("maskcd", "bundled", lvlm.revision)


def test_attach_takes_a_calibration_and_one_s_own_inputs(tmp_path):
    case = case_of("LLaVA-1.5")
    method = written(tmp_path, MaskCd().stand_in(case.model)[MASS])  # one image head per layer
    assert method.image_heads().sum(dim=1).tolist() == [1] * tiny.LAYERS
    expected, _ = decoded(method, case)
    with attach(case.model, method="maskcd", inputs=case.inputs, calibration=method.calibration):
        assert torch.equal(generate(case.model, case.inputs), expected)
    needed = pytest.raises(SettingsError, match="set `calibration=` to a file")
    with needed, attach(case.model, method="maskcd", inputs=case.inputs):
        pass
