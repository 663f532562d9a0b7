"""Work with a limit in time."""

from __future__ import annotations

import threading

import pytest

from sira_cli.pictures.web import in_time


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
