"""A model whose layers are on several devices decodes as on one, greedily, with SIRA, and in all other ways.

There is one device here. `tests.support.devices` makes three of it, in a process of its own, where tensors of two
devices do not mix. The model is spread by accelerate, as `from_pretrained(device_map=...)` does it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sira_cli.methods import METHODS
from tests.support import tiny
from tests.support.several_devices_runs import EVERYTHING, KINDS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, str]]:
    """What differs, by family and way of decoding; nothing where the tokens are equal, and logits within 1e-4."""
    command = [sys.executable, "-m", "tests.support.several_devices_runs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_devices_do_not_mix(runs):
    assert "expected all tensors to be on the same device" in runs["mixed"]


@pytest.mark.parametrize("name", [*tiny.FAMILIES, *KINDS])
def test_texts_are_those_of_one_device(name, runs):
    assert {what: difference for what, difference in runs[name].items() if difference} == {}
    assert [what.split(",")[0] for what in runs[name]][:3] == ["greedy", "sira", "sira"]


@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_is_left_out(name, runs):
    others = {"beams", "many k", "forced", "tails"}
    assert {*METHODS, *others} - {"sira"} <= {*runs[name]}
