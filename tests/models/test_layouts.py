"""Each shipped preset with its model in the layout of the hub: tokens, sizes of prompts and weights, end tokens.

Of models whose files are not rebuilt here, only the sizes: `tests/data/sizes.yaml`.

Image tokens of a photograph of 640 x 480 follow from the papers: LLaVA 24 x 24 patches, LLaVA-NeXT five tiles less the
padding, with newlines, a Qwen token 28 x 28 pixels (Qwen3-VL: 32 x 32), InternVL 13 tiles of 256, SmolVLM2 13 of 81.
End tokens are those of each generation_config.json, sizes those of the weights that the hub shows (JoyCaption: all in
bfloat16; SmolVLM2: 4.96 and 4.03 GB, in float32).
"""

from __future__ import annotations

import json

import pytest
from PIL import Image
from skimage import data
from transformers import AutoConfig, GenerationConfig

from sira_cli import load
from sira_cli.models import presets
from sira_cli.models.load import check_structure, inspect_model
from sira_cli.models.preset import Preset
from sira_cli.models.processor import chat_inputs, load_processor
from tests.support import layouts
from tests.support.helpers import by_the_letter, mostly_slow

QUESTION = "Is there a cat on the table?"
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
# Pictures with few tiles for those that cut them up.
STRIPS = ("llava-next-mistral-7b", "smolvlm2-2.2b")


def test_every_preset_has_its_layout_or_its_sizes():
    """All but Molmo2, in whose repository the precision of the weights was not looked up."""
    known = {presets.find(name).model for name in presets.available()} - {presets.BUNDLED, "allenai/Molmo2-8B"}
    assert {presets.find(name).model for name in (*layouts.NAMES, *layouts.SIZES)} == known
    assert not {*layouts.NAMES} & {*layouts.SIZES}


@pytest.mark.parametrize("name", layouts.NAMES)
def test_image_tokens_of_a_photograph_and_sizes(name, tmp_path):
    layouts.write_files(name, tmp_path / name)
    preset, config = presets.find(name), AutoConfig.from_pretrained(tmp_path / name)
    processor = load_processor(tmp_path / name, image=preset.image)
    photograph = Image.fromarray(data.coffee()).resize((640, 480))
    inputs = chat_inputs(processor, config.model_type, [photograph], [QUESTION], system=preset.prompts.system)
    assert int(preset.image_tokens.resolve(config).find(inputs["input_ids"]).sum()) == KNOWN[name][0]
    facts = inspect_model(Preset(model=str(layouts.write_config(name, tmp_path / "real widths"))))
    assert round(facts.gigabytes, 1) == preset.download_gb == KNOWN[name][2]


@pytest.mark.parametrize(
    "name", mostly_slow(layouts.NAMES, "llava-1.5-7b", "qwen2.5-vl-7b", "gemma3-4b", "internvl3-8b")
)
def test_tokens_are_those_of_algorithm_1_by_the_letter(name, layout):
    """And under greedy decoding those of transformers."""
    preset = presets.find(name).model_copy(update={"model": str(layout(name))})
    lvlm = load(preset, dtype="float32", max_new_tokens=3)
    picture = Image.fromarray(data.rocket()).resize((320, 32) if name in STRIPS else (64, 64))
    inputs = lvlm.prepare([picture], [QUESTION])
    assert lvlm.ends.ids == KNOWN[name][1]
    k = {"qwen2.5-vl-7b": 14, "llava-1.5-7b": 16}.get(name, lvlm.layers // 2)  # the paper's, for its two models
    by_the_letter(lvlm, inputs, 2, k=k, gap=0.05)
    greedy = lvlm.under(preset.method("greedy")).generate(inputs)
    plainly = GenerationConfig(do_sample=False, max_new_tokens=3, pad_token_id=0)
    plain = lvlm.model.generate(**inputs, generation_config=plainly)
    assert greedy.tolist() == plain[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("name", layouts.SIZES)
def test_sizes_without_a_layout(name, tmp_path):
    known, config = layouts.SIZES[name], layouts.released_config(presets.find(name).model)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert check_structure(tmp_path, presets.find(name)) is not None
    in_model = round(inspect_model(Preset(model=str(tmp_path))).gigabytes * 1e9 / 2)
    stored = in_model + layouts.beside(config, known["beside"]) if "beside" in known else in_model
    assert stored == known.get("stored", stored)  # to the last number
    assert presets.find(name).download_gb == round(2 * stored / 1e9, 1)
