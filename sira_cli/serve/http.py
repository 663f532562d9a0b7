"""Checks of requests, and headers that isolate the page."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

# Headers of every file of a page: its type is final, other sites cannot embed it, and they get no referrer.
SAFE_HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def page_policy(changes: Mapping[str, str]) -> str:
    """Return a page's content security policy: scripts, styles, pictures and answers of its own server alone."""
    return "; ".join(f"{directive} {sources}" for directive, sources in {**_POLICY, **changes}.items())


def bearer_key(headers: Mapping[str, str]) -> str:
    """Return the key in a request's `Authorization: Bearer KEY`, the scheme in any case; "" without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return ""
    try:
        return key.strip().encode("latin-1").decode()  # servers read headers as Latin-1, and clients send UTF-8
    except UnicodeError:
        return key.strip()


def is_key(given: str, key: str) -> bool:
    """Return whether a key is right, in a time that does not depend on where the two differ."""
    return hmac.compare_digest(given.encode(), key.encode())


def says_json(headers: Mapping[str, str]) -> bool:
    """Return whether a request declares its body JSON, which other sites cannot send unless a server allows it."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
