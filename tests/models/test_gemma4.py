"""Gemma 4 from files to a caption. Its official processor needs torchvision for videos; sira's does not."""

from __future__ import annotations

import re

import pytest
import torch
from PIL import Image
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

from sira_cli import load
from sira_cli.pictures.sources import open_picture
from tests.support.checkpoints_other import write_gemma4
from tests.support.helpers import SlowContrast
from tests.support.tiny import Tiny

PROMPT = "Is there a cat on the table?"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return load(write_gemma4(tmp_path_factory.mktemp("gemma4") / "checkpoint"), max_new_tokens=6, dtype="float32")


def test_the_prompt_has_the_picture_and_no_thought(gemma, photos):
    inputs = gemma.prepare([open_picture(photos["tall"]).image], [PROMPT])
    text = gemma.processor.tokenizer.decode(inputs["input_ids"][0])
    assert re.sub(r"(<\|image\|>)+", "IMAGE", text) == (
        f"<bos><|turn>user\n<|image>IMAGE<image|>{PROMPT}<turn|>\n<|turn>model\n"
    )


def test_pictures_have_as_many_tokens_as_their_patches_pool_to(gemma, photos):
    for photo in photos.values():
        with Image.open(photo) as image:
            height, width = get_aspect_ratio_preserving_size(
                image.height, image.width, patch_size=16, max_patches=70 * 9, pooling_kernel_size=3
            )
        assert gemma.ask(photo, PROMPT).image_tokens == height // 48 * (width // 48)


def test_texts_are_those_of_the_reference(gemma, photos):
    inputs = gemma.prepare([open_picture(photos["chelsea"]).image], [PROMPT])
    case = Tiny(gemma.model, dict(inputs), {"mm_token_type_ids": 0})
    slow = SlowContrast(case, gemma.k, gemma.alpha, image_token=gemma.model.config.image_token_id)
    with torch.no_grad():
        expected = gemma.model.generate(**inputs, max_new_tokens=6, do_sample=False, logits_processor=[slow])
    answer = gemma.processor.tokenizer.decode(expected[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert gemma.ask(photos["chelsea"], PROMPT).text == answer.strip()


def test_a_batch_of_different_sizes_gives_the_texts_of_single_runs(gemma, photos):
    pictures = [photos["tall"], photos["chelsea"], photos["rocket"]]
    single = [gemma.caption(picture).text for picture in pictures]
    assert [result.text for result in gemma.caption_many(pictures, batch_size=3)] == single
