"""Where a model is put: devices, precision, threads, packed and quantized matrices; and what a batch takes in memory.

What torch says about GPUs is a stand-in. What loads a quantized model needs bitsandbytes.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.quantizers.quantizers_utils import should_convert_module

from sira_cli import Lvlm, load
from sira_cli.core.arguments import CACHE
from sira_cli.core.cache import ROOM
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods.second_pass import SecondPass
from sira_cli.models import cpu
from sira_cli.models.load import WeightOptions, check_structure, load_model
from sira_cli.models.memory import PictureMemory, free_memory, measure_picture, most_pictures, peak_memory
from sira_cli.models.packing import HalfLinear, can_pack, packed_bytes
from sira_cli.models.placement import Placement, place
from sira_cli.models.presets import find
from sira_cli.models.quantization import quantization_config
from sira_cli.pictures.sources import as_picture
from tests.support import checkpoints, tiny
from tests.support.checkpoints import edited
from tests.support.helpers import by_the_letter, mostly_slow
from tests.support.shards import EXAMPLES
from tests.vllm import quantized

GB = 10**9
QUESTION = "Is there a cat?"
FBGEMM = can_pack(torch.float32, torch.device("cpu"))
packs = pytest.mark.skipif(not FBGEMM, reason="torch has no FBGEMM on this processor")


def without_weights(name: str, folder: Path):
    return check_structure(checkpoints.write_config(name, folder / name), find(name))


def in_bfloat16(original: Path, folder: Path, *, tied: bool = False) -> Path:
    """A checkpoint in the precision that they are published in; as of Qwen3-VL, only its text part says so."""
    parts = json.loads((original / "config.json").read_text())
    parts["text_config"]["dtype"], parts["vision_config"]["dtype"] = "bfloat16", None
    parts |= {"dtype": None, "tie_word_embeddings": tied}
    edited(original, folder, "config.json", **parts)
    weights = {name: each.bfloat16() for name, each in load_file(folder / "model.safetensors").items()}
    if tied:
        weights = {name: each for name, each in weights.items() if not name.startswith("lm_head")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_several_gpus_only_where_one_is_too_small(tmp_path, monkeypatch):
    """Qwen2.5-VL-7B: 16.6 GB, with 28 layers of 2 x 3584^2 + 2 x 3584 x 512 + 3 x 3584 x 18944 in matrices."""
    qwen = without_weights("qwen2.5-vl-7b", tmp_path)

    def placed(*free: float, device: str = "auto", model=qwen, dtype=None, quantization=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (int(free[index] * GB), 80 * GB))
        return place(device, model, dtype, quantization)

    assert placed(16, 24) == Placement("auto", {0: 16 * GB, 1: 24 * GB})
    # What fits takes 80 % of the first: 16.6, 33.2, 16.58 - 6.53 and 16.58 - 1.5 x 6.53 GB.
    sizes = (16.6, None, None), (33.2, torch.float32, None), (10.05, None, "8bit"), (6.79, None, "4bit")
    for size, dtype, quantization in sizes:
        how = {"dtype": dtype, "quantization": quantization}
        assert placed((size + 0.1) / 0.8, 24, **how) == Placement("cuda:0")
        assert placed((size - 0.1) / 0.8, 24, **how).device_map == "auto"
    assert placed(16, 24, device="cuda:1") == Placement("cuda:1")
    assert placed(16, 24, model=None) == placed(16) == Placement("cuda:0")
    with pytest.raises(SettingsError, match=r"33\.2 GB, more than 80% of the 40\.0 GB that are free on 2 GPUs: give"):
        placed(16, 24, dtype=torch.float32)
    qwen.config.quantization_config = {"quant_method": "awq", "bits": 4}
    assert placed(16, 24) == Placement("cuda:0")


def test_layers_that_no_gpu_holds_are_refused(llava_folder):
    on_disk = Placement({"model": "cpu", "lm_head": "disk"}, {0: 1})
    with pytest.raises(SettingsError, match="the GPUs are too small for the model"):
        load_model(llava_folder, WeightOptions(on_disk, torch.float32))


@pytest.mark.parametrize(
    ("own", "arithmetic", "free", "expected"),
    [
        (torch.bfloat16, True, 10_000, "auto"),
        (torch.bfloat16, False, 10_000, torch.float32),
        (torch.float16, False, 2_000, torch.float32),
        (torch.bfloat16, False, 1_999, "auto"),  # float32 would take 2,000 bytes
        (torch.float32, False, 10_000, "auto"),
    ],
)
def test_float32_only_where_it_is_faster_and_fits(tmp_path, monkeypatch, own, arithmetic, free, expected):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(500))
    monkeypatch.setattr(cpu, "computes_in", lambda dtype: arithmetic)
    monkeypatch.setattr(cpu.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert cpu.on_processor(own, tmp_path) == expected


def test_a_checkpoint_in_bfloat16(tmp_path, monkeypatch, qwen_folder):
    monkeypatch.setattr(cpu, "computes_in", lambda dtype: False)
    folder = in_bfloat16(qwen_folder, tmp_path / "model")
    assert [load(folder, dtype=each, device="cpu").dtype for each in ("auto", "bfloat16")] == ["float32", "bfloat16"]


def unpacked(folder: Path) -> Lvlm:
    """Load a checkpoint as on a processor without FBGEMM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sira_cli.models.load.can_pack", lambda dtype, device: False)
        return load(folder, dtype="float32", device="cpu")


