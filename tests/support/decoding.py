"""Tiny models by name, prompts of theirs for batches, calibrations, and methods that decode them."""

from __future__ import annotations

import functools
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Method, PromptBatch
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from tests.support import census, tiny
from tests.support.tiny import Tiny

ROLE = torch.tensor([[33, 44, 55]])  # what stands for icd's role in front of a prompt
_FOLDER = tempfile.TemporaryDirectory(prefix="sira-calibrations-")


@functools.cache
def case_of(name: str) -> Tiny:
    """A family, or a type of the census; each is built once, and no test may change it."""
    return tiny.FAMILIES[name]() if name in tiny.FAMILIES else census.case_of(name)


# --- prompts


def llava_prompts() -> list[dict[str, Tensor]]:
    """Different lengths and places; the last one holds two images with text between them."""
    two = torch.cat([tiny.prompt(before=3, after=4, seed=3), tiny.prompt(before=2, after=1, seed=4)], dim=1)
    prompts = [tiny.prompt(before=5, after=9, seed=1), tiny.prompt(before=0, after=2, seed=2), two]
    pixels = [tiny.pixels(1 + (index == 2), 3, 32, 32, seed=index + 1) for index in range(3)]
    return [tiny.with_mask(ids, pixel_values=shown) for ids, shown in zip(prompts, pixels, strict=True)]


def family_prompts(name: str, case: Tiny) -> list[dict[str, Tensor]]:
    """Three prompts of a family: other text, other lengths, other pictures, and for Qwen pictures of three sizes."""
    if name == "LLaVA-1.5":
        return llava_prompts()
    if name.startswith("Qwen"):
        shapes = [((1, 8, 8), 16, 5, 9), ((1, 6, 16), 24, 2, 4), ((1, 4, 4), 4, 7, 2)]
        return [
            tiny.qwen_inputs(tiny.prompt(*counts, seed=index), grid, seed=index)
            for index, (grid, *counts) in enumerate(shapes)
        ]
    prompts = []
    for index, (before, after) in enumerate([(5, 9), (0, 3), (14, 2)]):
        ids = tiny.prompt(int(case.image.sum()), before, after, seed=index)
        kinds = {kind: (ids == tiny.IMAGE).long() for kind in case.grown}
        pixels = tiny.pixels(*case.inputs["pixel_values"].shape, seed=index)
        prompts.append({**case.inputs, **tiny.with_mask(ids, pixel_values=pixels, **kinds)})
    return prompts


def with_role(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The prompt of one row behind a few tokens more."""
    longer = {}
    for name, value in inputs.items():
        if value.shape == inputs["input_ids"].shape:
            value = F.pad(value, (3, 0), value=1 if name == "attention_mask" else 0)
        longer[name] = value
    longer["input_ids"][:, :3] = ROLE
    return longer


# --- methods


def strong(method: Calibrated, model: object) -> dict[str, Tensor]:
    """A calibration's tensors, such that the method changes what a tiny model says."""
    tensors = method.stand_in(model)
    return {name: torch.full_like(value, 2.0) if name.endswith("spread") else value for name, value in tensors.items()}


def calibrated_for(method: Method, model: object, revision: str = "tiny") -> Method:
    """The method with a calibration of a tiny model, if it needs one."""
    if not isinstance(method, Calibrated) or method.calibration is not None:
        return method
    path = Path(_FOLDER.name) / f"{method.name}-{id(model)}-{revision}.safetensors"
    if not path.exists():
        Calibration(Origin(method.name, "tiny", revision, {}, "0"), strong(method, model)).write(path)
    return replace(method, calibration=str(path))


def stub(case: Tiny) -> SimpleNamespace:
    """The part of an `Lvlm` that branches need, but for icd's processor."""
    return SimpleNamespace(find_image=lambda ids: ids == tiny.IMAGE, model=case.model)


def branch_of(method: Method, case: Tiny) -> dict[str, Tensor]:
    """The branch's inputs as the method makes them; icd's by hand."""
    if method.name == "icd":
        return with_role(case.inputs)
    return method.branch_inputs(PromptBatch(stub(case), case.inputs, [0] * len(case.inputs["input_ids"])))


@contextmanager
def attached(method: Method, case: Tiny, branch: dict | None = None):
    branch = branch_of(method, case) if branch is None else branch
    method = calibrated_for(method, case.model)
    with method.attach(case.model, SiraConfig(k=3), case.inputs["input_ids"], branch) as run:
        yield run


def decoded(method: Method, case: Tiny, branch: dict | None = None, **settings):
    """Tokens `[B, T]` and scores before processors `[T, B, V]` of `generate` under a method."""
    settings = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None, **settings}
    with attached(method, case, branch):
        output = case.model.generate(
            **case.inputs, suppress_tokens=tiny.SUPPRESS, return_dict_in_generate=True, output_logits=True, **settings
        )
    return output.sequences[:, case.image.shape[1] :], torch.stack(output.logits)
