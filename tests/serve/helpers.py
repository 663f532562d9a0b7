"""What clients send: messages about a picture, by the official client or by hand."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import openai
from PIL import Image

from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.app import Server
from tests.support.asgi import served
from tests.support.browser import Browser, wait

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "examples").glob("*.png"))[:4]
PROMPT = "Describe this image."
LONG = 10**6  # tokens: no test waits for them


def data_of(picture: Path | Image.Image) -> bytes:
    if isinstance(picture, Path):
        return picture.read_bytes()
    data = BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def said(
    prompt: str = PROMPT, picture: Path | Image.Image | str = PICTURES[0], system: str | None = None
) -> list[dict]:
    url = picture if isinstance(picture, str) else f"data:image/png;base64,{b64encode(data_of(picture)).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": content}]


@contextmanager
def running(lvlm: Lvlm, **settings: object) -> Iterator[str]:
    """Serve in a thread; yields the address."""
    with served(Server(lvlm, **settings).app) as address:
        yield address


def opened(browser: Browser, address: str) -> None:
    """Open the server's page."""
    browser.open(address)
    wait(browser, "return !document.querySelector('#ask').hidden")


def described(browser: Browser) -> None:
    """Wait until all texts about the picture are there."""
    wait(browser, "return document.querySelector('[role=status]').textContent !== ''")
    wait(browser, "return document.querySelector('#stop').ariaDisabled === 'true'")


def client_of(address: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=60)


def ask(client: openai.OpenAI, messages: list[dict] | None = None, sira: dict | None = None, **more: Any) -> Any:
    body = {} if sira is None else {"sira": sira}
    return client.chat.completions.create(model="demo", messages=messages or said(), extra_body=body, **more)


def text(answer: Any) -> str:
    """The text of an answer by the official client, whole or streamed."""
    return answer.choices[0].message.content if hasattr(answer, "choices") else "".join(streamed(answer))


def streamed(chunks: Any) -> list[str]:
    """The pieces of text that came, one after the other."""
    return [piece for chunk in chunks if chunk.choices and (piece := chunk.choices[0].delta.content)]


def rows(answer: Any) -> list[Any]:
    """The log-probabilities of an answer, whole or streamed."""
    choices = answer.choices if hasattr(answer, "choices") else [each.choices[0] for each in answer if each.choices]
    return [row for choice in choices if choice.logprobs for row in choice.logprobs.content]


def post(address: str, timeout: float = 60, **body: Any) -> httpx.Response:
    """A chat by hand."""
    return httpx.post(f"{address}/v1/chat/completions", json={"messages": said()} | body, timeout=timeout)


def posted(address: str, **body: Any) -> str:
    """The text of a chat by hand."""
    return post(address, **body).json()["choices"][0]["message"]["content"]


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@contextmanager
def streaming(address: str, picture=PICTURES[0]) -> Iterator[Iterator[str]]:
    """An endless text under way, whose first piece has come; yields those that follow."""
    body = {"messages": said(picture=picture), "max_tokens": LONG, "stream": True}
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line)
        pieces = (line["choices"][0]["delta"].get("content") or "" for line in lines)
        next(piece for piece in pieces if piece)
        yield pieces


def wait_for(address: str, count: int, *requests: Any) -> None:
    """Wait until so many requests wait for the decoder, and none of `requests` is done."""
    while counted(address, "sira_waiting_requests") < count:
        assert not any(each.done() for each in requests)
        time.sleep(0.01)


@contextmanager
def held(server: Server, address: str, messages: list[dict] | None = None) -> Iterator[Callable[[int], None]]:
    """Hold the decoder at a first text; yields what waits for so many jobs with open pictures, and lets it go on."""
    gate = threading.Event()
    hook = server._lvlm.model.register_forward_pre_hook(lambda *_: gate.wait(120) and None)

    def release(count: int) -> None:
        while len(server._queue._waiting) < count:
            time.sleep(0.01)
        gate.set()

    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(post, address, max_tokens=1, messages=messages or said())
            while not counted(address, "sira_batch_texts_count"):
                assert not first.done()
                time.sleep(0.01)
            yield release
            gate.set()
    finally:
        gate.set()
        hook.remove()


def counted(address: str, name: str) -> float:
    """The value of a counter; 0 if it has not counted anything."""
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))
