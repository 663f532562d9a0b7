"""The number of threads, by the size of the model."""

from __future__ import annotations

import psutil
import pytest
import torch

from sira_cli.models import placement
from sira_cli.models.load import check_structure
from sira_cli.models.presets import BUNDLED_FOLDER, find
from tests.support import layouts


@pytest.fixture
def machine(monkeypatch):
    """Eight cores that show as sixteen processors."""
    for name in placement.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)


def test_a_small_model_has_one_thread_and_a_large_one_a_thread_per_core(machine, monkeypatch, tmp_path):
    large = check_structure(layouts.write_config("smolvlm2-2.2b", tmp_path / "model"), find("smolvlm2-2.2b"))
    small = check_structure(BUNDLED_FOLDER, find("demo"))
    assert [placement.threads_for(model) for model in (small, large)] == [1, 8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)  # a container's share
    assert placement.threads_for(large) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert placement.threads_for(small) == 4


def test_a_command_uses_them(sira, machine, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    assert sira("demo", "--limit", "1", "--json")[0] == 0
    assert used == [1]
