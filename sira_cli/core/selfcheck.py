"""Whether this version of transformers calls its modules as the fork expects: a two-layer LLaVA against Algorithm 1."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Step, attach
from sira_cli.core.upstream import set_attention

OLDEST = "5.19"  # version of transformers that the tests ran with, as the next one
NEWEST = "5.24"
TESTED = f"{OLDEST} to {NEWEST}"
TOLERANCE = 1e-4  # of logits, in float32
IMAGE = 63  # id of the image token
PATCHES = 4
TOKENS = 12  # of the prompt


def is_tested(version: str) -> bool:
    """Return whether the tests ran with a version of transformers, or with another patch of it."""
    return _numbers(OLDEST) <= _numbers(version) <= _numbers(NEWEST)


def _numbers(version: str) -> list[int]:
    """Return the first two numbers of a version."""
    return [int(part) for part in version.split(".")[:2]]


@functools.cache
def failure() -> str | None:
    """Return why the fork is not exact under this version of transformers, in a sentence; None if it is."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            difference = _difference(_prompt())
        reason = f"its logits differ from the reference by {difference:.1e}" if difference > TOLERANCE else ""
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    advice = f"changed what the fork needs: install a version that was tested ({TESTED}), or a newer sira ({reason})"
    return f"transformers {transformers.__version__} {advice}" if reason else None


def _prompt() -> reference.Prompt:
    """Return a random model and a prompt of 12 tokens, 4 of them of the picture."""
    size: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config: Any = LlavaConfig(
        vision_config=CLIPVisionConfig(**size, num_hidden_layers=1, image_size=8, patch_size=4).to_dict(),
        text_config=LlamaConfig(**size, num_hidden_layers=2, vocab_size=64, num_key_value_heads=1).to_dict(),
        image_token_index=IMAGE,
        image_seq_length=PATCHES,
        vision_feature_layer=-1,
    )
    set_attention(config, "sdpa")
    model = LlavaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(20)  # so that attention is far from uniform, and the streams differ
    ids = torch.randint(3, IMAGE, (1, TOKENS))
    ids[:, 2 : 2 + PATCHES] = IMAGE
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 8, 8)}
    return reference.Prompt(model, inputs, ids == IMAGE, silent=(IMAGE,))


@torch.no_grad()
def _difference(prompt: reference.Prompt) -> float:
    """Return the largest difference between the fork's logits and the reference's, over 3 tokens of its text."""
    config = SiraConfig(k=1)
    steps: list[Step] = []
    with attach(prompt.model, config, on_step=steps.append):
        tokens = prompt.model.generate(**prompt.inputs, max_new_tokens=3, pad_token_id=0, suppress_tokens=[IMAGE])
    text = tokens[0, TOKENS:].tolist()
    expected = reference.decode(prompt, 1, config.alpha, len(text), follow=text)
    full = torch.cat([step.full for step in steps]) - expected.full
    cf = torch.cat([step.cf for step in steps]) - expected.cf
    if not bool((expected.full - expected.cf).abs().amax() > 100 * TOLERANCE):
        raise AssertionError("both streams of the reference are the same")
    return float(torch.stack([full, cf]).abs().max())
