"""The page at `/` in a browser: how tests use it, and answers of a server that never were."""

from __future__ import annotations

import json
from typing import Any

from sira_cli.serve.page.examples import SEEDS
from tests.serve.helpers import PICTURES
from tests.support.browser import Browser, wait

PICTURE = PICTURES[0]
FINISHED = """
    return [...document.querySelectorAll('.status')].every(one => /^\\d+ tokens|^Stopped/.test(one.textContent))
    && document.querySelector('#stop').ariaDisabled === 'true'"""


def opened(browser: Browser, address: str) -> None:
    browser.open(address)
    wait(browser, "return document.querySelectorAll('#examples img').length", len(SEEDS))


def run(browser: Browser) -> list[str]:
    """Press Run; the texts, without the brackets around things."""
    browser.click("#run")
    wait(browser, FINISHED)
    return texts(browser)


def texts(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('.text')].map(one => one.textContent)")


def answering(
    browser: Browser, status: int, body: str | list[dict[str, Any]], other: list[dict[str, Any]] | None = None
) -> None:
    """Let the page think that its server answers so: an error's message, or the events of a stream.

    `other` is the answer to the second column, if it is not the same.
    """
    text = json.dumps({"error": {"message": body}}) if isinstance(body, str) else sent(body)
    script = """
        const [status, first, second] = arguments;
        window.fetch = async (path, {body}) =>
            new Response(JSON.parse(body ?? '{}').sira?.method === 'greedy' ? second : first, {status})"""
    browser.run(script, status, text, text if other is None else sent(other))


def sent(events: list[dict[str, Any]]) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def stream(text: str, **sira: object) -> list[dict[str, Any]]:
    """The events of a streamed answer, as the server sends them, but for keys that nobody reads."""
    end = {"finish_reason": "stop", "verify": {"min_support": 0.5}, "decoding_seconds": 1.0, **sira}
    return [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": text}}]},
        {"choices": [{"delta": {}}], "sira": end},
        {"choices": [], "usage": {"completion_tokens": 3}},
    ]
