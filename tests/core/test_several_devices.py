"""A model whose layers are on several devices decodes as on one, greedily, with SIRA, and in all other ways.

There is one device here. `tests.support.devices` makes three of it, for good, where tensors of two devices do not mix:
so this file is also the program that runs there, and prints what differs from one device as JSON. The model is spread
by accelerate, as `from_pretrained(device_map=...)` does it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sira_cli.core.config import SiraConfig
from sira_cli.core.families import text_stack
from sira_cli.core.passes import ImagePrefix, next_token, score
from sira_cli.methods import METHODS
from sira_cli.methods.base import Method
from tests.support import census, tiny
from tests.support.helpers import branch_of, calibrated_for, case_of, decoded, generate, generate_sira
from tests.support.tiny import Tiny

pytestmark = pytest.mark.slow
EVERYTHING = ("LLaVA-1.5", "Qwen2.5-VL")
NAMES = [*tiny.FAMILIES, *census.KINDS]
TOKENS = 3
Check = Callable[[Tiny, Callable[[Any], Any]], list[torch.Tensor]]


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, str]]:
    """What differs, by family and way of decoding; nothing where the tokens are equal, and logits within 1e-4."""
    command = [sys.executable, "-m", "tests.core.test_several_devices"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_those_of_one_device(name, runs):
    assert {what: difference for what, difference in runs[name].items() if difference} == {}
    assert [what.split(",")[0] for what in runs[name]][:3] == ["greedy", "sira", "sira"]
    if name in EVERYTHING:
        assert {*METHODS, "beams", "many k", "forced", "tails"} - {"sira"} <= {*runs[name]}


def steps_of(case: Tiny, **settings: Any) -> list[torch.Tensor]:
    tokens, steps = generate_sira(case.model, case.inputs, max_new_tokens=TOKENS, **settings)
    return [tokens, *(view for step in steps for view in (step.full, step.cf))]


def of_method(case: Tiny, method: Method, branch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    if method.own_search:
        limits = {"max_new_tokens": TOKENS, "suppress_tokens": tiny.SUPPRESS, "eos_token_id": 2}
        return [method.generate(case.model, case.inputs, SiraConfig(), branch, do_sample=False, **limits)]
    return [*decoded(method, case, branch=branch, max_new_tokens=TOKENS)]


def checks(name: str, case: Tiny) -> Iterator[tuple[str, Check]]:
    yield "greedy", lambda case, move: [generate(case.model, case.inputs, max_new_tokens=TOKENS)]
    for k in (min(case.boundaries), max(case.boundaries)):  # forks on the last device, and on the first
        yield f"sira, k = {k}", lambda case, move, k=k: steps_of(case, config=SiraConfig(k=k))
    if name not in EVERYTHING:
        return
    for method in METHODS.values():
        if method.name not in ("greedy", "sira"):
            branch, method = branch_of(method, case), calibrated_for(method, case.model)
            yield method.name, lambda case, move, method=method, branch=branch: of_method(case, method, move(branch))
    length, three = int(case.image[0].nonzero().max()) + 1, SiraConfig(k=3)
    yield "beams", lambda case, move: steps_of(case, num_beams=3)
    yield "many k", lambda case, move: [*next_token(case.model, SiraConfig(), case.inputs, [2, 4])[1].values()]
    yield "forced", lambda case, move: [step.cf for step in score(case.model, three, case.inputs, [[7, 9, 5]])]
    yield "tails", lambda case, move: [ImagePrefix(case.model, case.inputs, length).last_logits([[20, 21], [30]])]


def compare(name: str) -> dict[str, str]:
    from tests.support.devices import CARDS, several_devices, spread, to_first

    case, results = case_of(name), {}
    todo = list(checks(name, case))
    with torch.no_grad():
        expected = [check(case, lambda branch: branch) for _, check in todo]
    with several_devices():
        far = spread(case)
        assert {weight.device for weight in text_stack(far.model).layers.parameters()} == {*CARDS}
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            torch.zeros(2).to(CARDS[0]) + torch.zeros(2).to(CARDS[1])
        for (what, check), one in zip(todo, expected, strict=True):
            results[what] = ""
            try:
                for wanted, found in zip(one, check(far, to_first), strict=True):
                    torch.testing.assert_close(vars(found).get("inner", found), wanted, atol=1e-4, rtol=0)
            except Exception:
                results[what] = traceback.format_exc()[-1500:]
    return results


if __name__ == "__main__":
    print(json.dumps({name: compare(name) for name in sys.argv[1:] or NAMES}))