@packs
@pytest.mark.parametrize("rows", [(1,), (2, 5), (0,)])
@pytest.mark.parametrize("largest", [1.0, 1e5], ids=["packed", "float16 lacks one: kept as it is"])
@torch.no_grad()
def test_a_packed_matrix_in_bfloat16_loses_nothing(rows, largest):
    generator, original = torch.Generator().manual_seed(0), nn.Linear(64, 96)
    original.weight.data = torch.randn(96, 64, generator=generator).mul_(0.02).bfloat16().float()
    original.weight.data[0, 0] = torch.tensor(largest).bfloat16()
    x = torch.randn(*rows, 64, generator=generator)
    exact = x.double() @ original.weight.double().T + original.bias.double()
    layer = HalfLinear(original)
    layer.pack(layer.drop_weight())
    found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6 * max(1.0, largest / 100))


@packs
def test_a_checkpoint_of_16_bits_is_packed_while_it_is_read(qwen_folder, tmp_path):
    folder = in_bfloat16(qwen_folder, tmp_path / "model", tied=True)
    model, plain = load(folder, dtype="float32", device="cpu").model, unpacked(folder).model
    layers = [part for part in plain.modules() if type(part) is nn.Linear]
    assert len([part for part in model.modules() if isinstance(part, HalfLinear)]) == len(layers) > 0
    kept = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in model.parameters()}
    matrices = sum({id(part.weight): part.weight.numel() for part in layers}.values())
    full = sum(weight.nbytes for weight in plain.parameters())
    dropped = matrices - plain.lm_head.weight.numel()  # the embeddings stay, as a table
    assert sum(kept.values()) == pytest.approx(full - 4 * dropped, rel=0.02)
    assert packed_bytes(plain) == full - 4 * dropped + 2 * matrices
    assert model.lm_head.weight is model.get_input_embeddings().weight
    in_float32 = load(qwen_folder, device="cpu").model  # which stays as it is
    assert not [part for part in in_float32.modules() if isinstance(part, HalfLinear)]


@packs
def test_both_streams_are_those_of_algorithm_1_on_plain_matrices(llava_folder, photos, tmp_path):
    folder = in_bfloat16(llava_folder, tmp_path / "model")
    lvlm, plain = load(folder, dtype="float32", device="cpu", max_new_tokens=4), unpacked(folder)
    assert isinstance(lvlm.model.lm_head, HalfLinear)
    inputs = lvlm.prepare([as_picture(photos["chelsea"]).open().image], [QUESTION])
    by_the_letter(lvlm, inputs, 4, model=plain.model, gap=0.1)


