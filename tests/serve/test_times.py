"""The time that an answer tells: that of its decoding, by a clock that these tests move."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.lvlm import Lvlm
from sira_cli.serve import prepared
from tests.serve.helpers import ask


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that stands, but for those who say how long something took."""
    now = SimpleNamespace(seconds=0.0)
    standing = SimpleNamespace(perf_counter=lambda: now.seconds)
    monkeypatch.setattr(prepared, "time", standing)
    return now


def slow(monkeypatch, clock: SimpleNamespace, owner: type, name: str, seconds: float) -> None:
    """Let a method take so long."""
    plain = getattr(owner, name)

    def slowed(*args: object, **kwargs: object) -> object:
        clock.seconds += seconds
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, slowed)


@pytest.mark.parametrize(("sira", "seconds"), [({"words": True}, 7.0), ({}, 7.0), ({"method": "vcd"}, 7.0)])
def test_the_time_of_a_text_is_that_of_its_decoding(client, monkeypatch, clock, sira, seconds):
    """Neither that of its picture, nor of the second look, nor of waiting for others."""
    slow(monkeypatch, clock, Lvlm, "answer", 7.0)
    slow(monkeypatch, clock, Lvlm, "prepare", 100.0)
    slow(monkeypatch, clock, SecondLook, "check", 1000.0)

    def timed(alpha: float) -> float:
        answer = ask(client, sira={"verify": "flag", "alpha": alpha, **sira}, max_tokens=5)
        return answer.sira["decoding_seconds"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(timed, (0.5, 0.6))) == [seconds, seconds]
