"""`sira presets check -m MODEL`: a proof on the user's own model, with and without its weights."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sira_cli.analysis.proof import compare_twin, prove
from sira_cli.analysis.proof.compared import compare
from sira_cli.analysis.proof.shrunk import kept_layers, shrunk
from sira_cli.analysis.proof.twin import build_twin
from sira_cli.core import families, reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.forward_pass import Step
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.demo.scenes import make_scene, render
from sira_cli.models import presets
from sira_cli.models.load import check_structure
from tests.support import census, layouts
from tests.support.checkpoints import write_llava, write_qwen
from tests.support.checkpoints_other import write_gemma4, writer_of
from tests.support.tiny_parts import IMAGE

WRITERS: dict[str, Callable[[Path], Path]] = {
    "llava": write_llava,
    "qwen3_vl": lambda folder: write_qwen(folder, "3"),
    "qwen3_5": lambda folder: write_qwen(folder, "3.5"),
    "gemma4": write_gemma4,
    "paligemma": writer_of("paligemma"),  # whose processor gives labels, too
}


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for name, value in values.items():
        content[name] = {**content[name], **value} if isinstance(content.get(name), dict) else value
    path.write_text(json.dumps(content))


def without_weights(folder: Path) -> Path:
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        path.unlink()
    return folder


@pytest.fixture
def qwen(qwen_folder, tmp_path) -> Path:
    return Path(shutil.copytree(qwen_folder, tmp_path / "qwen"))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_twin_is_exact_and_needs_no_weights(kind, tmp_path, sira):
    folder = without_weights(WRITERS[kind](tmp_path / kind))
    code, out, _ = sira("presets", "check", "-m", folder, "--json")
    proof = json.loads(out)
    assert (code, proof["verdict"], proof["real"]) == (0, "exact", None)
    assert proof["family"].startswith(f"{kind} (")
    assert proof["b"] + proof["k"] == proof["layers"]
    assert proof["seen"]["image_tokens"] > 0
    assert f" x {proof['seen']['image_tokens']} " in proof["seen"]["prompt"]
    assert max(proof["twin"]["worst_full"], proof["twin"]["worst_cf"]) < 1e-4 < 0.1 < proof["twin"]["gap"]


@pytest.mark.parametrize(
    "kind", ["llava", "qwen3_5", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gemma4", "paligemma"))]
)
def test_the_real_weights_are_exact(kind, tmp_path, sira):
    folder = WRITERS[kind](tmp_path / kind)
    code, out, _ = sira("presets", "check", "-m", folder, "--exact")
    rows = {line[:14].strip(): line[14:] for line in out.splitlines()}
    assert code == 0
    assert rows["verdict"] == "exact"
    assert "the reference's" in rows["real weights"]
    assert "NOT" not in rows["real weights"]
    assert "of greedy's" in rows["time"]


def test_what_is_printed(qwen, sira):
    code, out, _ = sira("presets", "check", "-m", qwen)
    rows = {line[:14].strip(): line[14:] for line in out.splitlines()}
    assert code == 0
    assert rows["layers"] == "L = 6, b = 3, K = 3, alpha = 0.5"
    assert "'<|im_end|>'" in rows["end tokens"]
    assert "repetition_penalty=1.05" in rows["its settings"]
    assert rows["in force"] == "none in sira; with `attach`: repetition_penalty"
    assert "<|im_start|>system" in rows["prompt"]
    assert "beams" in rows["abilities"]
    assert "method opera" in rows["abilities"]


def lies_about_layers(folder: Path) -> None:
    change(folder, text_config={"num_hidden_layers": 8, "layer_types": ["full_attention"] * 8})


def has_a_damaged_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text("{")


def names_another_image_token(folder: Path) -> None:
    change(folder, image_token_id=5)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lies_about_layers, "states 8 decoder layers, but the weights hold 6"),
        (has_a_damaged_processor, "cannot be loaded"),
        (names_another_image_token, "no image token found"),
    ],
)
def test_bad_input_is_one_line_and_code_2(spoil, reason, qwen, sira):
    spoil(qwen)
    code, out, err = sira("presets", "check", "-m", qwen, "--json")
    assert (code, out) == (2, "")
    assert reason in err
    assert len(err.splitlines()) == 1


def test_a_processor_that_does_not_fit_leaves_it_unproven(qwen, sira):
    change(qwen, vision_config={"spatial_merge_size": 4})
    code, out, _ = sira("presets", "check", "-m", qwen)
    assert code == 1
    assert "none could be built and run: " in out
    assert out.splitlines()[-1].split() == ["verdict", "not", "proven", "without", "--exact"]


def test_a_wrong_fork_is_not_exact(qwen, monkeypatch):
    """The CF stream of another K is not that of this one."""
    slow = reference.counterfactual
    monkeypatch.setattr(reference, "counterfactual", lambda model, inputs, image, k: slow(model, inputs, image, k - 1))
    proof = prove(presets.for_model(str(qwen)), render(make_scene(1))[0])
    assert proof.verdict == "not exact"
    assert proof.twin is not None
    assert proof.twin.worst_full < 1e-4 < proof.twin.limit < proof.twin.worst_cf


def test_the_limit_is_that_of_the_front_page(llava):
    """In float32, as a share of the largest logit."""
    page = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    share = float(re.findall(r"does so for yours, within (\S+) of the largest logit in float32", page)[0])
    slow = reference.decode(llava, 4, 0.5, 1)
    largest = max(float(slow.full.abs().max()), float(slow.cf.abs().max()))
    for factor, exact in ((0.9, True), (1.1, False)):
        step = Step(slow.full + factor * share * largest, slow.cf, slow.full)
        found = compare(llava, SiraConfig(k=4), slow.tokens, [step], torch.float32).verdict
        assert found == ("exact" if exact else "not exact")


def test_beta_is_compared_too(llava):
    """A token that the cut-off rules out is picked without it; each of the two is right under its own setting only."""
    slow = {beta: reference.decode(llava, 4, 20.0, 1, beta=beta) for beta in (None, 1.0)}
    (free,), (cut,) = (slow[beta].tokens for beta in (None, 1.0))
    assert free != cut == int(slow[1.0].full.argmax())
    for beta, token in ((None, free), (1.0, cut)):
        step = Step(slow[beta].full, slow[beta].cf, slow[beta].full)
        for picked in (free, cut):
            found = compare(llava, SiraConfig(k=4, alpha=20.0, beta=beta), [picked], [step], torch.float32)
            assert found.equal_tokens == (picked == token)


def test_late_layers_that_read_nothing_prove_nothing(qwen):
    proof = prove(presets.for_model(str(qwen)), render(make_scene(1))[0])
    assert proof.twin is not None
    equal = dataclasses.replace(proof.twin, worst_cf=0.0, gap=0.0)
    assert (equal.verdict, dataclasses.replace(proof, twin=equal).verdict) == ("not proven", "not proven")
    both = dataclasses.replace(equal, worst_cf=1.0)
    assert both.verdict == "not exact"


def test_weights_that_are_no_numbers_are_no_proof(qwen_folder, tmp_path, sira):
    folder = Path(shutil.copytree(qwen_folder, tmp_path / "damaged"))
    (path,) = folder.glob("*.safetensors")
    weights = load_file(path)
    name = next(name for name in weights if "layers.5" in name and "mlp" in name and "visual" not in name)
    save_file({**weights, name: torch.full_like(weights[name], torch.nan)}, path, {"format": "pt"})
    code, out, _ = sira("presets", "check", "-m", folder, "--exact")
    assert (code, "some logits are no finite numbers" in out) == (1, True)
    assert out.splitlines()[-1].split() == ["verdict", "not", "proven"]
    code, out, _ = sira("presets", "check", "-m", folder, "--exact", "--json")
    assert (code, json.loads(out)["real"]["compared"]["worst_full"]) == (1, None)


@pytest.mark.parametrize("name", [pytest.param("gemma3-4b", marks=pytest.mark.slow), "qwen3-vl-8b", "llava-1.5-7b"])
def test_twins_of_real_sizes(name, tmp_path):
    """With the widths, depths and token ids that the hub's config.json has."""
    folder = tmp_path / name
    layouts.write_files(name, folder)
    (folder / "config.json").write_text(json.dumps(layouts.layout_of(name)["files"]["config.json"]))
    proof = prove(presets.find(name).model_copy(update={"model": str(folder)}), render(make_scene(1))[0])
    assert proof.verdict == "exact"
    assert proof.layers >= 32


