"""What clients send: messages about a picture, by the official client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import openai
from PIL import Image

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "examples").glob("*.png"))[:4]
PROMPT = "Describe this image."
LONG = 10**6  # tokens: no test waits for them


def data_uri(picture: Path | Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(data_of(picture)).decode()


def data_of(picture: Path | Image.Image) -> bytes:
    if isinstance(picture, Path):
        return picture.read_bytes()
    data = BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def said(
    prompt: str = PROMPT, picture: Path | Image.Image | str = PICTURES[0], system: str | None = None
) -> list[dict]:
    url = picture if isinstance(picture, str) else data_uri(picture)
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": content}]


def ask(client: openai.OpenAI, messages: list[dict] | None = None, sira: dict | None = None, **more: Any) -> Any:
    body = {} if sira is None else {"sira": sira}
    return client.chat.completions.create(model="demo", messages=messages or said(), extra_body=body, **more)


def streamed(chunks: Any) -> list[str]:
    """The pieces of text that came, one after the other."""
    found = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    return [piece for piece in found if piece]


@contextmanager
def streaming(address: str, picture=PICTURES[0]) -> Iterator[Iterator[str]]:
    """An endless text under way, whose first piece has come; yields the pieces that follow, the first included."""
    body = {"messages": said(picture=picture), "max_tokens": LONG, "stream": True}
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line)
        pieces = (line["choices"][0]["delta"].get("content") or "" for line in lines)
        first = next(piece for piece in pieces if piece)

        def all_pieces() -> Iterator[str]:
            yield first
            yield from pieces

        yield all_pieces()


def waiting(address: str) -> int:
    text = httpx.get(f"{address}/metrics").text
    return int(float(text.split("\nsira_waiting_requests ")[1].split()[0]))