# --- quantized weights

MISSING = "the extra `quant` is not installed"


@pytest.mark.parametrize("name", checkpoints.LAYOUTS)
def test_only_matrices_of_the_language_layers_are_quantized(name, tmp_path):
    """As transformers reads the names that are to be skipped."""
    model = without_weights(name, tmp_path)
    config = quantization_config("4bit", model, "cuda:0")
    assert config.load_in_4bit is True
    assert quantization_config("8bit", model, "cuda:0").load_in_8bit is True
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_compute_dtype) == ("nf4", torch.bfloat16)
    matrices = {name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    quantized = {name for name in matrices if should_convert_module(name, config.llm_int8_skip_modules)}
    assert quantized == {name for name in matrices if ".language_model.layers." in f".{name}" or ".text_model." in name}


def test_what_bitsandbytes_cannot_quantize_or_multiply_is_refused(monkeypatch):
    """On a CPU with AVX512-BF16, plain `generate` fails at some matrices as well."""
    model = tiny.FAMILIES["Qwen3.5"]().model  # 4 outputs, one per head
    with pytest.raises(SettingsError, match="the checkpoint's own code makes this model, of unknown"):
        quantization_config("4bit", None, "cuda:0")
    bnb = pytest.importorskip("bitsandbytes", reason=MISSING)
    for odd, bits, device in ((True, 8, "cpu"), (True, 4, "cuda:0"), (False, 4, "cpu")):
        monkeypatch.setattr(bnb.functional, "has_avx512bf16", lambda odd=odd: odd)
        assert getattr(quantization_config(f"{bits}bit", model, device), f"load_in_{bits}bit")
    monkeypatch.setattr(bnb.functional, "has_avx512bf16", lambda: True)
    with pytest.raises(SettingsError, match=r"multiples of 64 inputs and 32 outputs, .* give `quantization=` 8bit"):
        quantization_config("4bit", model, "cpu")


def test_a_missing_bitsandbytes_names_the_extra(llava_folder, monkeypatch):
    """It is made to be absent: it is not among the test dependencies, but a user may have it."""
    monkeypatch.setattr("sira_cli.models.load.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'bitsandbytes>=[\d.]+'"):
        load(llava_folder, quantization="4bit")


@pytest.mark.filterwarnings("ignore")  # bitsandbytes has remarks on running without a GPU
@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
def test_tokens_are_those_of_algorithm_1_on_quantized_weights(checkpoint, photos, request):
    """Not in 8 bits: there a row's numbers depend on the other rows."""
    bnb = pytest.importorskip("bitsandbytes", reason=MISSING)
    folder = request.getfixturevalue(checkpoint)
    lvlm = load(folder, quantization="4bit", dtype="float32", device="cpu", max_new_tokens=4)
    layers = {type(part) for part in lvlm.model.get_decoder().layers.modules()}
    assert bnb.nn.Linear4bit in layers
    assert nn.Linear not in layers
    inputs = lvlm.prepare([as_picture(photos["chelsea"]).open().image], [QUESTION])
    by_the_letter(lvlm, inputs, 4, atol=0.05, gap=0.1)  # bfloat16
    eight = load(folder, quantization="8bit", dtype="float32", device="cpu", max_new_tokens=4).caption(photos["coffee"])
    assert (eight.status, eight.output_tokens) == ("ok", 4)


def decoded(name: str, packed: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a matrix of a stored checkpoint: each number times the scale of its block or row."""
    end = "_scale_inv" if f"{name}_scale_inv" in packed else "_scale"
    numbers, scale = packed[name].float(), packed[name + end].float()
    for dimension in (0, 1):
        scale = scale.repeat_interleave(numbers.shape[dimension] // scale.shape[dimension], dimension)
    return numbers * scale


@pytest.mark.parametrize(
    ("stored", "package"), [("FP8 in blocks", "transformers"), ("FP8, compressed-tensors", "compressed_tensors")]
)
def test_weights_stored_in_8_bits_are_decoded(stored, package, tmp_path, photos):
    pytest.importorskip(package, reason=MISSING)
    quantized.write(tmp_path, stored)
    packed = load_file(tmp_path / "model.safetensors")
    lvlm = load(tmp_path, dtype="float32", device="cpu", max_new_tokens=4)
    layers = dict(lvlm.model.get_decoder().layers.named_parameters())
    matrices = [name for name in layers if name.endswith("_proj.weight")]
    assert len(matrices) == 7 * lvlm.layers
    for name in matrices:
        assert torch.equal(layers[name], decoded(f"language_model.model.layers.{name}", packed)), name
    inputs = lvlm.prepare([as_picture(photos["chelsea"]).open().image], [QUESTION])
    by_the_letter(lvlm, inputs, 4)


@pytest.mark.parametrize(
    ("config", "ways"),
    [
        ({"quant_method": "awq", "bits": 4}, r"by awq, .*gptqmodel.*`quantization=` 4bit or 8bit, or `engine=` vllm"),
        ({"quant_method": "gptq", "bits": 4}, r"by gptq, .*optimum.*`quantization=` 4bit or 8bit$"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"by bitsandbytes, .*bitsandbytes"),
        ({"quant_method": "pairs"}, r"by pairs, .*pairs.*take the original model"),
    ],
)
def test_weights_that_cannot_be_read_are_refused_before_the_download(config, ways, llava_folder, tmp_path):
    edited(llava_folder, tmp_path / "model", "config.json", quantization_config=config)
    if find_spec(config["quant_method"]) is not None:
        pytest.skip("they can be read here")
    (tmp_path / "model/model.safetensors").write_bytes(b"not read")
    with pytest.raises(UnsupportedModelError, match=ways):
        load(tmp_path / "model", device="cpu")


def test_float32_of_weights_in_8_bits_takes_four_times_their_files(tmp_path, monkeypatch):
    (tmp_path / "a.safetensors").write_bytes(bytes(500))
    monkeypatch.setattr(cpu, "computes_in", lambda dtype: False)
    for free, expected in ((1_999, "auto"), (2_000, torch.float32)):
        monkeypatch.setattr(cpu.psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        assert cpu.on_processor(torch.bfloat16, tmp_path, bits=8) == expected


def test_a_file_holds_texts_of_one_quantization(sira, tmp_path):
    command = ("caption", EXAMPLES[0], "-p", "demo", "--max-new-tokens", 2, "-o", tmp_path / "a.jsonl")
    assert sira(*command)[0] == 0
    code, _, err = sira(*command, "--quantization", "8bit")
    assert code == 2
    assert "quantization is None there and '8bit' now" in err


# --- what a batch takes in memory

CASES: list[tuple[str, str, dict[str, int]]] = [
    ("LLaVA-1.5", "sira", {}),
    ("LLaVA-1.5", "greedy", {"num_beams": 3}),
    ("LLaVA-1.5", "m3id", {}),  # a second pass with a cache of its own and a shorter prompt
    ("Gemma 3", "sira", {}),  # sliding windows
    ("Qwen3.5", "sira", {}),  # recurrent states
]
SLOW = [("LLaVA-1.5", "sira", {"k": 1}), ("LLaVA-1.5", "sid", {}), ("Gemma 3", "greedy", {}), ("Qwen3.5", "greedy", {})]


@pytest.mark.parametrize(("family", "method", "settings"), mostly_slow(CASES + SLOW, *CASES))
def test_a_text_takes_what_its_caches_take_at_its_end(family, method, settings, checkpoint_of):
    """Of more tokens than a cache's room; each storage counts once, with room that is not in use yet."""
    steps, image = 70, Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3))
    lvlm = load(checkpoint_of(family), dtype="float32", method=method, max_new_tokens=steps, **settings)
    config, beams = lvlm.model.config.get_text_config(decoder=True), lvlm.preset.generation.num_beams
    one, two = (lvlm.prepare([image] * count, [QUESTION] * count) for count in (1, 2))
    # The logits of both streams and of what is made of them.
    found = 2 * (measure_picture(lvlm, one).text - 6 * 4 * config.vocab_size * beams)
    cache, decodings = DynamicCache(config=config), list[Any]()
    limits = {"do_sample": False, "num_beams": beams, "min_new_tokens": steps}
    lvlm.decode(lvlm.to_device(two), steps, on_attach=decodings.append, **{CACHE: cache}, **limits)
    caches: list[Any] = [cache, *(each.cache for each in decodings if isinstance(each, SecondPass))]
    layers = [layer for each in caches for layer in each.layers]
    streams = [stream for layer in layers for stream in (layer, getattr(layer, "cf", None)) if stream is not None]
    tensors = [getattr(stream, name, None) for stream in streams for name in ("keys", "values")]
    for layer in layers:
        states = getattr(layer, "states", layer)  # of both streams
        tensors += [*getattr(states, "conv_states", {}).values(), *getattr(states, "recurrent_states", {}).values()]
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    taken = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    # Room that is not in use yet is counted; the last new token has no keys and values.
    columns = min(each.get_seq_length() for each in caches)
    assert taken <= found <= taken * (columns + ROOM) / (columns - 1)


