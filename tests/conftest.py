"""Shared fixtures, and the conformance table at the end of a run."""

from __future__ import annotations

import functools
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may look for a hub; those of the hub client start their own
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch

from tests import tiny

torch.set_num_threads(max(1, (os.cpu_count() or 2) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


@functools.cache
def _family(name: str) -> tiny.Tiny:
    return tiny.FAMILIES[name]()


@pytest.fixture(params=list(tiny.FAMILIES))
def family(request: pytest.FixtureRequest) -> tiny.Tiny:
    """Each of the 13 families in turn."""
    return _family(request.param)


@pytest.fixture
def llava() -> tiny.Tiny:
    return _family("LLaVA-1.5")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the conformance test measured: the worst logit difference per family."""
    worst: dict[str, tuple[int, float, float]] = {}
    for report in terminalreporter.stats.get("passed", []):
        measured = dict(report.user_properties).get("conformance")
        if measured:
            family, difference, gap = measured
            runs, known, known_gap = worst.get(family, (0, 0.0, float("inf")))
            worst[family] = (runs + 2, max(known, difference), min(known_gap, gap))
    if worst:
        terminalreporter.section("conformance with Algorithm 1 (float32)")
        terminalreporter.write_line(
            f"{'family':<18}{'decodings':>10}{'worst |logit difference|':>28}{'least |full - cf|':>20}"
        )
        for family, (runs, difference, gap) in worst.items():
            terminalreporter.write_line(f"{family:<18}{runs:>10}{difference:>28.1e}{gap:>20.2f}")
