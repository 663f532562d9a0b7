"""What clients send: messages about a picture, by the official client."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
from PIL import Image

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "examples").glob("*.png"))[:4]
PROMPT = "Describe this image."


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
