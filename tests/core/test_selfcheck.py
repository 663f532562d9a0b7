"""The self-check notices a transformers that the fork no longer follows, and says so in one sentence."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from sira_cli.core import fork, selfcheck
from sira_cli.errors import UnsupportedModelError
from sira_cli.models.load import check_transformers

failure, text_rows, call = selfcheck.failure, fork.text_rows, LlamaDecoderLayer.__call__
ADVICE = f"transformers {hf.__version__} changed what the fork needs: install "


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    monkeypatch.setenv("SIRA_HOME", str(tmp_path))
    failure.cache_clear()
    yield
    failure.cache_clear()


def test_this_transformers_passes_and_is_not_asked_again(monkeypatch, tmp_path):
    state = torch.random.get_rng_state()
    check_transformers()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len([*(tmp_path / "cache" / "exact").iterdir()]) == 1
    monkeypatch.setattr(selfcheck, "failure", lambda: pytest.fail("asked again"))
    check_transformers()


def renamed(layer, hidden_states, position_embeddings=None, **kwargs):
    return call(layer, hidden_states, turns=position_embeddings, **kwargs)


@pytest.mark.parametrize(
    ("owner", "name", "changed", "reason"),
    [
        (fork, "text_rows", lambda image, valid: text_rows(torch.zeros_like(image), valid), ".*differ from the ref"),
        (LlamaDecoderLayer, "__call__", renamed, ""),  # positions under another name would stay unpacked
    ],
    ids=["a stream that sees the picture", "a renamed argument"],
)
def test_a_change_is_noticed(monkeypatch, owner, name, changed, reason):
    monkeypatch.setattr(owner, name, changed)
    with pytest.raises(UnsupportedModelError, match=ADVICE + reason):
        check_transformers()


def test_a_cache_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "cache").touch()
    check_transformers()
