"""MaskCD: which heads are silenced, and that only the contrast stream misses them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sira_cli import attach
from sira_cli.errors import DataError, SettingsError, UnsupportedModelError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.greedy_apc import GreedyApc
from sira_cli.methods.maskcd import MASS, MaskCd, usual_threshold, z_scores
from sira_cli.models.presets import SHIPPED_CALIBRATIONS
from sira_cli.run.lvlm import load
from tests.support import reference_methods as slow
from tests.support import tiny
from tests.support.decoding import attached, case_of, decoded
from tests.support.helpers import generate, hooks
from tests.support.runs import key_of

EXAMPLE = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[0]
UNEVEN = [  # of 6 layers with 4 heads; above 0.7 their layer's mean, in standard deviations: none, one or two of them
    [0.1, 0.1, 0.1, 0.1],
    [0.1, 0.9, 0.1, 0.1],
    [0.9, 0.1, 0.9, 0.1],
    [0.2, 0.3, 0.4, 0.5],
    [0.8, 0.7, 0.8, 0.1],
    [0.1, 0.1, 0.1, 0.9],
]


def written(folder: Path, mass: list[list[float]], **settings) -> MaskCd:
    path = folder / "maskcd.safetensors"
    Calibration(Origin("maskcd", "tiny", "r", {}, "0"), {MASS: torch.tensor(mass)}).write(path)
    return MaskCd(calibration=str(path), **settings)


def expected_heads(mass: list[list[float]], threshold: float) -> list[list[bool]]:
    heads = []
    for row in mass:
        mean = sum(row) / len(row)
        spread = math.sqrt(sum((value - mean) ** 2 for value in row) / len(row))
        heads.append([spread > 1e-6 and (value - mean) / spread > threshold for value in row])
    return heads


@pytest.mark.parametrize("threshold", [0.0, 0.7, 0.99, 1.2, 1.7])
def test_image_heads_stand_out_in_their_layer(tmp_path, threshold):
    method = written(tmp_path, UNEVEN, threshold=threshold)
    assert method.image_heads().tolist() == expected_heads(UNEVEN, threshold)


def test_z_scores_and_the_usual_threshold_by_hand():
    assert z_scores(torch.tensor([[1.0, 1.0, 1.0, 5.0]]))[0].tolist() == pytest.approx([-1 / 3**0.5] * 3 + [3**0.5])
    assert usual_threshold(32) == usual_threshold(40) == 2.5
    # One head of many that stands out has sqrt(H - 1), and no other z-score is larger: 2.5 is 0.449 of it for 32.
    assert usual_threshold(4) == pytest.approx(2.5 * 3**0.5 / 31**0.5)
    assert usual_threshold(28) == pytest.approx(2.5 * 27**0.5 / 31**0.5)
    assert MaskCd(threshold=2.5).threshold_for(4) == 2.5


def test_without_an_image_head_it_is_refused_and_not_greedy_unseen(tmp_path):
    case = case_of("LLaVA-1.5")
    method = written(tmp_path, UNEVEN, threshold=2.5)
    message = r"no head has a z-score above 2\.5, the largest is 1\.732 \(layer 1, head 1\): give method maskcd a lower"
    with pytest.raises(SettingsError, match=message), attached(method, case):
        pass
    with pytest.raises(SettingsError, match=message):
        method.check_model(case.model, None)
    with pytest.raises(SettingsError, match="no head has"):
        written(tmp_path, [[0.5] * 4] * 6, threshold=0.0).image_heads()


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Gemma 3", "Qwen3-VL"])
def test_several_heads_and_layers_without_one_equal_the_reference(tmp_path, name):
    """Gemma 3 and Qwen3-VL have heads of a size of their own, all of them share keys between heads."""
    case = case_of(name)
    mass = [[*row[:3], row[3] + 1e-4] for row in UNEVEN]  # so that the reference can divide by every spread
    expected = slow.maskcd(case, mass, 0.99)
    tokens, scores = decoded(written(tmp_path, mass, threshold=0.99), case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)


def test_the_full_stream_is_the_model_s_own(tmp_path):
    """With alpha 0 its scores are those of greedy decoding with the cut-off, to the last bit."""
    case = case_of("Qwen2.5-VL")
    _, scores = decoded(written(tmp_path, UNEVEN, alpha=0.0, threshold=0.7), case)
    _, plain = decoded(GreedyApc(), case)
    assert torch.equal(scores, plain)


def test_heads_are_silent_in_the_second_pass_only_and_hooks_go_also_after_an_error(tmp_path, monkeypatch):
    case = case_of("LLaVA-1.5")
    generate(case.model, case.inputs)  # transformers puts hooks of its own on a model that runs for the first time
    before, seen, broken = hooks(case.model), [], []
    projection = case.model.get_decoder().layers[1].self_attn.o_proj  # head 1 is its image head
    original = projection.forward

    def watched(hidden):
        zeros = (hidden[..., 16:32] == 0).all(), (hidden[..., :16] == 0).any(), (hidden[..., 32:] == 0).any()
        seen.append((hooks(projection), *map(bool, zeros)))
        if broken and hooks(projection):
            raise ZeroDivisionError
        return original(hidden)

    monkeypatch.setattr(projection, "forward", watched)
    with attached(written(tmp_path, UNEVEN, threshold=1.2), case):
        generate(case.model, case.inputs)
        assert hooks(projection) == 0
        assert seen == [(0, False, False, False), (1, True, False, False)] * 6
        broken.append(True)
        with pytest.raises(ZeroDivisionError):
            generate(case.model, case.inputs)
        assert hooks(projection) == 0
    assert hooks(case.model) == before


def test_a_calibration_of_another_model_is_refused(tmp_path):
    case = case_of("LLaVA-1.5")
    for mass, shape in (([[0.1] * 3 + [0.9]] * 5, "5 x 4"), ([[0.1] * 7 + [0.9]] * 6, "6 x 8")):
        method = written(tmp_path, mass, threshold=1.0)
        with pytest.raises(
            SettingsError, match=rf"made for a model of {shape} heads .* has 6 x 4: sira calibrate maskcd"
        ):
            method.check_model(case.model, None)
    path = tmp_path / "maskcd.safetensors"
    for tensors in ({"other": torch.ones(2)}, {MASS: torch.ones(2)}, {MASS: torch.full((6, 4), torch.nan)}):
        Calibration(Origin("maskcd", "tiny", "r", {}, "0"), tensors).write(path)
        with pytest.raises(DataError, match="has no image_mass"):
            MaskCd(calibration=str(path)).image_heads()
    with pytest.raises(SettingsError, match="needs a calibration"):
        MaskCd().image_heads()


def test_a_changed_file_counts_at_once(tmp_path):
    assert written(tmp_path, UNEVEN, threshold=1.2).image_heads().sum() == 3
    flipped = [row[::-1] for row in UNEVEN]
    method = written(tmp_path, flipped, threshold=1.2)
    assert method.image_heads().tolist() == expected_heads(flipped, 1.2)


def test_models_without_an_o_proj_are_refused(tmp_path):
    case = tiny.llava()
    attention = case.model.get_decoder().layers[2].self_attn
    attention.out = attention.o_proj
    del attention.o_proj
    with pytest.raises(UnsupportedModelError, match="no `o_proj`"):
        written(tmp_path, UNEVEN).check_model(case.model, None)


@pytest.mark.parametrize("name", tiny.WITH_HEADS)
def test_a_stand_in_has_one_image_head_per_layer(tmp_path, name):
    method = written(tmp_path, MaskCd().stand_in(case_of(name).model)[MASS].tolist())
    assert method.image_heads().sum(dim=1).tolist() == [1] * tiny.LAYERS
    wide = torch.full((1, 32), 0.1)
    wide[0, 3] = 0.9
    assert float(z_scores(wide).max()) > 2.5


def test_records_and_keys_hold_the_threshold_in_force(sira, tmp_path):
    shipped = next((SHIPPED_CALIBRATIONS / "maskcd").glob("*.safetensors"))
    lvlm = load("demo", method="maskcd", max_new_tokens=4)
    threshold = 2.5 * math.sqrt(3 / 31)
    held = lvlm.caption(EXAMPLE).method_settings
    assert held["threshold"] == pytest.approx(threshold)
    assert held["calibration"].startswith("sha256:")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(shipped.read_bytes())

    def key(**settings):
        return key_of(load("demo", method="maskcd", **settings), "caption", "a", "b", "c")

    assert key() == key(calibration=str(copy)) == key(threshold=threshold) != key(threshold=1.2)
    command = ("caption", EXAMPLE, "-p", "demo", "--method", "maskcd", "--max-new-tokens", 4, "--json")
    _, out, _ = sira(*command, "--set", "threshold=1.2", "--set", f"calibration={copy}")
    assert json.loads(out)["method_settings"]["threshold"] == 1.2
    code, _, err = sira(*command, "--set", "threshold=2.5")
    assert code == 2
    assert "the largest is 1.5" in err


def test_attach_takes_a_calibration_and_one_s_own_inputs(tmp_path):
    case = case_of("LLaVA-1.5")
    method = written(tmp_path, UNEVEN, threshold=0.7)
    expected, _ = decoded(method, case)
    settings = {"calibration": method.calibration, "threshold": 0.7}
    with attach(case.model, method="maskcd", inputs=case.inputs, **settings):
        assert torch.equal(generate(case.model, case.inputs), expected)
    with (
        pytest.raises(SettingsError, match="set `calibration=` to a file"),
        attach(case.model, method="maskcd", inputs=case.inputs),
    ):
        pass


def test_the_shipped_calibration_silences_some_heads_and_says_what_it_is_from():
    lvlm = load("demo", method="maskcd")
    method = lvlm.decoder
    assert isinstance(method, MaskCd)
    assert 0 < int(method.image_heads().sum()) < method.image_heads().numel() / 2
    origin = method.read().origin
    assert (origin.kind, origin.model, origin.revision) == ("maskcd", "bundled", lvlm.revision)
    assert origin.made_from["pictures"] == 32
    assert replace(method, threshold=0.0).image_heads().sum() > method.image_heads().sum()
