"""LLaVA-1.5 as its authors evaluate it: pictures padded to a square, and their system prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.errors import HugePictureError
from sira_cli.models import presets

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions."
)


@pytest.fixture(scope="module")
def original(layout):
    """LLaVA-1.5 as its authors evaluate it."""
    preset = presets.find("llava-1.5-7b-original")
    return load(preset.model_copy(update={"model": str(layout("llava-1.5-7b"))}))


@pytest.mark.parametrize("portrait", [False, True])
def test_pictures_padded_to_a_square_are_those_of_llavas_authors(original, portrait):
    """Its `expand2square`, restated: the middle of a square in 255 times CLIP's mean, rounded down."""
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    square = np.tile(np.uint8([122, 116, 104]), (640, 640, 1))
    square[80:560] = pixels
    if portrait:
        pixels, square = pixels.transpose(1, 0, 2), square.transpose(1, 0, 2)
    found = original.prepare([Image.fromarray(pixels)], ["What is this?"])["pixel_values"]
    expected = original.processor.image_processor(Image.fromarray(square), return_tensors="pt")["pixel_values"]
    assert torch.equal(found, expected)


def test_the_hub_s_processor_does_not_see_the_sides(original):
    """An object in the outer eighth of 640 x 480, of which the crop keeps the middle 480."""
    without = Image.new("RGB", (640, 480), "grey")
    picture = without.copy()
    picture.paste("red", (0, 0, 70, 480))
    hub = original.under(original.decoder, original.preset.with_values(pad_to_square=None))
    for model, seen in ((hub, False), (original, True)):
        one, two = (model.prepare([each], ["What is this?"])["pixel_values"] for each in (without, picture))
        assert torch.equal(one, two) is not seen


def test_the_prompt_of_llavas_authors(original):
    ids = original.prepare([Image.new("RGB", (64, 48))], ["What is this?"])["input_ids"][0]
    text = original.processor.tokenizer.decode(ids, skip_special_tokens=False).removeprefix("<s>").strip()
    text = text.replace("<image>" * 576 + " ", "<image>")  # SentencePiece begins each piece of text with a space
    assert text == f"{SYSTEM} USER: <image>\nWhat is this? ASSISTANT:"


def test_a_strip_that_would_make_a_huge_square_is_refused(original, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    with pytest.raises(HugePictureError, match=r"400 x 2 would have 160,000 pixels; expected at most 100,000"):
        original.caption(Image.new("RGB", (400, 2)))
