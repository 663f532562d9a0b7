"""`sira calibrate vti`: the authors' formulas, states by hand, pairs of captions, the command, what ships."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sira_cli.analysis.calibration import vti
from sira_cli.analysis.experiment import Units
from sira_cli.demo.labelled import caption_pairs
from sira_cli.demo.questions import held_out, mentions
from sira_cli.errors import DataError, PictureError
from sira_cli.methods.calibrated import Calibration
from sira_cli.methods.vti import IMAGE, TEXT
from sira_cli.models import presets
from sira_cli.models.hub import find_checkpoint
from sira_cli.pictures.sources import located
from sira_cli.run.lvlm import load
from tests.support.eval.writing import lines

CAPTIONS = [
    (
        "coffee",
        "Describe this image in detail.",
        "A cup of coffee on a table.",
        "A cup and a dog on a table, near a cat.",
    ),
    ("tall", "Describe this image in detail.", "A rocket stands there.", "A boat stands there."),
    ("rocket", "What is this?", "It is a rocket.", "It is a horse and two people."),
    ("chelsea", "What is this?", "A cat looks up.", "A cat looks up at a bird."),
]


# --- the authors' formulas


def published_pca(rows: Tensor) -> Tensor:
    """Component + mean of `[groups, n, D]` as their `PCA` and `svd_flip` have them, `[groups, D]`."""
    mean = rows.mean(1, keepdim=True)
    u, _, v = torch.linalg.svd(rows - mean, full_matrices=False)
    largest = u[:, :, 0].abs().argmax(1)
    signs = u[torch.arange(len(u)), largest, 0].sign()
    return v[:, 0] * signs[:, None] + mean[:, 0]


def shifts(*shape: int, seed: int) -> Tensor:
    """Random shifts `[n, ...]` with a mean and one direction of larger spread."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(*shape, generator=generator)
    strengths = torch.randn(shape[0], *[1] * (len(shape) - 1), generator=generator)
    return made + 3 * strengths * torch.randn(shape[1:], generator=generator) + 0.2


