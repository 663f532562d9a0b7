"""Families other than LLaVA-1.5 and Qwen, from files as the hub has them to a caption.

What `sira` makes of a picture and a text is compared with what transformers makes of them: the prompt
and pixels of `AutoProcessor`, and the text of a plain `model.generate`. Some processors cannot be loaded
without torchvision, by way of their video part or (Pixtral) at all; their prompts are put together here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from sira_cli import load
from sira_cli.errors import PictureError
from sira_cli.models import presets
from sira_cli.models.processor import chat_inputs
from sira_cli.pictures.sources import as_picture
from tests.support.checkpoints import WRITERS
from tests.support.helpers import SlowContrast, mostly_slow
from tests.support.tiny import Tiny

PROMPT = "Is there a cat on the table?"
QUICK = ("LLaVA-NeXT", "Pixtral (LLaVA)", "InternVL", "Idefics3", "Gemma 3")
# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(params=mostly_slow(WRITERS, *QUICK))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """A landscape and a portrait."""
    photographs = {"cat.jpg": data.chelsea(), "astronaut.jpg": data.astronaut()[:, 80:400]}
    for name, pixels in photographs.items():
        Image.fromarray(pixels).save(tmp_path / name)
    return [tmp_path / name for name in photographs]


def test_prompt_pixels_and_greedy_text_are_those_of_transformers(family, checkpoint_of, pictures):
    checkpoint = checkpoint_of(family)
    model = load(checkpoint, max_new_tokens=6)
    greedy = model.under("greedy")
    dtype = model.model.dtype  # `auto` depends on the machine
    plain = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=dtype)
    tokenizer, config = AutoTokenizer.from_pretrained(checkpoint), _json(checkpoint, "config.json")
    image_token = config.get("image_token_id") or config["image_token_index"]
    for picture in pictures:
        ours = chat_inputs(model.processor, model.model.config.model_type, [Image.open(picture)], [PROMPT])
        theirs = _their_inputs(family, checkpoint, picture)
        assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
        for name in {"pixel_values"} | (ours.keys() & theirs.keys()):
            assert torch.equal(ours[name], theirs[name]), name
        ids = ours["input_ids"][0].tolist()
        assert PROMPT in model.processor.tokenizer.decode(ids)
        output = plain.generate(**theirs.to(dtype=dtype), do_sample=False, max_new_tokens=6)
        text = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True).strip()
        assert greedy.caption(picture, PROMPT).text == text
        result = model.caption(picture, PROMPT)
        assert (result.status, result.output_tokens, result.prompt_tokens) == ("ok", 6, len(ids))
        assert result.image_tokens == ids.count(image_token) > 0
        assert result.text


@pytest.mark.parametrize("as_list", [False, True])
def test_a_system_prompt_of_plain_text(checkpoint_of, pictures, as_list):
    """JoyCaption needs one, and its chat template takes no list of parts; some others write the list out instead."""
    model = load(checkpoint_of("JoyCaption (LLaVA)"), system="You are a helpful image captioner.")
    if as_list:
        template = model.processor.chat_template
        model.processor.chat_template = template.replace("message['content'].", "(message['content'] | trim).")
    inputs = model.prepare([Image.open(picture) for picture in pictures], [PROMPT, PROMPT])
    said = model.processor.tokenizer.decode(inputs["input_ids"][1])
    assert re.sub(r"(<\|reserved_special_token_69\|>)+", "IMAGE", said) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 July 2024\n\n"
        "You are a helpful image captioner.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        f"<|reserved_special_token_70|>IMAGE<|reserved_special_token_71|>{PROMPT}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert model.find_image(inputs["input_ids"]).sum(dim=1).tolist() == [16, 16]


def _their_inputs(family: str, checkpoint: Path, picture: Path) -> Any:
    image = Image.open(picture)
    if family in BY_HAND:
        return _inputs_by_hand(BY_HAND[family], checkpoint, image)
    processor = AutoProcessor.from_pretrained(checkpoint)
    if family.startswith("PaliGemma"):
        return processor(images=image, text=f"<image>{PROMPT}", return_tensors="pt")
    if family.startswith("JoyCaption"):  # as its model card says
        text = processor.apply_chat_template([{"role": "user", "content": PROMPT}], add_generation_prompt=True)
        return processor(text=[text], images=[image], return_tensors="pt")
    content = [{"type": "image", "image": image}, {"type": "text", "text": PROMPT}]
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return processor.apply_chat_template([{"role": "user", "content": content}], **how)


def _inputs_by_hand(expand: Callable[..., tuple[Any, str, str]], checkpoint: Path, image: Image.Image) -> Any:
    """The image processor's output, and the template's text with its placeholder replaced by `expand`."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    raw = checkpoint / "chat_template.jinja"
    template = raw.read_text() if raw.is_file() else _json(checkpoint, "chat_template.json")["chat_template"]
    content = [{"type": "image"}, {"type": "text", "text": PROMPT}]
    how = {"chat_template": template, "add_generation_prompt": True, "tokenize": False}
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], **how)
    settings = _json(checkpoint, "processor_config.json")
    images, placeholder, expanded = expand(AutoImageProcessor.from_pretrained(checkpoint), image, settings)
    assert text.count(placeholder) == 1
    images.update(tokenizer(text.replace(placeholder, expanded), add_special_tokens=False, return_tensors="pt"))
    return images


