"""Records say when a picture, or its text, is suspicious; and hold no such key when nothing is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sira_cli import load
from sira_cli.pictures.opening import decode_picture

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
FAST = ("-p", "demo", "--max-new-tokens", 4)
FRAMES = "has several frames or pages: the first one was taken"
TRANSPARENT = "is transparent in parts: they were taken as white"


def rgba(alpha: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    return Image.fromarray(np.dstack([np.full((*size, 3), 90, np.uint8), np.full(size, alpha, np.uint8)]))


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (64, 64), (70 * number, 0, 0)) for number in range(count)]


def save(image: Image.Image, path: Path, **more: object) -> Path:
    image.save(path, **more)
    return path


PICTURES = {
    "plain.png": (lambda path: save(Image.new("RGB", (64, 64)), path), []),
    "opaque.png": (lambda path: save(rgba(255), path), []),
    "clear.png": (lambda path: save(rgba(254), path), [TRANSPARENT]),
    "still.gif": (lambda path: save(frames(1)[0], path), []),
    "moving.gif": (lambda path: save(frames(1)[0], path, save_all=True, append_images=frames(3)[1:]), [FRAMES]),
    "moving.webp": (lambda path: save(frames(1)[0], path, save_all=True, append_images=frames(3)[1:]), [FRAMES]),
    "pages.tiff": (lambda path: save(frames(1)[0], path, save_all=True, append_images=frames(2)[1:]), [FRAMES]),
    "phone.mpo": (lambda path: save(frames(1)[0], path, save_all=True, append_images=frames(2)[1:]), []),
    "narrow.png": (lambda path: save(Image.new("RGB", (200, 31)), path), ["is tiny: 200 x 31 pixels"]),
    "both.png": (lambda path: save(rgba(0, (5, 7)), path), [TRANSPARENT, "is tiny: 7 x 5 pixels"]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_what_is_suspicious_about_a_picture(tmp_path, name):
    make, expected = PICTURES[name]
    image, found = decode_picture(name, make(tmp_path / name).read_bytes())
    assert (image.mode, list(found)) == ("RGB", expected)


def test_records_and_the_terminal_say_it(sira, tmp_path, monkeypatch):
    folder = tmp_path / "pictures"
    folder.mkdir()
    shutil.copy(EXAMPLES[0], folder / "a.png")
    save(rgba(0), folder / "b.png")
    monkeypatch.chdir(tmp_path)
    code, _, err = sira("caption", "pictures", *FAST, "-o", "captions.jsonl", "-b", 2)
    records = [json.loads(line) for line in Path("captions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert code == 0
    assert "2 of 2 pictures done" in err
    assert f"sira: pictures/b.png: {TRANSPARENT}\nsira: 2 of 2 pictures" in err
    assert "1 with warnings in their records" in err
    assert [record.get("warnings") for record in records] == [None, [TRANSPARENT]]
    assert records[0].keys() == records[1].keys() - {"warnings"}
    result = load("demo", max_new_tokens=4).caption(Image.open("pictures/b.png"))
    assert (result.text, result.warnings) == (records[1]["text"], [TRANSPARENT])
    err = sira("caption", "pictures/b.png", *FAST)[2]
    assert f"sira: pictures/b.png: {TRANSPARENT}" in err
