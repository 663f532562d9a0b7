"""What a hooked module was called with is found by type and shape, whatever its arguments are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from sira_cli.core import arguments
from sira_cli.errors import UnsupportedModelError


class Renamed(nn.Module):
    def forward(self, rows, own_mask=None, store: DynamicCache | None = None):
        return rows


def test_a_renamed_cache_is_found_and_replaced():
    cache, other = DynamicCache(), DynamicCache()
    assert arguments.cache_of((), {"store": cache, "n": 1}) is cache
    assert arguments.cache_of((cache,), {}) is cache
    assert arguments.cache_of((), {"store": None}) is None
    assert arguments.with_cache({"store": cache, "n": 1}, other) == {"store": other, "n": 1}
    assert arguments.cache_name(Renamed.forward) == "store"
    with pytest.raises(UnsupportedModelError, match="several caches"):
        arguments.cache_of((cache,), {"store": other})


def test_a_copy_of_the_cache_has_another_layer():
    cache = DynamicCache()
    cache.layers = ["first", "second"]
    changed = arguments.with_layer({"store": cache}, 1, "other")
    assert changed["store"].layers == ["first", "other"]
    assert cache.layers == ["first", "second"]


def test_hidden_states_are_the_first_argument():
    module, hidden, other = Renamed(), torch.ones(1, 3, 4), torch.zeros(1, 2, 4)
    for args, kwargs in (((hidden,), {}), ((), {"rows": hidden})):
        assert arguments.hidden_of(module, args, kwargs) is hidden
        args, kwargs = arguments.with_hidden(module, args, kwargs, other)
        assert arguments.hidden_of(module, args, kwargs) is other
    assert arguments.hidden_of(module, (torch.ones(1, 3, dtype=torch.long),), {}) is None


def test_the_mask_is_found_also_if_it_is_none():
    assert arguments.mask_name(Renamed(), {"own_mask": None, "store": None}) == "own_mask"
    with pytest.raises(UnsupportedModelError, match="Renamed was not called with one attention mask, but with none"):
        arguments.mask_name(Renamed(), {"store": None})