def test_on_cuda_the_peak_is_what_torch_counts_beyond_what_was_there(monkeypatch):
    """Of all GPUs, and the least free memory counts; what is reserved and not in use is free as well, in GiB."""
    before, most, free = (5, 7), (8, 11), (20, 30)
    counters = {
        "memory_allocated": lambda where: before[where.index] << 30,
        "memory_reserved": lambda where: (before[where.index] + 2) << 30,
        "max_memory_allocated": lambda where: most[where.index] << 30,
        "mem_get_info": lambda where: (free[where.index] << 30, 80 << 30),
    }
    for name, counter in (dict.fromkeys(("synchronize", "reset_peak_memory_stats"), id) | counters).items():
        monkeypatch.setattr(torch.cuda, name, counter)
    devices = [torch.device("cuda", number) for number in range(2)]
    with peak_memory(*devices) as found:
        pass
    assert found.bytes == (3 + 4) << 30
    assert (free_memory(*devices), most_pictures(devices[0])) == (int(0.9 * (22 << 30)), 256)


def test_the_largest_batch_is_at_least_one_picture():
    for prefill, text, free, expected in ((100, 40, 1000, 10), (40, 100, 1099, 10), (100, 40, 99, 1), (1, 1, 1000, 64)):
        assert PictureMemory(prefill, text).largest_batch(free, 64) == expected