@pytest.mark.parametrize("seed", range(8))
def test_directions_of_layers_are_component_plus_mean(seed):
    made = shifts(3 + seed, 5, 8, seed=seed)
    expected = published_pca(made.view(1, len(made), -1)).view(5, 8)[1:]
    torch.testing.assert_close(vti.text_directions(made), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_directions_of_the_tower_are_of_the_authors_groups(seed):
    """Their groups are not tokens: `[layers, tokens, d]` is reshaped to `[tokens, layers d]`."""
    layers, tokens, width = 4, 5, 6
    made = shifts(6, layers, tokens, width, seed=seed)
    rows = torch.stack([each.reshape(tokens, -1) for each in made], dim=1)
    expected = published_pca(rows).view(layers, tokens, width)[1:]
    torch.testing.assert_close(vti.image_directions([*made]), expected, atol=1e-4, rtol=1e-4)


# --- masks


def test_masked_patches_have_the_mean_colour_of_the_picture():
    pixels = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
    masks = torch.tensor([[True, *[False] * 6, True, *[False] * 4], [False] * 12])  # of 3 x 4 patches
    first, second = vti.masked(pixels, masks, 2)
    expected = pixels.clone()
    expected[:, 0:2, 0:2] = pixels.mean(dim=(1, 2))[:, None, None]
    expected[:, 2:4, 6:8] = pixels.mean(dim=(1, 2))[:, None, None]
    assert torch.equal(first, expected)
    assert torch.equal(second, pixels)


def test_six_of_576_patches_are_left_each_time_others():
    one, other = vti.draw_masks(576, 2)
    assert one.shape == (50, 576)
    assert set((~one).sum(dim=1).tolist() + (~other).sum(dim=1).tolist()) == {6}  # int(0.99 * 576) = 570
    assert len({tuple(mask.tolist()) for mask in torch.cat([one, other])}) == 100
    assert torch.equal(torch.stack(vti.draw_masks(576, 3)[:2]), torch.stack([one, other]))


# --- hidden states


def kept(modules, states: list[Tensor]) -> list:
    """Hooks that keep the outputs of modules."""
    keep = lambda _, args, output: states.append(output[0] if isinstance(output, tuple) else output)  # noqa: E731
    return [module.register_forward_hook(keep) for module in modules]


@torch.no_grad()
def last_by_hand(lvlm, path: Path, prompt: str, caption: str) -> Tensor:
    """`[L + 1, d]` at the last token of a caption: the embedding, layers but for the last, and the final norm."""
    content = [{"type": "image"}, {"type": "text", "text": prompt}]
    text = lvlm.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    text += caption if text[-1].isspace() else f" {caption}"
    decoder, states = lvlm.model.get_decoder(), list[Tensor]()
    handles = kept([*decoder.layers[:-1], decoder.norm], states)
    handles.append(decoder.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0])))
    image = located(str(path)).open().image
    lvlm.model(**lvlm.processor(images=image, text=text, return_tensors="pt"), use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack([each[0, -1] for each in states])


@torch.no_grad()
def tower_by_hand(lvlm, path: Path, masks: Tensor) -> Tensor:
    """`[layers + 1, tokens, d]`: the mean over masked versions minus the picture, one pass each."""
    tower = lvlm.model.model.vision_tower
    image = located(str(path)).open().image
    pixels = lvlm.processor.image_processor(images=image, return_tensors="pt")["pixel_values"]
    patch, columns = tower.config.patch_size, pixels.shape[3] // tower.config.patch_size

    def states(shown: Tensor) -> Tensor:
        found: list[Tensor] = []
        handles = kept([tower.pre_layrnorm, *tower.encoder.layers], found)
        tower(shown)
        for handle in handles:
            handle.remove()
        return torch.stack(found)[:, 0]

    total = torch.zeros(())
    for mask in masks:
        shown = pixels.clone()
        for number in mask.nonzero().flatten().tolist():
            y, x = number // columns * patch, number % columns * patch
            shown[:, :, y : y + patch, x : x + patch] = pixels.mean(dim=(2, 3), keepdim=True)
        total = total + states(shown)
    return total / len(masks) - states(pixels)


def pairs_of(photos) -> list[vti.CaptionPair]:
    return [vti.CaptionPair(located(str(photos[name])), *texts) for name, *texts in CAPTIONS]


@pytest.mark.parametrize(("checkpoint", "batch_size"), [("llava_folder", 1), ("llava_folder", 3), ("qwen_folder", 4)])
def test_shifts_are_those_worked_out_by_hand(checkpoint, batch_size, request, photos, monkeypatch):
    """Of captions of several lengths, in batches; only the CLIP tower is measured."""
    monkeypatch.setattr(vti, "TRIALS", 12)
    lvlm = load(request.getfixturevalue(checkpoint), method="greedy", dtype="float32")
    pairs, units = pairs_of(photos), Units[vti.Shift]()
    [*vti.measure(lvlm, pairs, units, batch_size)]
    for number, (name, prompt, true, hallucinated) in enumerate(CAPTIONS):
        shift = units[str(number)]
        expected = last_by_hand(lvlm, photos[name], prompt, true)
        expected = expected - last_by_hand(lvlm, photos[name], prompt, hallucinated)
        assert float(expected.abs().max()) > 0.1
        torch.testing.assert_close(shift.text, expected, atol=2e-3, rtol=1e-3)
        if checkpoint == "qwen_folder":
            assert shift.image is None
            continue
        masks = vti.draw_masks((shift.image.shape[1] - 1), len(CAPTIONS))[number]
        torch.testing.assert_close(shift.image, tower_by_hand(lvlm, photos[name], masks), atol=1e-3, rtol=1e-3)
    made = vti.calibrate(lvlm, vti.CaptionPairs(pairs, {"file": "x"}), units)
    texts = vti.text_directions(torch.stack([units[str(number)].text for number in range(4)]))
    torch.testing.assert_close(made.tensors[TEXT].float(), texts / texts.norm(dim=-1, keepdim=True), atol=1e-3, rtol=0)
    assert (IMAGE in made.tensors) == (checkpoint == "llava_folder")
    assert made.origin.made_from["pictures"] == 4


def test_two_pictures_leave_the_sign_open_and_are_too_few(llava_folder, photos, monkeypatch):
    monkeypatch.setattr(vti, "TRIALS", 1)
    lvlm, units = load(llava_folder, method="greedy"), Units[vti.Shift]()
    pairs = pairs_of(photos)[:2]
    [*vti.measure(lvlm, pairs, units)]
    with pytest.raises(PictureError, match="2 pictures could be measured, of at least 3"):
        vti.calibrate(lvlm, vti.CaptionPairs(pairs), units)


# --- pairs of captions


def rows(count: int) -> list[dict[str, str]]:
    return [
        {"image": f"{number}.jpg", "question": "Describe it.", "value": f"true {number}", "h_value": f"false {number}"}
        for number in range(count)
    ]


def test_pairs_are_drawn_from_the_authors_file_as_with_their_seed(tmp_path):
    path = lines(tmp_path / "demos.jsonl", rows(100))
    random.seed(42)
    expected = [row["value"] for row in random.sample(rows(100), 70)]
    found = vti.read_pairs(path, tmp_path)
    assert [pair.true for pair in found.pairs] == expected
    assert [pair.hallucinated for pair in found.pairs] == [text.replace("true", "false") for text in expected]
    assert found.pairs[0].picture.label == str(tmp_path / f"{expected[0].removeprefix('true ')}.jpg")
    assert len(vti.read_pairs(lines(tmp_path / "few.jsonl", rows(5)), tmp_path).pairs) == 5
    with pytest.raises(DataError, match="expected 3 pictures or more with two captions, got 2"):
        vti.read_pairs(lines(tmp_path / "two.jsonl", rows(2)), tmp_path)
    broken = [*rows(3), {"image": "3.jpg", "question": "What?", "value": "true"}]
    with pytest.raises(DataError, match=r"line 4.*h_value"):
        vti.read_pairs(lines(tmp_path / "broken.jsonl", broken), tmp_path)


def test_scenes_captions_differ_in_one_to_three_absent_objects():
    pairs, counts = caption_pairs("Describe it.", 40).pairs, set()
    for pair in pairs:
        objects = held_out(int(re.search(r"\d+", pair.picture.label)[0])).objects
        true, hallucinated = ({name for *_, name in mentions(text)} for text in pair[2:])
        assert true == {*objects}
        absent = hallucinated - {*objects}
        assert len(hallucinated) == len(true)
        counts.add(len(absent))
    assert counts == {1, 2, 3}


# --- the command, and what ships


def test_directions_made_once_are_found_by_the_model(sira, tmp_path, llava_folder, photos, home):
    shown = [row | {"image": f"{name}.jpg"} for row, name in zip(rows(4), photos, strict=False)]
    folder = photos["coffee"].parent
    file = lines(tmp_path / "demos.jsonl", shown)
    command = ("calibrate", "vti", file, "--images", folder, "-m", llava_folder)
    code, out, err = sira(*command)
    assert (code, out) == (0, ""), err
    assert "4 pictures with a true and a hallucinated caption: directions of 8 decoder layers" in err
    (path,) = (home / "calibrations" / "vti").iterdir()
    origin = Calibration.read(path).origin
    assert origin.kind == "vti"
    assert origin.made_from["file"] == "demos.jsonl"
    assert origin.made_from["masked"] == 0.99
    ask = ("ask", photos["coffee"], "Hm?", "-m", llava_folder, "--method", "vti", "--max-new-tokens", 3, "--json")
    code, out, _ = sira(*ask)
    assert code == 0
    held = json.loads(out)["method_settings"]
    assert held["calibration"].startswith("sha256:")
    assert (held["alpha_text"], held["alpha_image"]) == (0.9, 0.9)
    code, _, err = sira(*command)
    assert code == 2
    assert "exists: replace it with --overwrite" in err


def test_a_broken_picture_is_left_out(sira, tmp_path, qwen_folder, photos):
    for name in ("coffee", "tall", "rocket"):
        shutil.copy(photos[name], tmp_path / f"{name}.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    shown = [row | {"image": name.name} for row, name in zip(rows(4), sorted(tmp_path.glob("*.jpg")), strict=True)]
    file = lines(tmp_path / "demos.jsonl", shown)
    made = tmp_path / "vti.safetensors"
    code, _, err = sira("calibrate", "vti", file, "--images", tmp_path, "-m", qwen_folder, "-o", made)
    assert code == 3, err
    assert "1 of 4 pictures failed" in err, err
    assert "the image tower is not steered" in err
    calibration = Calibration.read(made)
    assert ([*calibration.tensors], calibration.origin.made_from["pictures"]) == ([TEXT], 3)


@pytest.mark.slow
def test_the_command_in_the_documents_makes_the_shipped_one(tmp_path, sira):
    revision = find_checkpoint(presets.find("demo"), offline=True).revision
    shipped = Calibration.read(presets.find_calibration("vti", revision))
    assert sira("calibrate", "vti", "-p", "demo", "-o", tmp_path / "again.safetensors", "-q")[0] == 0
    again = Calibration.read(tmp_path / "again.safetensors")
    assert again.origin.made_from == shipped.origin.made_from
    for name, tensor in shipped.tensors.items():
        torch.testing.assert_close(again.tensors[name].float(), tensor.float(), atol=5e-3, rtol=0)
