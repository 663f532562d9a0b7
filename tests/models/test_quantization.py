"""Quantized weights: which layers, which numbers, and Algorithm 1 on them. What loads a model needs bitsandbytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.quantizers.quantizers_utils import should_convert_module

from sira_cli import Step, load
from sira_cli.analysis.proof import prove
from sira_cli.core import reference
from sira_cli.errors import SettingsError
from sira_cli.models.load import check_structure
from sira_cli.models.placement import quantization_config
from sira_cli.models.presets import find
from sira_cli.pictures.sources import as_picture
from tests.support import layouts, tiny
from tests.support.runs import key_of
from tests.support.tiny import Tiny

# What sees the picture, by the names in transformers' sources, and the output matrix.
LLAVA, QWEN = {"model.vision_tower", "model.multi_modal_projector", "lm_head"}, {"model.visual", "lm_head"}
LEFT_ALONE = {
    **dict.fromkeys(("llava-1.5-7b", "llava-next-mistral-7b", "joycaption-beta-one", "internvl3-8b"), LLAVA),
    **dict.fromkeys(("qwen2-vl-7b", "qwen2.5-vl-7b", "qwen3-vl-8b"), QWEN),
    "gemma3-4b": {"model.vision_tower", "lm_head"},  # its projector is a plain parameter
    "smolvlm2-2.2b": {"model.vision_model", "model.connector", "lm_head"},
}
MISSING = "the extra `quant` is not installed"


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_only_matrices_of_the_language_layers_are_quantized(name, bits, tmp_path):
    """As transformers reads the names that are to be skipped."""
    model = check_structure(layouts.write_config(name, tmp_path / name), find(name))
    config = quantization_config(bits, model, "cuda:0")
    assert set(config.llm_int8_skip_modules) == LEFT_ALONE[name]
    assert (config.load_in_4bit, config.load_in_8bit) == (bits == "4bit", bits == "8bit")
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_compute_dtype) == ("nf4", torch.bfloat16)
    assert config.bnb_4bit_use_double_quant
    matrices = {name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    quantized = {name for name in matrices if should_convert_module(name, config.llm_int8_skip_modules)}
    assert quantized == {name for name in matrices if ".language_model.layers." in f".{name}" or ".text_model." in name}


def test_what_bitsandbytes_cannot_quantize_or_multiply_is_refused(monkeypatch):
    """On a CPU with AVX512-BF16, plain `generate` fails at some matrices as well."""
    model = tiny.FAMILIES["Qwen3.5"]().model  # 4 outputs, one per head
    with pytest.raises(SettingsError, match="the checkpoint's own code makes this model, of unknown"):
        quantization_config("4bit", None, "cuda:0")
    assert quantization_config("4bit", model, "cuda:0").load_in_4bit
    bnb = pytest.importorskip("bitsandbytes", reason=MISSING)
    monkeypatch.setattr(bnb.functional, "has_avx512bf16", lambda: True)
    with pytest.raises(SettingsError, match=r"multiples of 64 inputs and 32 outputs, .* give `quantization=` 8bit"):
        quantization_config("4bit", model, "cpu")
    assert quantization_config("8bit", model, "cpu").load_in_8bit
    assert quantization_config("4bit", model, "cuda:0").load_in_4bit
    monkeypatch.setattr(bnb.functional, "has_avx512bf16", lambda: False)
    assert quantization_config("4bit", model, "cpu").load_in_4bit


def test_a_missing_bitsandbytes_names_the_extra(llava_folder, monkeypatch):
    """It is made to be absent: it is not among the test dependencies, but a user may have it."""
    monkeypatch.setattr("sira_cli.models.load.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install .*\[quant\]'"):
        load(llava_folder, quantization="4bit")


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
@pytest.mark.filterwarnings("ignore")  # bitsandbytes has remarks on running without a GPU
def test_a_loaded_model(checkpoint, bits, photos, request):
    bnb = pytest.importorskip("bitsandbytes", reason=MISSING)
    kind = {"4bit": bnb.nn.Linear4bit, "8bit": bnb.nn.Linear8bitLt}[bits]
    folder = request.getfixturevalue(checkpoint)
    lvlm, plain = load(folder, quantization=bits, dtype="float32", max_new_tokens=4), load(folder, dtype="float32")
    known = dict(plain.model.named_modules())
    layers = {id(part) for part in lvlm.model.get_decoder().layers.modules()}
    for name, part in lvlm.model.named_modules():
        if type(known[name]) is nn.Linear:
            assert type(part) is (kind if id(part) in layers else nn.Linear), name
            if id(part) not in layers:
                assert torch.equal(part.weight, known[name].weight)
            elif bits == "4bit":
                assert (part.weight.quant_type, part.compute_dtype) == ("nf4", torch.bfloat16)
                assert part.weight.quant_state.nested
    result = lvlm.caption(photos["coffee"])
    assert (result.status, result.output_tokens) == ("ok", 4)


@pytest.mark.filterwarnings("ignore")  # as above
def test_tokens_are_those_of_algorithm_1_by_the_letter_on_quantized_weights(llava_folder, photos):
    """Not in 8 bits: there a row's numbers depend on the other rows."""
    pytest.importorskip("bitsandbytes", reason=MISSING)
    lvlm = load(llava_folder, quantization="4bit", dtype="float32", device="cpu", max_new_tokens=4)
    image = as_picture(photos["chelsea"]).open().image
    inputs = lvlm.prepare([image], ["Is there a cat?"])
    prompt = Tiny(lvlm.model, dict(inputs), image_token=lvlm.model.config.image_token_id)
    slow = reference.decode(prompt, lvlm.k, lvlm.alpha, 4)
    steps: list[Step] = []
    tokens = lvlm.generate(inputs, on_tokens=lambda _, step: steps.append(step))
    assert tokens[0].tolist() == slow.tokens
    assert max(float((step.cf[0] - z).abs().max()) for step, z in zip(steps, slow.cf, strict=True)) < 0.05  # bfloat16
    assert float((slow.full - slow.cf).abs().max()) > 0.1
    found, plain = (prove(each, image).real.compared for each in (lvlm, load(llava_folder, device="cpu")))
    assert (found.verdict, plain.verdict) == ("exact", "exact")
    assert found.gap != plain.gap  # other weights


def test_a_quantization_decides_the_key(sira, tmp_path):
    lvlm = load("demo")
    loaded = [lvlm.under(lvlm.decoder, lvlm.preset.with_settings(quantization=each)) for each in (None, "8bit", "4bit")]
    assert len({key_of(each, "caption", "a.png", "0", "p") for each in loaded}) == 3
    command = ("caption", "examples/scene-2900000.png", "-p", "demo", "--max-new-tokens", 2, "-o", tmp_path / "a.jsonl")
    assert sira(*command)[0] == 0
    code, _, err = sira(*command, "--quantization", "8bit")
    assert (code, "quantization is None there and '8bit' now" in err) == (2, True)
