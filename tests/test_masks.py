"""The packed mask against a slot-by-slot restatement of Eq. 2 in plain Python."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sira_cli.cache import CF, FULL, Slots
from sira_cli.masks import pack_mask, text_rows

IMAGE = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1, 0]]).bool()
VALID = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1]]).bool()


def packed(image: Tensor, valid: Tensor) -> tuple[Slots, Tensor, Tensor, Tensor]:
    """The slots of one prefill and their streams; rows and live rows of the CF stream."""
    rows, live = text_rows(image, valid)
    slots = Slots(len(image), image.device)
    return slots, slots.append(rows, live, image.shape[1]), rows, live


def causal_and_padding(valid: Tensor) -> Tensor:
    size = valid.shape[1]
    return torch.ones(size, size, dtype=torch.bool).tril()[None, None] & valid[:, None, None, :]


def test_text_rows_are_the_text_in_order_on_the_right():
    rows, live = text_rows(IMAGE, VALID)
    assert rows[0].tolist() == [0, 1, 5, 6, 7]
    assert rows[1, -4:].tolist() == [2, 3, 5, 7][-4:]
    assert live.tolist() == [[True] * 5, [False] + [True] * 4]


def test_fillers_are_copies_of_the_last_row_so_that_they_stay_finite():
    rows, live = text_rows(IMAGE, VALID)
    assert rows[~live].tolist() == [7]


@pytest.mark.parametrize("kind", ["bool", "float", "prefix", "window"])
def test_each_query_sees_what_its_position_sees_in_its_own_stream(kind: str):
    mask = causal_and_padding(VALID)
    if kind == "prefix":
        mask = VALID[:, None, None, :].expand_as(mask).clone()
    if kind == "window":
        mask = mask & ~torch.ones_like(mask).tril(-3)
    model_mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min) if kind == "float" else mask
    slots, streams, rows, live = packed(IMAGE, VALID)
    result = pack_mask(model_mask, slots, streams)
    assert result.dtype == model_mask.dtype
    seen = result > -1 if kind == "float" else result
    size = IMAGE.shape[1]
    for b in range(2):
        origin = list(range(size)) + rows[b].tolist()
        for q in range(len(origin)):
            for k in range(len(origin)):
                if (q < size) != (k < size):
                    expected = False  # never across streams
                elif k >= size and not live[b, k - size]:
                    expected = False  # nobody sees a filler
                else:
                    expected = bool(mask[b, 0, origin[q], origin[k]])
                assert bool(seen[b, 0, q, k]) == expected, (b, q, k)


def test_no_mask_means_causal():
    everything = torch.ones_like(VALID)
    slots, streams, _, _ = packed(IMAGE, everything)
    assert torch.equal(pack_mask(None, slots, streams), pack_mask(causal_and_padding(everything), slots, streams))


def test_a_decoding_step_sees_both_streams_apart():
    slots, _, _, live = packed(IMAGE, VALID)
    before = len(slots)
    streams = slots.append(None, None, 1)
    assert streams.tolist() == [FULL, CF]
    padding = torch.cat([VALID, torch.ones(2, 1).bool()], dim=1)[:, None, None, :]
    result = pack_mask(padding, slots, torch.tensor([FULL, CF]))[:, 0]
    for b in range(2):
        assert result[b, FULL].tolist() == [*VALID[b].tolist(), *([False] * (before - 8)), True, False]
        assert result[b, CF].tolist() == [*([False] * 8), *live[b].tolist(), False, True]


def test_positions_outside_the_columns_of_a_sliding_mask_are_hidden():
    slots, _, _, _ = packed(IMAGE[:1], VALID[:1])
    slots.append(None, None, 1)
    result = pack_mask(torch.ones(1, 1, 1, 4, dtype=torch.bool), slots, torch.tensor([FULL, CF]))[0, 0]
    assert result[FULL].nonzero().flatten().tolist() == [5, 6, 7, 13]
    assert result[CF].nonzero().flatten().tolist() == [10, 11, 12, 14]  # positions 5, 6, 7 and 8 again