def test_layers_keep_their_kinds_and_their_order(tmp_path):
    layouts.write_config("gemma3-4b", tmp_path / "gemma3")
    preset = presets.find("gemma3-4b")
    config = check_structure(tmp_path / "gemma3", preset).config
    kinds = config.get_text_config().layer_types
    kept = kept_layers(config, 17)
    early = [kinds[index] for index in kept if index < 17]
    late = [kinds[index] for index in kept if index >= 17]
    sliding, full = "sliding_attention", "full_attention"
    assert early == [sliding, sliding, full, sliding, sliding]
    assert late == [full, sliding, sliding, full] or late == [full, sliding, sliding, full, *late[4:]]
    assert len(kept) < 12


@pytest.mark.parametrize("step", [1, 2])
def test_layers_that_are_given_by_number(step):
    """Llama 4: which layers have experts; with its default sizes the twin has some of each kind on both sides."""
    config = census.without_weights("llama4").config
    text = config.text_config
    text.moe_layers = list(range(step - 1, text.num_hidden_layers, step))
    kept = kept_layers(config, 24)
    assert len(kept) < 20
    kinds = [(text.layer_types[index], index in text.moe_layers) for index in range(text.num_hidden_layers)]
    for side in (range(24), range(24, 48)):
        assert {kinds[index] for index in kept if index in side} == {kinds[index] for index in side}
    words = {token: token for token in range(300_000)}
    small = shrunk(config, config.to_dict(), kept, words)["text_config"]
    assert small["moe_layers"] == [new for new, index in enumerate(kept) if index in text.moe_layers]


