"""The CF stream's mask against a row-by-row restatement of Eq. 2 in plain Python."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from sira_cli.core.masks import cf_mask, has_rows, text_rows
from sira_cli.core.streams import Streams

IMAGE = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1, 0]]).bool()
VALID = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1]]).bool()


def prompt(image: Tensor, valid: Tensor) -> tuple[Streams, Tensor, Tensor]:
    """The streams of one prefill; rows and live rows of the CF stream."""
    rows, live = text_rows(image, valid)
    return Streams(rows, None if bool(live.all()) else live, image.shape[1]), rows, live


def causal_and_padding(valid: Tensor) -> Tensor:
    size = valid.shape[1]
    return torch.ones(size, size, dtype=torch.bool).tril()[None, None] & valid[:, None, None, :]


@pytest.mark.parametrize(
    ("part", "has"),
    [
        (torch.zeros(4, 7, 8), True),
        (torch.zeros(1, 7), True),  # one for the whole batch
        (torch.zeros(3, 4, 7), False),  # a position on each of three axes
        (torch.zeros(3, 7, 7), False),  # and of as many texts as they have tokens
        (torch.zeros(7), False),
        (None, False),
    ],
)
def test_what_has_a_row_per_token(part: Tensor | None, has: bool):
    assert has_rows(part, 4, 7) == has


def test_text_rows_are_the_text_in_order_on_the_right():
    rows, live = text_rows(IMAGE, VALID)
    assert rows[0].tolist() == [0, 1, 5, 6, 7]
    assert rows[1, -4:].tolist() == [2, 3, 5, 7][-4:]
    assert live.tolist() == [[True] * 5, [False] + [True] * 4]


def test_fillers_are_copies_of_the_last_row_so_that_they_stay_finite():
    rows, live = text_rows(IMAGE, VALID)
    assert rows[~live].tolist() == [7]


@pytest.mark.parametrize("kind", ["bool", "float", "prefix", "window"])
def test_each_query_sees_what_its_position_sees(kind: str):
    mask = causal_and_padding(VALID)
    if kind == "prefix":
        mask = VALID[:, None, None, :].expand_as(mask).clone()
    if kind == "window":
        mask = mask & ~torch.ones_like(mask).tril(-3)
    model_mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min) if kind == "float" else mask
    streams, rows, live = prompt(IMAGE, VALID)
    result = cf_mask(model_mask, streams, rows)
    assert result.dtype == model_mask.dtype
    seen = result > -1 if kind == "float" else result
    for b in range(2):
        for q, k in itertools.product(range(rows.shape[1]), repeat=2):
            # nobody sees a filler
            expected = bool(live[b, k]) and bool(mask[b, 0, rows[b, q], rows[b, k]])
            assert bool(seen[b, 0, q, k]) == expected, (b, q, k)


def test_no_mask_means_causal():
    streams, rows, _ = prompt(IMAGE[:1], torch.ones_like(VALID[:1]))
    assert cf_mask(None, streams, rows) is None
    everything = torch.ones_like(VALID)
    streams, rows, live = prompt(IMAGE, everything)
    assert not live.all()
    assert torch.equal(cf_mask(None, streams, rows), cf_mask(causal_and_padding(everything), streams, rows))


def test_a_decoding_step_sees_its_own_stream():
    streams, _, live = prompt(IMAGE, VALID)
    streams.steps += 1
    newest = streams.positions()[:, -1:]
    assert newest.tolist() == [[8], [8]]
    padding = torch.cat([VALID, torch.ones(2, 1).bool()], dim=1)[:, None, None, :]
    for mask in (padding, None):
        result = cf_mask(mask, streams, newest)[:, 0, 0]
        for b in range(2):
            assert result[b].tolist() == [*live[b].tolist(), True]


def test_positions_outside_the_columns_of_a_sliding_mask_are_hidden():
    streams, _, _ = prompt(IMAGE[:1], VALID[:1])
    streams.steps += 1
    result = cf_mask(torch.ones(1, 1, 1, 4, dtype=torch.bool), streams, torch.tensor([[8]]))[0, 0, 0]
    assert streams.positions()[0, result].tolist() == [5, 6, 7, 8]
