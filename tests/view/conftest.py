"""Captioned pictures in a folder, and a server of theirs on a real port."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.view import Collection, Edits, OtherCaptions
from sira_cli.view.app import Viewer
from tests.support.asgi import served
from tests.support.browser import Browser

TOKEN = "a-token-of-the-test"
HOSTILE = "</script><img src=x onerror=alert(1)>"
COLOURS = ((200, 60, 40), (40, 120, 200), (60, 160, 60))


def record(number: int, **more: object) -> dict:
    """A record as `sira caption --verify flag` writes it, with the keys that count here."""
    text = more.pop("text", f"A cat and a dog, number {number}.")
    found = {
        "schema": "sira.caption/1",
        "key": f"{number:064x}",
        "file_name": f"pictures/{number}.png",
        "status": "ok",
        "text": text,
        "error": "",
        "method": "sira",
        "image_sha256": f"{number:064d}",
    }
    return found | more


def looked_at(number: int, cat: float, dog: float) -> dict:
    """A record whose things have some support."""
    objects = [
        {"thing": "cat", "spans": [[2, 5]], "support": cat, "neither": 0.0},
        {"thing": "dog", "spans": [[12, 15]], "support": dog, "neither": 0.0},
    ]
    return record(number, objects=objects, verify={"mode": "flag", "min_support": 0.5})


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three small pictures in it, `pictures/0.png` to `2.png`."""
    (tmp_path / "pictures").mkdir()
    for number, colour in enumerate(COLOURS):
        Image.new("RGB", (64, 48), colour).save(tmp_path / f"pictures/{number}.png")
    return tmp_path


@pytest.fixture
def records(folder: Path) -> Path:
    return write(folder / "captions.jsonl", [record(number) for number in range(3)])


def sized(browser: Browser, width: int, height: int = 900) -> None:
    """Give the window a size."""
    size = {"width": width, "height": height}
    browser.devtools("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)


@contextmanager
def running(source: Path, other: Path | None = None, **settings: object) -> Iterator[str]:
    """Serve in a thread; yields the address that `sira view` would print."""
    captions = Collection.read(source)
    edits = Edits(captions.edits_file, sidecars=settings.pop("sidecars", None))
    compared = None if other is None else OtherCaptions(captions, Collection.read(other))
    app = Viewer(captions, edits, token=TOKEN, compared=compared, **settings).app
    with served(app, timeout_graceful_shutdown=1) as address:
        yield address


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves collections until the end of the test."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(running(*args, **settings))


@pytest.fixture
def browser(browser, serve) -> Iterator[Browser]:
    """With a window of a known size; the page is closed before its server ends."""
    sized(browser, 1280)
    yield browser
    browser.run("location.replace('about:blank')")