def _expand_internvl(image_processor: Any, image: Image.Image, settings: dict[str, Any]) -> tuple[Any, str, str]:
    images = image_processor(image, crop_to_patches=True, return_tensors="pt")
    tokens = settings["image_seq_length"] * int(images.pop("num_patches")[0])
    return images, "<IMG_CONTEXT>", "<img>" + "<IMG_CONTEXT>" * tokens + "</img>"


def _expand_smolvlm(image_processor: Any, image: Image.Image, settings: dict[str, Any]) -> tuple[Any, str, str]:
    images = image_processor(image, return_row_col_info=True, return_tensors="pt")
    tile = "<image>" * settings["image_seq_len"]
    rows, columns = int(images.pop("rows")[0][0]), int(images.pop("cols")[0][0])
    lines = [
        "".join(f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>{tile}" for column in range(columns))
        for row in range(rows)
    ]
    whole = f"<fake_token_around_image><global-img>{tile}<fake_token_around_image>"
    return images, "<image>", "".join(f"{line}\n" for line in lines) + ("\n" if lines else "") + whole


def _expand_pixtral(image_processor: Any, image: Image.Image, settings: dict[str, Any]) -> tuple[Any, str, str]:
    patch = settings["patch_size"] * settings.get("spatial_merge_size", 1)
    images = image_processor(image, patch_size={"height": patch, "width": patch}, return_tensors="pt")
    height, width = (side // patch for side in images["image_sizes"][0].tolist())
    return images, "[IMG]", "[IMG_BREAK]".join(["[IMG]" * width] * height) + "[IMG_END]"


def _json(checkpoint: Path, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((checkpoint / file).read_text())
    return content


BY_HAND: dict[str, Callable[..., tuple[Any, str, str]]] = {
    "InternVL": _expand_internvl,
    "SmolVLM": _expand_smolvlm,
    "Pixtral (LLaVA)": _expand_pixtral,
    "Mistral 3": _expand_pixtral,
}


def test_gemma_4(checkpoint_of, photos):
    """Its prompt and its texts are those of the reference."""
    gemma = load(checkpoint_of("Gemma 4 E"), max_new_tokens=6, dtype="float32")
    inputs = gemma.prepare([as_picture(photos["tall"]).open().image], [PROMPT])
    text = gemma.processor.tokenizer.decode(inputs["input_ids"][0])
    assert re.sub(r"(<\|image\|>)+", "IMAGE", text) == (
        f"<bos><|turn>user\n<|image>IMAGE<image|>{PROMPT}<turn|>\n<|turn>model\n"
    )
    inputs = gemma.prepare([as_picture(photos["chelsea"]).open().image], [PROMPT])
    case = Tiny(gemma.model, dict(inputs), {"mm_token_type_ids": 0})
    slow = SlowContrast(case, gemma.k, gemma.alpha, image_token=gemma.model.config.image_token_id)
    with torch.no_grad():
        expected = gemma.model.generate(**inputs, max_new_tokens=6, do_sample=False, logits_processor=[slow])
    answer = gemma.processor.tokenizer.decode(expected[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert gemma.ask(photos["chelsea"], PROMPT).text == answer.strip()


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


def test_the_prompt_of_llavas_authors_and_a_strip_that_would_make_a_huge_square(original, monkeypatch):
    ids = original.prepare([Image.new("RGB", (64, 48))], ["What is this?"])["input_ids"][0]
    text = original.processor.tokenizer.decode(ids, skip_special_tokens=False).removeprefix("<s>").strip()
    text = text.replace("<image>" * 576 + " ", "<image>")  # SentencePiece begins each piece of text with a space
    assert text == f"{SYSTEM} USER: <image>\nWhat is this? ASSISTANT:"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    with pytest.raises(PictureError, match=r"400 x 2 pixels would become 400 x 400, and 100,000 pixels are the limit"):
        original.caption(Image.new("RGB", (400, 2)))
