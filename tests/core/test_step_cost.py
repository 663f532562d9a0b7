"""What a decoding step costs where starting an operation is dearer than its arithmetic, as on a large GPU."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach

VIEWS = "view|slice|select|unsqueeze|squeeze|expand|transpose|split|detach|alias|aten[.]t[.]"
ALL, LATE = 10, 4  # operations more than in greedy's step: for the logits of both streams, and for each late layer


class _Counted(TorchDispatchMode):
    """Counts the operations that start a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.started: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not re.search(VIEWS, str(function)):
            self.started[str(function)] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("k", [1, 3])
def test_a_late_layer_starts_few_operations(llava, k):
    def step(fork) -> int:
        """Operations of a step, from texts whose lengths differ by four."""
        counts = []
        for tokens in (4, 8):
            with fork(), _Counted() as counted:
                llava.model.generate(**llava.inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
            counts.append(sum(counted.started.values()))
        more, rest = divmod(counts[1] - counts[0], 4)
        assert rest == 0
        return more

    greedy, sira = step(nullcontext), step(lambda: attach(llava.model, SiraConfig(k=k, alpha=0.5)))
    assert greedy < sira <= greedy + ALL + LATE * k
