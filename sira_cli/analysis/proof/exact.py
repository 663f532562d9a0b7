"""The real weights, compared with the slow reference."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sira_cli.analysis.proof.compared import Compared, compare
from sira_cli.analysis.proof.twin import asked, grown_inputs
from sira_cli.core.families import find_backbone
from sira_cli.core.forward_pass import Step
from sira_cli.models.preset import Preset
from sira_cli.models.processor import refusing
from sira_cli.run.lvlm import Lvlm, load

TOKENS = 8  # compared
TIMED = 3  # decodings by each method, of which the fastest counts


@dataclass(frozen=True)
class Exact:
    """The comparison with the real weights.

    Attributes:
        compared: SIRA's first tokens, compared with the reference.
        text: text of the tokens about the picture.
        device, dtype: device and precision of the model.
        seconds_sira, seconds_greedy: seconds to decode these tokens, prompt included.
    """

    compared: Compared
    text: str
    device: str
    dtype: str
    seconds_sira: float
    seconds_greedy: float


@dataclass(frozen=True)
class _Prompt:
    """As `core.reference.Prompt` has it."""

    model: Any
    inputs: Mapping[str, Any]
    image: Tensor
    grown: Mapping[str, int]
    silent: tuple[int, ...] = ()


def compare_real(preset: Preset, picture: Image.Image, *, offline: bool, device: str) -> Exact:
    """Load a model, decode a few tokens about a picture with SIRA, and compare them with the reference.

    Both use the same weights, quantized or not.
    """
    preset = _greedily(preset)
    lvlm = load(preset, method="sira", device=device, offline=offline)
    compared, inputs, tokens = _compare(lvlm, preset, picture)
    greedy = lvlm.under(preset.method("greedy"))
    text = lvlm.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    times = _seconds(lvlm, inputs), _seconds(greedy, inputs)
    return Exact(compared, text, lvlm.device, lvlm.dtype, *times)


def _compare(lvlm: Lvlm, preset: Preset, picture: Image.Image) -> tuple[Compared, Any, list[int]]:
    """Return the comparison about a picture, the model's inputs, and the tokens."""
    with refusing("a drawn scene"):
        prepared = lvlm.prepare([picture], [preset.prompts.caption])
    inputs = lvlm.to_device(prepared)
    tokens: list[int] = []
    steps: list[Step] = []

    def keep(new: list[int], step: Step) -> None:
        tokens.extend(new)
        steps.append(step)

    lvlm.generate(inputs, on_tokens=keep)
    given: dict[str, Any] = {**asked(inputs)}
    image = lvlm.find_image(inputs["input_ids"])
    if _keeps_last(lvlm.model):
        given["logits_to_keep"] = 1  # all S rows of a large vocabulary are gigabytes
    prompt = _Prompt(lvlm.model, given, image, grown_inputs(lvlm.model, inputs))
    config = replace(preset.sira_config, k=lvlm.k, k_fraction=None)
    # bitsandbytes multiplies 4-bit matrices in bfloat16, and rounds rows as coarsely for 8-bit ones.
    precision = lvlm.model.dtype if lvlm.quantization is None else torch.bfloat16
    return compare(prompt, config, tokens, steps, precision), inputs, tokens


def _keeps_last(model: Any) -> bool:
    """Return whether a model accepts the number of rows to return logits for, and applies it only to its output.

    Gemma 4 drops the other rows earlier, in layers that share keys.
    """
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    return takes and all(mixer.keys_from == index for index, mixer in enumerate(find_backbone(model).mixers))


def _greedily(preset: Preset) -> Preset:
    return preset.with_values(
        max_new_tokens=TOKENS, temperature=0.0, num_beams=1, repetition_penalty=1.0, no_repeat_ngram_size=0,
    )  # fmt: skip


def _seconds(lvlm: Lvlm, inputs: Any) -> float:
    """Return the fastest of several decoding times."""
    found = []
    for _ in range(TIMED):
        started = time.perf_counter()
        lvlm.generate(inputs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return min(found)
