"""Tiny checkpoints whose heads are as wide as vLLM's CPU attention takes them, and what `attach` says with them."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file

from sira_cli import SiraConfig, attach
from sira_cli.models.presets import BUNDLED_FOLDER
from tests.support.checkpoints import DESCRIPTIONS, write_checkpoint, write_qwen
from tools import checkpoint

HEAD = 32


def write_llava(folder: Path, dtype: torch.dtype = torch.float32, scale: float = 6.0, **text: Any) -> None:
    """LLaVA-1.5, with more settings of its decoder."""
    tokenizer = hf.AutoTokenizer.from_pretrained(BUNDLED_FOLDER)
    config = checkpoint.make_model(tokenizer, seed=0).config
    config.text_config.update({"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": HEAD} | text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.LlavaForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(scale)
    checkpoint.save(model, tokenizer, folder, dtype)


def described(key: str) -> Callable[[Path], None]:
    """What writes a checkpoint of tests/data/checkpoints.yaml with wider heads."""

    def write(folder: Path) -> None:
        description = copy.deepcopy(DESCRIPTIONS[key])
        sizes = {"hidden_size": 4 * HEAD, "intermediate_size": 8 * HEAD, "head_dim": HEAD}
        description["config"]["text_config"].update(sizes)
        write_checkpoint(folder, **description)

    return write


def write_gemma3(folder: Path) -> None:
    """Gemma 3, whose windows are longer than any prompt here."""
    description = copy.deepcopy(DESCRIPTIONS["gemma3"])
    sizes = {"hidden_size": 4 * HEAD, "intermediate_size": 8 * HEAD, "head_dim": HEAD, "query_pre_attn_scalar": HEAD}
    description["config"]["text_config"].update(sizes | {"sliding_window": 1024})
    write_checkpoint(folder, **description)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    for count, word in enumerate(("\u2581young", "\u2581yellow", "\u2581street"), 2):
        words["\n" * count] = words.pop(word)  # vLLM asks for tokens of empty lines, which the real one has
    tokenizer["model"]["merges"] = [each for each in tokenizer["model"]["merges"] if "".join(each) in words]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def write_qwen3_moe(folder: Path) -> None:
    """Qwen3-VL with experts, as Qwen3-VL-30B-A3B has them."""
    write_qwen(folder, "3", head=HEAD)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["model_type"], config["architectures"], config["text_config"]["model_type"]
    del config["vision_config"]["model_type"]
    config["text_config"] |= {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
    }
    torch.manual_seed(0)
    model = hf.Qwen3VLMoeForConditionalGeneration(hf.Qwen3VLMoeConfig(**config))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"  # as published ones are: experts by input, then output
    weights = load_file(file)
    for name in weights:
        if ".experts." in name:
            weights[name] = weights[name].transpose(1, 2).contiguous()
    save_file(weights, file, metadata={"format": "pt"})


GEMMA = "<start_of_turn>user\n{}Describe {}.<end_of_turn>\n<start_of_turn>model\n"


def write_qwen35(folder: Path, linear: int = 8) -> None:
    """Qwen3.5, of which each weight is a number of 16 bits, and whose linear layers remember a prompt."""
    write_qwen(folder, "3.5", head=HEAD, linear=linear)
    model = hf.AutoModelForImageTextToText.from_pretrained(folder)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # new ones forget a row within a few: dropping it would change nothing
            parameter.data.copy_(torch.linspace(-5.0, -2.0, len(parameter)))
        parameter.data.copy_(parameter.bfloat16())
    model.save_pretrained(folder)


CHATML = "<|im_start|>user\n{}Describe {}.<|im_end|>\n<|im_start|>assistant\n"
QWEN = ("<|vision_start|><|image_pad|><|vision_end|>", CHATML)
# Of each family: what writes it, the text of a picture, and of a prompt.
FAMILIES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "llava": (write_llava, "<image>\n", "USER: {}Describe {}. ASSISTANT:"),
    **{
        f"qwen{number}-vl": (functools.partial(write_qwen, version=number, head=HEAD), *QWEN)
        for number in ("2", "2.5", "3")
    },
    "qwen3-vl-moe": (write_qwen3_moe, *QWEN),
    "internvl": (described("internvl"), "<IMG_CONTEXT>\n", CHATML),
    "smolvlm": (described("smolvlm"), "<image>", "<|im_start|>User:{}Describe {}.<end_of_utterance>\nAssistant:"),
    "idefics3": (described("idefics3"), "<image>", "User:{}Describe {}.<end_of_utterance>\nAssistant:"),
    "pixtral": (described("pixtral"), "[IMG]", "<s>[INST]{}Describe {}.[/INST]"),
    "mistral3": (described("mistral3"), "[IMG]", "<s>[INST]{}Describe {}.[/INST]"),
    "llava-next": (described("llava_next"), "<image>\n", "[INST] {}Describe {}. [/INST]"),
    "qwen3.5": (write_qwen35, *QWEN),
    "qwen3.5, wide": (functools.partial(write_qwen35, linear=128), *QWEN),  # as vLLM wants it on CPUs
}
FAMILIES["lfm2-vl"] = (described("lfm2_vl"), "<image>", "<|startoftext|>" + CHATML)
RECURRENT = ("qwen3.5", "qwen3.5, wide", "lfm2-vl")  # test_recurrent.py has these

# By attention that no CPU has, so by vLLM's Triton backend in the interpreter.
BY_TRITON = {"gemma3": (write_gemma3, "<start_of_image>", GEMMA)}
FAMILIES |= BY_TRITON


def request(
    family: str, images: list[str], about: str = "the picture", tokens: int = 24, **more: Any
) -> dict[str, Any]:
    """A request to the engine: a prompt with pictures."""
    _, picture, text = FAMILIES[family]
    return {"prompt": text.format(picture * len(images), about), "images": images, "tokens": tokens, **more}


@functools.cache
def loaded(folder: Path) -> tuple[Any, Any]:
    """The model and the processor."""
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # as vLLM is asked to
    return model, hf.AutoProcessor.from_pretrained(folder)


class _Among(hf.LogitsProcessor):
    """Rules out all but some tokens, and those that a cut-off by beta calls implausible."""

    def __init__(self, allowed: list[int], beta: float) -> None:
        self.allowed = allowed
        self.floor = math.log(beta)
        self.full = torch.zeros(0)  # [V], of the newest step

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Keep the allowed tokens that are plausible among all tokens; if none is, those that are among the allowed."""
        best = float(self.full.max())
        kept = [token for token in self.allowed if self.full[token] >= best + self.floor]
        if not kept:
            best = max(float(self.full[token]) for token in self.allowed)
            kept = [token for token in self.allowed if self.full[token] >= best + self.floor]
        found = torch.full_like(scores, -math.inf)
        found[:, kept] = scores[:, kept]
        return found


