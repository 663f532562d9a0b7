"""Arguments that depend on names of transformers are found by type and shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from sira_cli.core import arguments
from sira_cli.core.masks import has_rows
from sira_cli.errors import UnsupportedModelError


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
