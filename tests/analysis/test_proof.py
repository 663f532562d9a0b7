"""`sira presets check -m MODEL`: a proof on the user's own model."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sira_cli.analysis.proof import compare, prove
from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.streams import Step
from sira_cli.demo.scenes import make_scene, render
from sira_cli.run.lvlm import load
from tests.support.eval.writing import save
from tests.support.helpers import mostly_slow

FAMILIES = {"LLaVA-1.5": "llava", "Qwen3.5": "qwen3_5", "Qwen3-VL": "qwen3_vl", "Gemma 4 E": "gemma4"}
FAMILIES |= {"PaliGemma": "paligemma"}  # whose processor gives labels, too


@pytest.fixture
def qwen(qwen_folder, tmp_path) -> Path:
    return Path(shutil.copytree(qwen_folder, tmp_path / "qwen"))


@pytest.mark.parametrize("family", mostly_slow(FAMILIES, "LLaVA-1.5", "Qwen3.5"))
def test_a_model_is_exact(family, checkpoint_of, sira):
    code, out, err = sira("presets", "check", "-m", checkpoint_of(family), "--json")
    assert code == 0, err
    proof = json.loads(out)
    seen, compared = proof["seen"], proof["real"]["compared"]
    assert (proof["verdict"], proof["b"] + proof["k"]) == ("exact", proof["layers"])
    assert proof["family"].startswith(f"{FAMILIES[family]} (")
    assert f" x {seen['image_tokens']} " in seen["prompt"]
    assert seen["image_tokens"] > 0
    assert compared["tokens"] == 8
    assert compared["equal_tokens"] is True
    assert max(compared["worst_full"], compared["worst_cf"]) <= compared["limit"] < compared["gap"]


def test_a_prompt_without_the_image_is_one_line(qwen, sira):
    config = json.loads((qwen / "config.json").read_text(encoding="utf-8"))
    save(qwen / "config.json", config | {"image_token_id": 5})
    code, out, err = sira("presets", "check", "-m", qwen, "--json")
    assert code == 2
    assert out == ""
    assert "no image token found" in err
    assert len(err.splitlines()) == 1


def test_a_wrong_fork_is_not_exact(qwen, monkeypatch, sira):
    """The CF stream of another K is not that of this one."""
    slow = reference.counterfactual
    monkeypatch.setattr(reference, "counterfactual", lambda model, inputs, image, k: slow(model, inputs, image, k - 1))
    code, out, _ = sira("presets", "check", "-m", qwen, "--json")
    proof = json.loads(out)
    assert (code, proof["verdict"]) == (1, "not exact")
    compared = proof["real"]["compared"]
    assert compared["worst_full"] < compared["limit"] < compared["worst_cf"]


def test_the_limit_is_that_of_the_front_page(llava):
    """In float32, as a share of the largest logit."""
    page = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    share = float(re.findall(r"the largest difference is below (\S+) of the largest logit", page)[0])
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
    edge = float((step.full[0, free] - step.full.max()).exp())  # the beta that rules out what is below this token
    for beta, by_rounding in ((0.999999 * edge, True), (0.5 * edge, False)):
        found = compare(llava, SiraConfig(k=4, alpha=20.0, beta=beta), [cut], [step], torch.float32)
        assert found.equal_tokens == by_rounding


def test_late_layers_that_read_nothing_prove_nothing(qwen):
    proof = prove(load(qwen), render(make_scene(1))[0])
    equal = dataclasses.replace(proof.real.compared, worst_cf=0.0, gap=0.0)
    assert (proof.verdict, equal.verdict) == ("exact", "not proven")
    assert dataclasses.replace(equal, worst_cf=1.0).verdict == "not exact"


def test_weights_that_are_no_numbers_are_no_proof(qwen, sira):
    (path,) = qwen.glob("*.safetensors")
    weights = load_file(path)
    name = next(name for name in weights if "layers.5" in name and "mlp" in name and "visual" not in name)
    save_file({**weights, name: torch.full_like(weights[name], torch.nan)}, path, {"format": "pt"})
    code, out, _ = sira("presets", "check", "-m", qwen)
    assert code == 1
    assert "some logits are no finite numbers" in out
    assert out.splitlines()[-1].split() == ["verdict", "not", "proven"]
    code, out, _ = sira("presets", "check", "-m", qwen, "--json")
    assert (code, json.loads(out)["real"]["compared"]["worst_full"]) == (1, None)
