"""Thin pictures: no processor of a supported family makes a giant of them, and the refusal has the sizes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from sira_cli.models import processor as loaded
from sira_cli.models.processor import chat_inputs, check_picture_size, load_processor
from tests.support.checkpoints_all import ALL

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
LOWERED = 2**18  # pixels; no processor here makes as many of any picture because its settings say so


@pytest.fixture
def resized(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes that Pillow is asked for."""
    sizes: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def note(image, size, *args, **more):
        sizes.append(tuple(size))
        if size[0] * size[1] > LOWERED:
            raise AssertionError(f"a picture of {image.size} became a giant of {size}")
        return resize(image, size, *args, **more)

    monkeypatch.setattr(Image.Image, "resize", note)
    return sizes


@pytest.mark.parametrize("family", ALL)
def test_no_processor_makes_a_giant(family, checkpoint_of, monkeypatch, resized):
    monkeypatch.setattr(loaded, "MOST", LOWERED)
    processor = load_processor(checkpoint_of(family))
    for size in [(1, 60_000), (60_000, 1), (7, 1300), (1300, 7), (199, 1)]:
        with suppress(ValueError):
            chat_inputs(processor, "paligemma", [Image.new("RGB", size)], ["What is this?"])
    chat_inputs(processor, "paligemma", [Image.new("RGB", (640, 480))], ["What is this?"])
    assert resized


@pytest.mark.parametrize(("width", "height"), [(3, 200), (200, 3)])
def test_the_refusal_names_the_size_that_transformers_would_make(width, height, monkeypatch, resized):
    processor = CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    processor(Image.new("RGB", (width, height)))
    (made,) = resized
    monkeypatch.setattr(loaded, "MOST", made[0] * made[1])
    check_picture_size(processor, width, height)
    monkeypatch.setattr(loaded, "MOST", made[0] * made[1] - 1)
    with pytest.raises(ValueError, match=f"its {width} x {height} pixels would become {made[0]:,} x {made[1]:,}, and"):
        check_picture_size(processor, width, height)


def test_a_square_around_a_thin_picture(monkeypatch):
    """LLaVA's own processor may put pictures into squares, before it resizes them."""
    processor = LlavaImageProcessorPil(do_pad=True)
    check_picture_size(processor, 9000, 6000)
    with pytest.raises(ValueError, match=r"its 1 x 120,000 pixels would become 120,000 x 120,000, and 134,217,728 "):
        check_picture_size(processor, 1, 120_000)
    check_picture_size(LlavaImageProcessorPil(do_pad=False), 9000, 6000)
    with pytest.raises(ValueError, match="224 x 26,880,000"):
        check_picture_size(LlavaImageProcessorPil(do_pad=False), 1, 120_000)


def test_ordinary_panoramas_are_taken():
    clip = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    check_picture_size(clip, 20_000, 200)
    with pytest.raises(ValueError, match="336 x 1,680,000"):
        check_picture_size(clip, 1, 5000)