def test_layers_that_image_features_are_added_before():
    """Granite 4 Vision: they are kept, under their new numbers."""
    config = census.case_of("granite4_vision").model.config
    text = config.text_config
    text.num_hidden_layers, text.layer_types = 40, ["full_attention"] * 40
    config.deepstack_layer_map, config.spatial_target_layers = [(-3, 5), (-2, 25)], [12, 15, 28, 31]
    kept = kept_layers(config, 20)
    assert {5, 12, 15, 25, 28, 31} < {*kept}
    assert len(kept) < 25
    small = shrunk(config, config.to_dict(), kept, {token: token for token in range(300)})
    assert [kept[layer] for _, layer in small["deepstack_layer_map"]] == [5, 25]
    assert [kept[layer] for layer in small["spatial_target_layers"]] == [12, 15, 28, 31]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("glm4v_moe", "minicpmv4_6", "muse_spark", "molmo2", "lfm3_vl", "llama4", "kimi_k25", "mistral4"),
        *("granite4_vision", "ernie4_5_vl_moe", "dots3_note", "chameleon", "emu3", "deepseek_ocr2"),
    ],
)
def test_twins_of_other_types(kind):
    case = census.case_of(kind)
    _, boundary = families.fork_place(case.model, SiraConfig())
    rule = ImageTokens(ids=(IMAGE,)).resolve(case.model.config)
    with torch.no_grad():
        twin = build_twin(case.model, boundary, rule, case.inputs)
    compared = compare_twin(twin, 0.5)
    assert compared.verdict == "exact"
    assert dataclasses.asdict(compared)["tokens"] == 4