def by_attach_among(folder: Path, asked: dict[str, Any], allowed: list[int], beta: float) -> list[int]:
    """The ids that `attach` and `generate` decode of the allowed ones, under a cut-off that is made here."""
    model, processor = loaded(folder)
    inputs = processor(text=asked["prompt"], images=[Image.open(path) for path in asked["images"]], return_tensors="pt")
    among = _Among(allowed, beta)

    def keep(step: Any) -> None:
        among.full = step.full[0]

    how = {"do_sample": False, "max_new_tokens": asked["tokens"], "repetition_penalty": 1.0}
    with attach(model, SiraConfig(k=model.config.text_config.num_hidden_layers // 2, alpha=0.5), on_step=keep):
        out = model.generate(**inputs, **how, logits_processor=[among])
    ids: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
    return ids


def by_attach(folder: Path, asked: dict[str, Any], alpha: float = 0.5, k: int | None = None) -> list[list[int]]:
    """The ids of the prompt, and those that `attach` and `generate` decode; without pictures, greedily."""
    model, processor = loaded(folder)
    pictures = [Image.open(path).convert("RGB") for path in asked["images"]]
    inputs = processor(text=asked["prompt"], images=pictures or None, return_tensors="pt")
    layers = model.config.get_text_config().num_hidden_layers
    tokens = asked["tokens"]
    if hasattr(model.model, "rope_deltas"):
        model.model.rope_deltas = None  # Qwen's code keeps them for the next prompt, if that has no pictures
    with attach(model, SiraConfig(k=k or layers // 2, alpha=alpha)) if pictures and alpha else nullcontext():
        out = model.generate(**inputs, do_sample=False, max_new_tokens=tokens, repetition_penalty=1.0)
    prompt = inputs["input_ids"].shape[1]
    return [out[0, :prompt].tolist(), out[0, prompt:].tolist()]


def log_probabilities(
    folder: Path, asked: dict[str, Any], tokens: list[int], alpha: float, on_step: Any = None
) -> torch.Tensor:
    """Of a text that is given, the log-probabilities of all tokens at each place under `attach` `[T, V]`."""
    model, processor = loaded(folder)
    pictures = [Image.open(path).convert("RGB") for path in asked["images"]]
    inputs = processor(text=asked["prompt"], images=pictures or None, return_tensors="pt")
    prompt = inputs["input_ids"].shape[1]

    def only(batch: int, ids: torch.Tensor) -> list[int]:
        return [tokens[len(ids) - prompt]]

    how = {"do_sample": False, "max_new_tokens": len(tokens), "repetition_penalty": 1.0}
    kept = {"return_dict_in_generate": True, "output_logits": True}
    layers = model.config.get_text_config().num_hidden_layers
    if hasattr(model.model, "rope_deltas"):
        model.model.rope_deltas = None
    config = SiraConfig(k=layers // 2, alpha=alpha)
    with attach(model, config, on_step=on_step) if pictures and alpha else nullcontext():
        out = model.generate(**inputs, **how, **kept, prefix_allowed_tokens_fn=only)
    return torch.stack(out.logits, dim=1)[0].log_softmax(dim=-1)


def scores_by_attach(folder: Path, asked: dict[str, Any], tokens: list[int], alpha: float) -> list[list[float]]:
    """Of each token of a text that is given: z_full - z_cf, and its log-probability under the contrast, by `attach`."""
    steps: list[Any] = []
    logprobs = log_probabilities(folder, asked, tokens, alpha, steps.append)
    found = []
    for step, row, token in zip(steps, logprobs, tokens, strict=True):
        found.append([float(step.full[0, token] - step.cf[0, token]), float(row[token])])
    return found
