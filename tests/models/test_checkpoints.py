"""Models from files as the hub has them to a caption: prompts, pixels, sizes, end tokens and texts.

What `sira` makes of a picture and a text is compared with what transformers makes of them: the prompt and pixels of
`AutoProcessor`, and the text of a plain `model.generate`. `AutoProcessor` loads some processors with torchvision only;
for those it is the same class, as `sira` loads it without.

Of the shipped presets, image tokens of a photograph of 640 x 480 follow from the papers: LLaVA 24 x 24 patches,
LLaVA-NeXT five tiles less the padding, with newlines, a Qwen token 28 x 28 pixels (Qwen3-VL: 32 x 32), InternVL 13
tiles of 256, SmolVLM2 13 of 81. End tokens are those of each generation_config.json, sizes those of the weights that
the hub shows (JoyCaption: all in bfloat16; SmolVLM2: 4.96 and 4.03 GB, in float32).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from skimage import data

from sira_cli import load
from sira_cli.errors import PictureError
from sira_cli.models import presets
from sira_cli.models.chat import chat_inputs
from sira_cli.models.load import check_structure, inspect_model
from sira_cli.models.preset import Preset
from sira_cli.models.processor import load_processor
from tests.support import checkpoints
from tests.support.checkpoints import WRITERS
from tests.support.helpers import by_the_letter, mostly_slow

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
PROMPT = "Is there a cat on the table?"
WITH_TORCHVISION = ("InternVL", "SmolVLM", "Pixtral (LLaVA)", "Mistral 3")
QUICK = ("LLaVA-1.5", "LLaVA-NeXT", "Pixtral (LLaVA)", "InternVL", "Idefics3", "Gemma 3")


@pytest.mark.parametrize("family", mostly_slow(["LLaVA-1.5", *WRITERS], *QUICK))
def test_prompt_pixels_and_greedy_text_are_those_of_transformers(family, checkpoint_of, photos):
    checkpoint = checkpoint_of(family)
    model = load(checkpoint, max_new_tokens=6)
    dtype = model.model.dtype  # `auto` depends on the machine
    plain = hf.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=dtype)
    tokenizer = hf.AutoTokenizer.from_pretrained(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    image_token = config.get("image_token_id") or config["image_token_index"]
    processor = model.processor if family in WITH_TORCHVISION else hf.AutoProcessor.from_pretrained(checkpoint)
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    for picture in (photos["chelsea"], photos["tall"]):
        image = Image.open(picture)
        ours = chat_inputs(model.processor, model.model.config.model_type, [image], [PROMPT])
        parts: Any = [{"type": "image", "image": image}, {"type": "text", "text": PROMPT}]
        if family.startswith("PaliGemma"):
            theirs = processor(images=image, text=f"<image>{PROMPT}", return_tensors="pt")
        elif family.startswith("JoyCaption"):  # as its model card says
            text = processor.apply_chat_template([{"role": "user", "content": PROMPT}], add_generation_prompt=True)
            theirs = processor(text=[text], images=[image], return_tensors="pt")
        else:
            theirs = processor.apply_chat_template([{"role": "user", "content": parts}], **how)
        assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
        for name in {"pixel_values"} | (ours.keys() & theirs.keys()):
            assert torch.equal(ours[name], theirs[name]), name
        ids = ours["input_ids"][0].tolist()
        assert PROMPT in model.processor.tokenizer.decode(ids)
        output = plain.generate(**theirs.to(dtype=dtype), do_sample=False, max_new_tokens=6)
        text = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True).strip()
        assert model.under("greedy").caption(picture, PROMPT).text == text
        result = model.caption(picture, PROMPT)
        assert result.status == "ok"
        assert result.output_tokens == 6
        assert result.prompt_tokens == len(ids)
        assert result.image_tokens == ids.count(image_token) > 0
        assert result.text


@pytest.mark.parametrize("as_list", [False, True])
def test_a_system_prompt_of_plain_text(checkpoint_of, photos, as_list):
    """JoyCaption needs one, and its chat template takes no list of parts; some others write the list out instead."""
    model = load(checkpoint_of("JoyCaption (LLaVA)"), system="You are a helpful image captioner.")
    if as_list:
        template = model.processor.chat_template
        model.processor.chat_template = template.replace("message['content'].", "(message['content'] | trim).")
    inputs = model.prepare([Image.open(photos[name]) for name in ("chelsea", "tall")], [PROMPT, PROMPT])
    text = model.processor.tokenizer.decode(inputs["input_ids"][1])
    assert re.sub(r"(<\|reserved_special_token_69\|>)+", "IMAGE", text) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 July 2024\n\n"
        "You are a helpful image captioner.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        f"<|reserved_special_token_70|>IMAGE<|reserved_special_token_71|>{PROMPT}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert model.find_image(inputs["input_ids"]).sum(dim=1).tolist() == [16, 16]


# --- LLaVA-1.5 as its authors evaluate it


@pytest.fixture(scope="module")
def original(layout):
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


def test_the_prompt_of_llavas_authors(original, monkeypatch):
    ids = original.prepare([Image.new("RGB", (64, 48))], ["What is this?"])["input_ids"][0]
    text = original.processor.tokenizer.decode(ids, skip_special_tokens=False).removeprefix("<s>").strip()
    text = text.replace("<image>" * 576 + " ", "<image>")  # SentencePiece begins each piece of text with a space
    assert text == (
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions. USER: <image>\nWhat is this? ASSISTANT:"
    )
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    with pytest.raises(PictureError, match=r"400 x 2 pixels would become 400 x 400, and 100,000 pixels are the limit"):
        original.caption(Image.new("RGB", (400, 2)))


# --- the shipped presets, each with its model in the layout of the hub

QWEN = (151645, 151643)
# Image tokens of the photograph, end tokens, and gigabytes of weights.
KNOWN: dict[str, tuple[int, tuple[int, ...], float]] = {
    "llava-1.5-7b": (576, (2,), 14.1),
    "llava-1.5-13b": (576, (2,), 26.7),
    "llava-next-mistral-7b": (2340, (2,), 15.1),
    "qwen2-vl-7b": (391, QWEN, 16.6),
    "qwen2.5-vl-3b": (391, QWEN, 7.5),
    "qwen2.5-vl-7b": (391, QWEN, 16.6),
    "qwen3-vl-8b": (300, QWEN, 17.5),
    "gemma3-4b": (256, (1, 106), 8.6),
    "internvl3-8b": (3328, (151645,), 15.9),
    "joycaption-beta-one": (729, (128001, 128008, 128009), 17.0),
    "smolvlm2-2.2b": (1053, (49279,), 9.0),
}


@pytest.mark.parametrize("name", checkpoints.LAYOUTS)
def test_image_tokens_of_a_photograph_and_sizes(name, tmp_path):
    checkpoints.write_files(name, tmp_path / name)
    preset, config = presets.find(name), hf.AutoConfig.from_pretrained(tmp_path / name)
    processor = load_processor(tmp_path / name, image=preset.image)
    photograph = Image.fromarray(data.coffee()).resize((640, 480))
    inputs = chat_inputs(processor, config.model_type, [photograph], [PROMPT], system=preset.prompts.system)
    assert int(preset.image_tokens.resolve(config).find(inputs["input_ids"]).sum()) == KNOWN[name][0]
    facts = inspect_model(Preset(model=str(checkpoints.write_config(name, tmp_path / "real widths"))))
    assert round(facts.gigabytes, 1) == preset.download_gb == KNOWN[name][2]


@pytest.mark.parametrize(
    "name", mostly_slow(checkpoints.LAYOUTS, "llava-1.5-7b", "qwen2.5-vl-7b", "gemma3-4b", "internvl3-8b")
)
def test_tokens_are_those_of_algorithm_1_by_the_letter(name, layout):
    """And under greedy decoding those of transformers."""
    preset = presets.find(name).model_copy(update={"model": str(layout(name))})
    lvlm = load(preset, dtype="float32", max_new_tokens=3)
    strip = name in ("llava-next-mistral-7b", "smolvlm2-2.2b")  # few tiles for those that cut pictures up
    picture = Image.fromarray(data.rocket()).resize((320, 32) if strip else (64, 64))
    inputs = lvlm.prepare([picture], [PROMPT])
    assert lvlm.ends.ids == KNOWN[name][1]
    k = {"qwen2.5-vl-7b": 14, "llava-1.5-7b": 16}.get(name, lvlm.layers // 2)  # the paper's, for its two models
    by_the_letter(lvlm, inputs, 2, k=k, gap=0.05)
    greedy = lvlm.under(preset.method("greedy")).generate(inputs)
    plainly = hf.GenerationConfig(do_sample=False, max_new_tokens=3, pad_token_id=0)
    plain = lvlm.model.generate(**inputs, generation_config=plainly)
    assert greedy.tolist() == plain[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("name", checkpoints.SIZES)
def test_sizes_without_a_layout(name, tmp_path):
    known, config = checkpoints.SIZES[name], checkpoints.released_config(presets.find(name).model)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert check_structure(tmp_path, presets.find(name)) is not None
    in_model = round(inspect_model(Preset(model=str(tmp_path))).gigabytes * 1e9 / 2)
    stored = in_model + checkpoints.beside(config, known["beside"]) if "beside" in known else in_model
    assert stored == known.get("stored", stored)  # to the last number
    assert presets.find(name).download_gb == round(2 * stored / 1e9, 1)
