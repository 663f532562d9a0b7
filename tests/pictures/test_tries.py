"""Several tries of a request, and its limit in time."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from sira_cli.pictures.tries import LONGEST_PAUSE, PAUSE, in_time, retry_after, tried


@pytest.mark.parametrize(
    ("asked", "pauses"),
    [
        ([0, 0, 0, 0], [PAUSE, 2 * PAUSE, 4 * PAUSE]),
        ([0.1, 3, 1e9, 0], [PAUSE, 3, LONGEST_PAUSE]),
        ([0, None], [PAUSE]),
        ([None], []),
    ],
)
def test_each_pause_is_twice_the_last_or_what_the_server_asks_for(asked, pauses):
    waited, sent = [], []

    def send():
        sent.append(len(sent))
        raise OSError(sent[-1])

    with pytest.raises(OSError, match=str(len(asked) - 1)):
        tried(send, 4, lambda error: asked[error.args[0]], waited.append)
    assert waited == pauses


def test_a_later_try_may_succeed():
    left = [OSError(), OSError()]

    def send():
        if left:
            raise left.pop()
        return "here"

    assert tried(send, 3, lambda error: 0.0, lambda seconds: None) == "here"


def test_what_hangs_is_not_waited_for():
    free = threading.Event()
    with pytest.raises(TimeoutError):
        in_time(lambda: free.wait(60), 0.01, lambda: None)

    def look():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        in_time(lambda: free.wait(60), 60, look)
    free.set()
    assert in_time(lambda: 3, 60, lambda: None) == 3


def test_a_header_is_seconds_or_a_date():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
    assert [retry_after(text) for text in ("2.5", "-1", "", "soon", past)] == [2.5, 0, 0, 0, 0]
    assert 0 < retry_after(soon) <= 100
