"""Which rows of a step are the contrast stream's, against a count token by token."""

from __future__ import annotations

import numpy as np
import pytest

from sira_cli.vllm.step import Requests, Step, plan, plan_graph

IMAGES = (  # of each slot: which tokens of the prompt are image tokens, up to the last one
    [False, True, True, True, False, True],
    [],
    [True, True],
    [False] * 3 + [True] * 9,
)


@pytest.fixture
def requests():
    """Four slots, each of which held something else before."""
    found = Requests(4)
    for slot in range(4):
        found.put(slot, np.ones(20, dtype=bool), 9.0)
    for slot, image in enumerate(IMAGES):
        found.put(slot, np.array(image, dtype=bool), slot / 2)
    return found


def counted(batch: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Of (slot, tokens in the cache, tokens of this step): by request, each text row's number and place."""
    found: dict[int, list[tuple[int, int]]] = {}
    row = 0
    for number, (slot, done, scheduled) in enumerate(batch):
        places = 0
        for position in range(done + scheduled):
            image = position < len(IMAGES[slot]) and IMAGES[slot][position]
            if position >= done:
                if not image:
                    found.setdefault(number, []).append((row, places))
                row += 1
            places += not image
    return found


def planned(step: Step) -> dict[int, list[tuple[int, int]]]:
    """The same of a plan."""
    found: dict[int, list[tuple[int, int]]] = {}
    rows = step.rows[: step.live]
    for row, number, place in zip(rows.tolist(), step.request.tolist(), step.place.tolist(), strict=True):
        found.setdefault(number, []).append((row, place))
    return found


def steps():
    """Batches in which slots and places differ, pictures are cut, and some requests have no text row."""
    random = np.random.default_rng(0)
    for _ in range(300):
        slots = random.permutation(4)[: random.integers(1, 5)]
        yield [(int(slot), int(random.integers(0, 14)), int(random.integers(1, 9))) for slot in slots]


def arrays(batch):
    """The arguments of `plan`: first rows, tokens in the cache, slots."""
    slots, done, scheduled = (np.array(column) for column in zip(*batch, strict=True))
    return np.concatenate([[0], scheduled.cumsum()]), done, slots


def test_text_rows_and_their_places_are_those_counted_one_by_one(requests):
    for batch in steps():
        starts, done, slots = arrays(batch)
        assert planned(plan(starts, done, slots, requests, done > 3, int(starts[-1]))) == counted(batch)


def test_requests_without_text_rows_are_left_out_of_the_metadata(requests):
    for batch in steps():
        starts, done, slots = arrays(batch)
        step = plan(starts, done, slots, requests, done > 3, int(starts[-1]))
        expected = counted(batch)
        having = [*expected] if step.having is None else step.having.tolist()
        assert having == [*expected]
        assert np.diff(step.starts).tolist() == [len(rows) for rows in expected.values()]
        assert step.lengths.tolist() == [rows[-1][1] + 1 for rows in expected.values()]
        assert step.prefilling.tolist() == [bool(done[number] > 3) for number in expected]


def test_with_padding_each_row_comes_once_and_text_rows_come_first(requests):
    for batch in steps():
        starts, done, slots = arrays(batch)
        width = int(starts[-1]) + 3
        step = plan(starts, done, slots, requests, done > 3, width)
        assert sorted(step.rows.tolist()) == [*range(width)]
        assert planned(step) == counted(batch)


def test_a_graph_has_one_row_of_each_request_and_empty_padding(requests):
    for batch in steps():
        batch = [(slot, done, 1) for slot, done, _ in batch]
        _, done, slots = arrays(batch)
        step = plan_graph(done, slots, requests, 6)
        expected = counted(batch)
        assert step.live == 6
        assert step.rows.tolist() == [*range(6)]
        assert step.request.tolist() == [*range(6)]
        kept = {number: [(number, int(step.place[number]))] for number in range(6) if step.place[number] >= 0}
        assert kept == expected
        assert np.diff(step.starts).tolist() == [1] * len(batch) + [0] * (6 - len(batch))
        for number, rows in expected.items():
            assert step.lengths[number] == rows[0][1] + 1
        assert not step.lengths[len(batch) :].any()


def test_nothing_of_a_warm_up_is_kept(requests):
    starts = np.array([0, 3, 4])
    for step in (
        plan(starts, np.zeros(2, dtype=int), None, requests, np.zeros(2, dtype=bool), 4),
        plan_graph(np.zeros(2, dtype=int), None, requests, 4),
    ):
        assert step.place.tolist() == [-1] * 4
