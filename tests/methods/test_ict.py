"""`ict`: which slices it changes, where, and what it refuses. Its texts: test_methods.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sira_cli.errors import DataError, SettingsError, UnsupportedModelError
from sira_cli.methods.ict import SHARE, Ict, slices_of
from tests.support import reference_methods as slow
from tests.support import tiny
from tests.support.calibrations import calibration_of, strong
from tests.support.decoding import attached, case_of, decoded
from tests.support.helpers import generate, hooks
from tests.support.tiny import Tiny

FAMILIES = ["LLaVA-1.5", "Qwen2.5-VL", "InternVL", "Gemma 3", "PaliGemma"]


def unit(number: int) -> torch.Tensor:
    return torch.eye(32)[number]


def tensors(accuracy: list[list[float]], level: str = "image") -> dict[str, torch.Tensor]:
    """A model of 3 layers and 2 slices; slice s of layer l has spread l + s/10 and points along axis 2l + s."""
    directions = torch.stack([torch.stack([unit(2 * layer + number) for number in range(2)]) for layer in range(3)])
    spread = torch.tensor([[layer + number / 10 for number in range(2)] for layer in range(3)])
    return {f"{level}.direction": directions, f"{level}.spread": spread, f"{level}.accuracy": torch.tensor(accuracy)}


IMAGE = tensors([[0.6, 0.9], [0.5, 0.8], [0.7, 0.7]])
OBJECT = tensors([[0.9, 0.5], [0.5, 0.8], [0.5, 0.5]], "object")


def found(method: Ict, given: dict[str, torch.Tensor]) -> dict[tuple[int, int], float]:
    """What is added, by layer and number in the layer."""
    added = method.vectors(given, 3, 2)
    assert added.shape == (3, 64)
    return {(int(i), int(j)): round(float(added[i, j]), 4) for i, j in added.nonzero()}


def test_the_most_accurate_slices_get_strength_times_spread_along_their_direction():
    # Layer 0, slice 1 (axis 1, spread 0.1); layer 1, slice 1 (axis 3, spread 1.1).
    assert found(Ict(slices=2), IMAGE) == {(0, 32 + 1): 0.8, (1, 32 + 3): 8.8}
    assert found(Ict(slices=2, strength=0.5), IMAGE) == {(0, 32 + 1): 0.05, (1, 32 + 3): 0.55}


def test_of_equally_accurate_slices_the_first_is_taken():
    assert set(found(Ict(slices=3), IMAGE)) == {(0, 33), (1, 35), (2, 4)}


def test_both_levels_add_up_on_one_slice():
    both = {**IMAGE, **OBJECT}
    # Of the object level: layer 0, slice 0, whose spread is 0, and layer 1, slice 1 again.
    assert found(Ict(slices=2), both) == {(0, 33): 0.8, (1, 35): 17.6}
    assert found(Ict(slices=2, level="both"), both) == found(Ict(slices=2), both)
    assert found(Ict(slices=2, level="image"), both) == found(Ict(slices=2), IMAGE)
    assert found(Ict(slices=2, level="object"), both) == {(1, 35): 8.8}


@pytest.mark.parametrize(("layers", "slices", "expected"), [(32, 128, 256), (28, 112, 196), (8, 6, 3), (3, 2, 1)])
def test_the_number_of_slices_is_the_authors_share(layers, slices, expected):
    accuracy = torch.rand(layers, slices, generator=torch.Generator().manual_seed(0))
    given = {
        "image.direction": torch.ones(layers, slices, 32),
        "image.spread": torch.ones(layers, slices),
        "image.accuracy": accuracy,
    }
    added = Ict().vectors(given, layers, slices)
    assert int(added.view(-1, 32).any(dim=1).sum()) == expected == max(1, round(SHARE * layers * slices))


@pytest.mark.parametrize(
    ("method", "given", "shape", "error", "message"),
    [
        (Ict("c", slices=7), IMAGE, (3, 2), SettingsError, "slices of method ict must be 6 or less"),
        (Ict("c", level="object"), IMAGE, (3, 2), SettingsError, "c: has no object level, only image"),
        (Ict("c"), IMAGE, (4, 2), SettingsError, r"made for a model of 3 x 2 slices .* this one has 4 x 2"),
        (Ict("c"), {"image.spread": torch.ones(3, 2)}, (3, 2), DataError, "c: has no image.direction: make it again"),
    ],
)
def test_what_does_not_fit_is_refused(method, given, shape, error, message):
    with pytest.raises(error, match=message):
        method.vectors(given, *shape)


def test_a_width_that_cannot_be_cut_is_refused():
    with pytest.raises(UnsupportedModelError, match="slices of 32, which do not fit into 80"):
        slices_of(80)


def test_a_calibration_of_another_structure_is_refused_when_attaching(tmp_path):
    case = case_of("LLaVA-1.5")
    path = tmp_path / "other.safetensors"
    calibration_of(Ict(), case.model, image__direction=torch.ones(6, 4, 32)).write(path)
    before = hooks(case.model)
    with pytest.raises(SettingsError, match=r"6 x 4 slices .* this one has 6 x 2"), attached(Ict(str(path)), case):
        pass
    assert hooks(case.model) == before


def test_attention_without_o_proj_is_refused():
    case = tiny.llava()
    layer = case.model.get_decoder().layers[2]
    layer.self_attn.dense = layer.self_attn.o_proj
    del layer.self_attn.o_proj
    with pytest.raises(UnsupportedModelError, match="with no `o_proj` to hook"), attached(Ict(), case):
        pass


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_last_position_changes_in_every_pass(name: str):
    """What o_proj gives, less what its weights make of its input: the vector in the last row, nothing elsewhere."""
    case = case_of(name)
    vectors = Ict(slices=12).vectors(strong(Ict(), case.model), 6, 2)
    passes: list[list[torch.Tensor]] = [[] for _ in range(6)]

    def record(layer: int):
        def hook(module: nn.Module, args, output):
            passes[layer].append(output - F.linear(args[0], module.weight, module.bias))

        return hook

    with attached(Ict(slices=12), case):
        projections = [layer.self_attn.o_proj for layer in case.model.get_decoder().layers]
        handles = [each.register_forward_hook(record(number)) for number, each in enumerate(projections)]
        try:
            generate(case.model, case.inputs)
        finally:
            for handle in handles:
                handle.remove()
    for vector, added in zip(vectors, passes, strict=True):
        assert bool(vector.all())
        assert [rows.shape[1] for rows in added] == [case.inputs["input_ids"].shape[1], 1, 1, 1, 1, 1]
        for rows in added:
            torch.testing.assert_close(rows[0, -1], vector, atol=1e-4, rtol=1e-4)
            assert not rows[0, :-1].any()


def test_the_vision_tower_is_left_alone():
    """Some towers have an `o_proj`, too."""
    case = case_of("Pixtral (LLaVA)")
    tower = [each for name, each in case.model.named_modules() if "vision" in name and name.endswith("o_proj")]
    assert tower
    with attached(Ict(slices=12), case):
        assert not any(each._forward_hooks for each in tower)
        assert all(layer.self_attn.o_proj._forward_hooks for layer in case.model.get_decoder().layers)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL"])
def test_logits_processors_get_what_the_changed_model_gives(name: str):
    case = case_of(name)
    vectors = slow.ict_vectors(strong(Ict(), case.model), tiny.LAYERS, 8.0, 1, ("image", "object"))
    expected = slow.ict(case, vectors, penalty=1.7).tokens
    assert decoded(Ict(), case, repetition_penalty=1.7)[0][0].tolist() == expected
    assert expected != slow.ict(case, vectors).tokens


def test_several_returned_sequences_are_rows_like_others():
    case = case_of("LLaVA-1.5")
    torch.manual_seed(0)
    tokens, scores = decoded(Ict(), case, do_sample=True, num_return_sequences=3)
    assert tokens.shape == (3, 6)
    torch.testing.assert_close(scores[0], scores[0, :1].expand(3, -1))
    assert not torch.allclose(scores[0, 0], case.model(**case.inputs).logits[0, -1], atol=1e-2)


def test_the_vectors_follow_the_precision_of_the_layers():
    case = tiny.llava()
    half = Tiny(case.model.bfloat16(), {**case.inputs, "pixel_values": case.inputs["pixel_values"].bfloat16()})
    assert decoded(Ict(), half)[0].shape == (1, 6)


def test_what_would_change_other_positions_is_refused():
    case = case_of("LLaVA-1.5")
    plain = generate(case.model, case.inputs)
    before = hooks(case.model)
    with pytest.raises(UnsupportedModelError, match="leave use_cache on"):
        decoded(Ict(), case, use_cache=False)
    with pytest.raises(UnsupportedModelError, match="chunked prefill"):
        decoded(Ict(), case, prefill_chunk_size=8)
    assert hooks(case.model) == before
    assert torch.equal(generate(case.model, case.inputs), plain)
