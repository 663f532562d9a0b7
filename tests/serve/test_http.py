"""What the server asks of requests, and the headers of its page."""

from __future__ import annotations

import hmac

import pytest

from sira_cli.serve.http import bearer_key, is_key, page_policy, says_json


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
