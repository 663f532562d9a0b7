"""Who may come in: whoever was refused first, and comes again, is let in first."""

from __future__ import annotations

import pytest

from sira_cli.serve import waiting_queue
from sira_cli.serve.waiting_queue import BusyError, WaitingQueue

SIZE = 10  # bytes of a request


class Connection:
    """Of a client, as the server sees it."""

    def __init__(self) -> None:
        self.is_open = True


class Clock:
    """Seconds, as `time.monotonic` tells them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting_queue, "time", clock)
    return clock


def full(most: int, *, most_bytes: int = 10**6, at_once: int = 1) -> tuple[WaitingQueue, list]:
    """A queue without a free place, and its places."""
    made = WaitingQueue(most, most_bytes, at_once, lambda: 0)
    return made, [made.enter("host", Connection(), SIZE) for _ in range(most)]


def refused(made: WaitingQueue, connection: Connection | None, host: str = "host", size: int = SIZE) -> bool:
    try:
        made.enter(host, connection, size)
    except BusyError:
        return True
    return False


def test_a_place_is_kept_for_whoever_was_refused_first(clock):
    made, places = full(3)
    first, second, third = Connection(), Connection(), Connection()
    assert refused(made, first)
    assert refused(made, second)
    clock.now += 2
    assert refused(made, second)  # comes again, and stays behind the first
    places[0].leave()
    assert refused(made, third)
    assert refused(made, second)
    assert not refused(made, first)
    places[1].leave()
    assert refused(made, third)
    assert not refused(made, second)
    places[2].leave()
    assert not refused(made, third)


def test_clients_that_come_by_new_connections_are_known_by_their_host_and_the_time(clock):
    """One that comes before it should is another one, and so is one of another host."""
    made, places = full(2)
    gone, other = Connection(), Connection()
    assert refused(made, gone)
    gone.is_open = False
    places[0].leave()
    assert refused(made, Connection())
    clock.now += 2
    assert refused(made, other, "another host")
    assert not refused(made, Connection())


def test_a_turn_ends_if_nobody_comes_for_it(clock):
    made, places = full(2)
    assert refused(made, Connection())
    places[0].leave()
    assert refused(made, Connection())
    clock.now += waiting_queue.RETRY_AFTER + waiting_queue.KEPT
    assert not refused(made, Connection())


def test_places_that_are_kept_do_not_leave_the_decoder_without_work(clock):
    made, places = full(4, at_once=2)
    assert all(refused(made, Connection()) for _ in range(4))
    for place in places[:3]:
        place.leave()
    assert not refused(made, Connection())
    assert refused(made, Connection())


def test_the_turns_that_are_remembered_are_bounded(clock):
    made, places = full(2)
    later = Connection()
    assert all(refused(made, Connection()) for _ in range(waiting_queue.MOST_TURNS))
    assert refused(made, later)
    assert len(made._turns) == waiting_queue.MOST_TURNS
    clock.now += waiting_queue.RETRY_AFTER + waiting_queue.KEPT
    places[0].leave()
    assert not refused(made, later)


def test_bytes_are_bounded_and_kept_for_those_before(clock):
    made = WaitingQueue(100, 100, 1, lambda: 0)
    large, small = Connection(), Connection()
    places = [made.enter("host", Connection(), 45) for _ in range(2)]
    assert refused(made, large, size=50)
    assert refused(made, small, size=10)  # there were as many, but they are for the large one
    places[0].hold(40)  # what is kept of a request is less than all of it
    assert refused(made, small, size=10)
    places[0].leave()
    assert not refused(made, large, size=50)
    places[1].leave()
    assert not refused(made, small, size=10)
    assert (made.held, made.entering) == (60, 2)


def test_a_request_of_any_size_may_come_in_alone():
    made = WaitingQueue(2, 100, 1, lambda: 0)
    place = made.enter("host", None, 500)
    assert refused(made, None, size=1)
    place.leave()
    place.leave()
    assert (made.held, made.entering) == (0, 0)


def test_who_waits_at_the_decoder_has_a_place():
    waiting = 2
    made = WaitingQueue(2, 100, 1, lambda: waiting)
    assert refused(made, None)
    waiting = 1
    made = WaitingQueue(2, 100, 1, lambda: waiting)
    place = made.enter("host", None, SIZE)
    assert refused(made, None)
    place.give_way()
    place.give_way()
    assert made.entering == 0
