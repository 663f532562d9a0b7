"""What a subclass of `Fork` may change: which rows the CF stream holds, and which of them it sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork, Pass, Step, attach, attached
from sira_cli.core.masks import text_rows
from tests.support import tiny
from tests.support.helpers import generate, hooks

K = 3


def every_second(image: Tensor) -> Tensor:
    """`[B, S]`: P_img without the tokens at even places."""
    return image & (torch.arange(image.shape[1]) % 2 == 1)


class HalfBlind(Fork):
    """The CF stream holds the text and half of the image tokens."""

    def choose_cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        return text_rows(every_second(image), valid)


class HalfHidden(HalfBlind):
    """The CF stream holds half of the image tokens, and sees none of them."""

    def visible_cf_rows(self, now: Pass) -> Tensor | None:
        return ~self.image.gather(1, now.streams.rows)


def steps_of(kind: type[Fork], case: tiny.Tiny) -> tuple[list[int], list[Step]]:
    steps: list[Step] = []
    with attached(kind(case.model, SiraConfig(k=K), on_step=steps.append)):
        return generate(case.model, case.inputs)[0].tolist(), steps


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
def test_a_stream_of_other_rows_equals_its_reference(name):
    case = tiny.FAMILIES[name]()
    generate(case.model, case.inputs)  # transformers leaves hooks of its own
    before = hooks(case.model)
    tokens, steps = steps_of(HalfBlind, case)
    assert hooks(case.model) == before
    inputs, hidden = dict(case.inputs), every_second(case.image)
    for token, step in zip(tokens, steps, strict=True):
        expected = reference.counterfactual(case.model, inputs, hidden, K)
        torch.testing.assert_close(step.cf[0], expected, atol=1e-4, rtol=1e-5)
        inputs = reference.extend(inputs, token, case.grown)
        hidden = torch.nn.functional.pad(hidden, (0, 1), value=False)


def test_rows_that_are_not_seen_might_as_well_not_be_there():
    """So the text's rows come out as those of SIRA itself, although image tokens run beside them."""
    case = tiny.FAMILIES["LLaVA-1.5"]()
    tokens, steps = steps_of(HalfHidden, case)
    expected: list[Step] = []
    with attach(case.model, SiraConfig(k=K), on_step=expected.append):
        assert generate(case.model, case.inputs)[0].tolist() == tokens
    for one, other in zip(steps, expected, strict=True):
        torch.testing.assert_close(one.cf, other.cf, atol=1e-5, rtol=1e-5)
    blind = steps_of(HalfBlind, case)[1]
    assert not torch.allclose(blind[0].cf, expected[0].cf, atol=1e-3)  # else seeing them would make no difference
