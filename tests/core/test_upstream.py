"""What depends on names of transformers: arguments are found by type and shape; a self-check notices changes."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from sira_cli.core import arguments, fork, selfcheck
from sira_cli.core.masks import has_rows
from sira_cli.errors import UnsupportedModelError
from sira_cli.models.load import check_transformers


class Renamed(nn.Module):
    def forward(self, rows, own_mask=None, store: DynamicCache | None = None):
        return rows


def test_renamed_arguments_are_found_and_replaced():
    module, hidden, other = Renamed(), torch.ones(1, 3, 4), torch.zeros(1, 2, 4)
    for args, kwargs in (((hidden,), {}), ((), {"rows": hidden})):
        assert arguments.hidden_of(module, args, kwargs) is hidden
        assert arguments.hidden_of(module, *arguments.with_hidden(module, args, kwargs, other)) is other
    assert arguments.hidden_of(module, (torch.ones(1, 3, dtype=torch.long),), {}) is None
    assert arguments.mask_name(module, {"own_mask": None, "store": None}) == "own_mask"
    with pytest.raises(UnsupportedModelError, match="Renamed was not called with one attention mask, but with none"):
        arguments.mask_name(module, {"store": None})
    cache = DynamicCache()
    cache.layers = ["first", "second"]
    assert arguments.cache_of((), {"store": cache, "n": 1}) is arguments.cache_of((cache,), {}) is cache
    changed = arguments.with_layer({"store": cache}, 1, "other")
    assert (changed["store"].layers, cache.layers) == (["first", "other"], ["first", "second"])
    assert arguments.cache_name(Renamed.forward) == "store"
    with pytest.raises(UnsupportedModelError, match="several caches"):
        arguments.cache_of((cache,), {"store": DynamicCache()})


def test_what_has_a_row_per_token():
    """A position on each of three axes `[3, B, q]` is none, also where there are as many texts as they have tokens."""
    shapes = {(4, 7, 8): True, (1, 7): True, (3, 4, 7): False, (3, 7, 7): False, (7,): False}
    assert {shape: has_rows(torch.zeros(shape), 4, 7) for shape in shapes} == shapes


# --- the self-check: a transformers that the fork no longer follows is told in one sentence

failure, text_rows, call = selfcheck.failure, fork.text_rows, LlamaDecoderLayer.__call__
ADVICE = f"transformers {hf.__version__} changed what the fork needs: install "


@pytest.fixture
def forgotten(monkeypatch, tmp_path):
    monkeypatch.setenv("SIRA_HOME", str(tmp_path))
    failure.cache_clear()
    yield
    failure.cache_clear()


def test_this_transformers_passes_and_is_not_asked_again(forgotten, monkeypatch, tmp_path):
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
def test_a_change_is_noticed(forgotten, monkeypatch, owner, name, changed, reason):
    monkeypatch.setattr(owner, name, changed)
    with pytest.raises(UnsupportedModelError, match=ADVICE + reason):
        check_transformers()


def test_a_cache_folder_that_cannot_be_written_is_no_error(forgotten, tmp_path):
    (tmp_path / "cache").touch()
    check_transformers()
