"""How large pictures are when a model sees them: limits on each processor that has one, and where they come from."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from transformers import AutoConfig

from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import SettingsError
from sira_cli.models import presets
from sira_cli.models.preset import ImageSettings, Preset
from sira_cli.models.processor import chat_inputs, load_processor
from tests.support import layouts

QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
LARGE = 4000, 3000


@pytest.fixture
def image_tokens(tmp_path):
    """Count the image tokens of a picture of a size under a preset's model and settings."""

    def count(name: str, size: tuple[int, int], image: ImageSettings) -> int:
        folder = tmp_path / name
        if not folder.exists():
            layouts.write_files(name, folder)
        config, processor = AutoConfig.from_pretrained(folder), load_processor(folder, image=image)
        inputs = chat_inputs(processor, config.model_type, [Image.new("RGB", size)], ["What is this?"])
        return int(ImageTokens().resolve(config).find(inputs["input_ids"]).sum())

    return count


@pytest.mark.parametrize(
    ("name", "size", "settings", "expected"),
    [
        # As the issue has it: 28 x 28 pixels a token, 4:3 within 12,845,056 and within 1,003,520 pixels.
        pytest.param("qwen2.5-vl-7b", LARGE, {}, 143 * 107, marks=pytest.mark.slow),
        ("qwen2.5-vl-7b", LARGE, {"max_pixels": 1003520}, 41 * 30),
        ("qwen2.5-vl-7b", (56, 56), {"min_pixels": 28 * 28 * 100}, 10 * 10),
        ("qwen3-vl-8b", LARGE, {"max_pixels": 32 * 32 * 300, "min_pixels": 32 * 32}, 20 * 15),
        ("qwen3-vl-8b", (32, 32), {"min_pixels": 32 * 32}, 1),
        # Tiles of 448 x 448, as near to 4:3 as may be and rather more than fewer, and one of the whole picture.
        ("internvl3-8b", LARGE, {}, (4 * 3 + 1) * 256),
        ("internvl3-8b", LARGE, {"max_tiles": 4}, (2 * 2 + 1) * 256),
        ("internvl3-8b", LARGE, {"max_tiles": 1}, 256),
        ("smolvlm2-2.2b", LARGE, {}, 13 * 81),
        ("smolvlm2-2.2b", LARGE, {"longest_edge": 768}, 5 * 81),
        ("smolvlm2-2.2b", LARGE, {"longest_edge": 384}, 81),
        ("gemma3-4b", (2000, 1000), {}, 256),
        ("gemma3-4b", (2000, 1000), {"pan_and_scan": True}, 3 * 256),
    ],
)
def test_limits_decide_how_many_image_tokens_there_are(image_tokens, name, size, settings, expected):
    assert image_tokens(name, size, ImageSettings(**settings)) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("qwen2.5-vl-7b", {"max_pixels": 3135}, r"image\.max_pixels: 3135 is below the processor's minimum of 3136"),
        ("qwen2.5-vl-7b", {"min_pixels": 2000, "max_pixels": 1999}, r"max_pixels: 1999 is below .* 2000"),
        ("qwen2.5-vl-7b", {"min_pixels": 12845057}, "12845057 is more than the 12845056 that .*: also give max_pixels"),
        ("smolvlm2-2.2b", {"longest_edge": 383}, r"image\.longest_edge: 383 is below the processor's minimum of 384"),
        ("llava-1.5-7b", {"min_pixels": 9}, r"image\.min_pixels: CLIPImageProcessor\w* has no such limit"),
        ("internvl3-8b", {"pan_and_scan": True}, r"image\.pan_and_scan: .* has no such limit"),
    ],
)
def test_what_a_processor_cannot_do_is_refused(image_tokens, name, settings, message):
    with pytest.raises(SettingsError, match=message):
        image_tokens(name, (64, 64), ImageSettings(**settings))


def test_a_model_id_takes_sizes_and_system_prompt_from_its_preset():
    assert presets.for_model(QWEN) == Preset(model=QWEN, image=ImageSettings(max_pixels=1003520))
    joycaption = presets.find("joycaption-beta-one")
    preset = presets.resolve(joycaption.model)
    assert preset.prompts.system == joycaption.prompts.system == "You are a helpful image captioner."
    assert (preset.name, preset.sira.k) == ("", None)
    assert presets.for_model("./folder") == Preset(model="./folder")


def test_the_command_says_so(sira, photos):
    code, _, err = sira("caption", photos["coffee"], "--model", QWEN, "--offline")
    assert code == 1
    assert f"--model {QWEN} takes image: {{max_pixels: 1003520}} from the preset qwen2.5-vl-7b\n" in err
    _, _, err = sira("caption", photos["coffee"], "--model", "nobody/nothing", "--offline")
    assert "takes" not in err


def test_options_of_the_command_line(sira, qwen_folder, photos):
    """coffee.jpg has 600 x 400 pixels."""
    command = ("caption", photos["coffee"], "--model", qwen_folder, "--max-new-tokens", 1, "--json")
    code, out, _ = sira(*command, "--max-pixels", 28 * 28 * 6)
    assert (code, json.loads(out)["image_tokens"]) == (0, 3 * 2)
    code, out, err = sira(*command, "--max-pixels", 100)
    assert (code, out) == (2, "")
    assert "image.max_pixels: 100 is below the processor's minimum of 3136 pixels" in err


def test_what_is_not_set_leaves_the_keys_of_records_as_they_were():
    assert Preset(model="x").decisive()["image"] == {"max_pixels": None}
    assert Preset(model="x", image=ImageSettings(min_pixels=9)).decisive()["image"] == {
        "max_pixels": None,
        "min_pixels": 9,
    }
