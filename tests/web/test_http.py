"""What both servers ask of requests, and the headers of their pages, without a server."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable

import pytest

from sira_cli.web.http import bearer_key, is_key, page_policy, read_body, says_json


def body(parts: Iterable[bytes], most: int) -> tuple[bytes | None, int]:
    """What is read of a body, and how many of its parts were asked for."""
    asked = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal asked
        for part in parts:
            asked += 1
            yield part

    return asyncio.run(read_body(stream(), most)), asked


def test_a_body_is_all_of_its_parts_in_order():
    parts = [bytes([number % 256]) * (number % 3) for number in range(10_000)]
    assert body(parts, 10_000) == (b"".join(parts), 10_000)
    assert body([], 0) == (b"", 0)


@pytest.mark.parametrize("parts", [[b"abcd"], [b"ab", b"cd"], [b"", b"abc", b"", b"d"]])
def test_a_body_may_have_as_many_bytes_as_it_may_and_no_more(parts):
    assert body(parts, 4) == (b"abcd", len(parts))
    assert body(parts, 3)[0] is None


def test_of_a_body_that_never_ends_no_more_is_read_than_it_may_have():
    assert body(itertools.repeat(b"ab"), 7) == (None, 4)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application/json", True),
        (" application/json ; charset=utf-8", True),
        ("Application/JSON", True),
        ("application/jsonl", False),
        ("text/plain; application/json", False),
        ("", False),
        (None, False),
    ],
)
def test_a_body_is_json_where_its_type_says_so(kind, expected):
    assert says_json({} if kind is None else {"content-type": kind}) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [("Bearer a Bearer b", "a Bearer b"), ("bearer a", "a"), ("BEARER  a", "a"), ("Basic a", ""), ("a", ""), ("", "")],
)
def test_a_key_is_what_follows_bearer_in_any_case(given, expected):
    assert bearer_key({"authorization": given}) == expected
    assert bearer_key({"content-type": given}) == ""


@pytest.mark.parametrize(
    ("given", "expected"), [("clé", True), ("cle", False), ("clé ", False), ("cl", False), ("", False)]
)
def test_keys_are_compared_whole_and_in_constant_time(monkeypatch, given, expected):
    compared = []
    plain = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append({one, other}) or plain(one, other))
    assert is_key(given, "clé") is expected
    assert compared == [{given.encode(), "clé".encode()}]


def test_a_policy_allows_the_server_s_own_files_and_what_it_is_told_to():
    before, after = "default-src 'none'; script-src 'self'; style-src 'self'", "connect-src 'self'; base-uri 'none'"
    after += "; form-action 'none'; frame-ancestors 'none'"
    assert page_policy({}) == f"{before}; img-src 'self'; {after}"
    assert page_policy({"img-src": "data:", "sandbox": "x"}) == f"{before}; img-src data:; {after}; sandbox x"


def test_no_web_framework_is_needed():
    """The report's page, which needs none, imports from this room, too."""
    script = "import sys, sira_cli.web.http; print(*{'fastapi', 'starlette', 'pydantic', 'torch'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
