"""Methods that decode tiny models."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Method, PromptBatch
from sira_cli.methods.icd import Icd
from tests.support import census, tiny
from tests.support.calibrations import calibrated_for
from tests.support.tiny import Tiny

ROLE = torch.tensor([[33, 44, 55]])  # what stands for icd's role in front of a prompt


@functools.cache
def case_of(name: str) -> Tiny:
    """A family, or a type of the census; each is built once, and no test may change it."""
    return tiny.FAMILIES[name]() if name in tiny.FAMILIES else census.case_of(name)


def stub(case: Tiny) -> SimpleNamespace:
    """The part of an `Lvlm` that branches need, but for icd's processor."""
    return SimpleNamespace(find_image=lambda ids: ids == tiny.IMAGE, model=case.model)


def branch_of(method: Method, case: Tiny) -> dict[str, torch.Tensor]:
    """The branch's inputs as the method makes them; icd's by hand."""
    if not isinstance(method, Icd):
        return method.branch_inputs(PromptBatch(stub(case), case.inputs, [0] * len(case.inputs["input_ids"])))
    return with_role(case.inputs)


def with_role(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The prompt of one row behind a few tokens more."""
    longer = {}
    for name, value in inputs.items():
        if value.shape == inputs["input_ids"].shape:
            value = F.pad(value, (3, 0), value=1 if name == "attention_mask" else 0)
        longer[name] = value
    longer["input_ids"][:, :3] = ROLE
    return longer


@contextmanager
def attached(method: Method, case: Tiny, inputs: dict | None = None, branch: dict | None = None):
    inputs = case.inputs if inputs is None else inputs
    branch = branch_of(method, case) if branch is None else branch
    method = calibrated_for(method, case.model)
    with method.attach(case.model, SiraConfig(k=3), inputs["input_ids"], branch) as run:
        yield run


def decoded(method: Method, case: Tiny, inputs: dict | None = None, branch: dict | None = None, **settings):
    """Tokens `[B, T]` and scores before processors `[T, B, V]` of `generate` under a method."""
    inputs = case.inputs if inputs is None else inputs
    settings = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None, **settings}
    with attached(method, case, inputs, branch):
        output = case.model.generate(
            **inputs, suppress_tokens=tiny.SUPPRESS, return_dict_in_generate=True, output_logits=True, **settings
        )
    return output.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(output.logits)