# Threads.


@pytest.mark.parametrize(
    ("weights", "now", "chosen", "expected"),
    [
        (cpu.SMALL - 1, 8, {}, 1),  # threads would wait for each other
        (cpu.SMALL, 8, {}, 4),  # one per physical core
        (cpu.SMALL, 2, {}, 2),  # no more than torch has
        (cpu.SMALL, 8, {"OMP_NUM_THREADS": "8"}, 8),
        (1, 8, {"MKL_NUM_THREADS": "8"}, 8),
    ],
)
def test_threads_suit_the_model_unless_the_user_chose(weights, now, chosen, expected, monkeypatch):
    threads = [now]
    for name in cpu.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 8 if logical else 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads[-1])
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    model = SimpleNamespace(device=torch.device("cpu"), parameters=lambda: [torch.empty(weights, device="meta")])
    cpu.use_threads(model)
    assert threads[-1] == expected


def test_threads_stay_as_they_are_on_a_gpu(monkeypatch):
    for name in cpu.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.set_num_threads", pytest.fail)
    cpu.use_threads(SimpleNamespace(device=torch.device("cuda"), parameters=lambda: [torch.empty(1)]))


def test_a_command_sets_the_threads_for_its_model(sira, photos, monkeypatch):
    set_to: list[int] = []
    for name in cpu.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.set_num_threads", set_to.append)
    assert sira("caption", photos["chelsea"], "-p", "demo", "--max-new-tokens", 1)[0] == 0
    assert set_to == [1]  # the bundled model is small
