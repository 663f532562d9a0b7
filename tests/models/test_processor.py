"""A processor and its chat format: older files completed, sizes of pictures, several turns as in transformers."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from sira_cli import load
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods.prompts import Conversation, Turn
from sira_cli.models import presets
from sira_cli.models import processor as loaded
from sira_cli.models.preset import ImageSettings, Preset
from sira_cli.models.processor import chat_inputs, load_processor
from tests.support import layouts
from tests.support.checkpoints import ALL

COUNTING = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
PADDING = ("tokenizer_config.json", "special_tokens_map.json")


def without(folder: Path, files: Sequence[str], names: Sequence[str]) -> None:
    """Remove keys from files that exist; without names, the files."""
    for path in (folder / file for file in files):
        if not names:
            path.unlink()
        elif path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps({name: content[name] for name in content if name not in names}))


@pytest.mark.parametrize(
    ("family", "files", "names"),
    [
        ("LLaVA-1.5", ["processor_config.json"], ()),
        ("LLaVA-NeXT", ["processor_config.json"], COUNTING),
        ("LLaVA-NeXT", PADDING, ("pad_token",)),
        ("JoyCaption (LLaVA)", ["processor_config.json"], COUNTING),  # its tower has no token of its own
    ],
)
def test_an_older_folder_gives_the_same_texts(checkpoint_of, tmp_path, photos, family, files, names):
    settings = {"system": "You are a helpful image captioner."} if "Joy" in family else {}
    folder = shutil.copytree(checkpoint_of(family), tmp_path / "older")
    without(folder, files, names)
    pictures = [photos["coffee"], photos["tall"]]  # of several lengths in LLaVA-NeXT, so that one is padded
    now, then = (
        list(load(place, max_new_tokens=4, **settings).caption_many(pictures))
        for place in (checkpoint_of(family), folder)
    )
    assert [result.status for result in now] == ["ok", "ok"]
    assert [(one.text, one.image_tokens) for one in then] == [(one.text, one.image_tokens) for one in now]


def test_what_nothing_tells_is_refused_when_loading(llava_folder, tmp_path):
    folder = shutil.copytree(llava_folder, tmp_path / "older")
    without(folder, PADDING, ("pad_token", "eos_token"))
    with pytest.raises(UnsupportedModelError, match="neither a padding token nor an end token"):
        load(folder)


def test_the_first_name_of_qwen_s_image_processor(qwen_folder, tmp_path):
    folder = shutil.copytree(qwen_folder, tmp_path / "first upload")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["image_processor_type"] = "Qwen2_5_VLImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    first, now = (load_processor(place).image_processor.to_dict() for place in (folder, qwen_folder))
    assert first == now


QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
LARGE = 4000, 3000


@pytest.fixture(scope="module")
def image_tokens(tmp_path_factory):
    """Count the image tokens of a picture of a size under a preset's model and settings."""
    written, place = functools.cache(layouts.write_files), tmp_path_factory.mktemp("files")

    def count(name: str, size: tuple[int, int], image: ImageSettings) -> int:
        written(name, place / name)
        config, processor = AutoConfig.from_pretrained(place / name), load_processor(place / name, image=image)
        inputs = chat_inputs(processor, config.model_type, [Image.new("RGB", size)], ["What is this?"])
        return int(ImageTokens().resolve(config).find(inputs["input_ids"]).sum())

    return count


@pytest.mark.parametrize(
    ("name", "size", "settings", "expected"),
    [
        ("qwen2.5-vl-7b", LARGE, {"max_pixels": 1003520}, 41 * 30),
        ("qwen2.5-vl-7b", (56, 56), {"min_pixels": 28 * 28 * 100}, 10 * 10),
        ("qwen3-vl-8b", LARGE, {"max_pixels": 32 * 32 * 300, "min_pixels": 32 * 32}, 20 * 15),
        # Tiles of 448 x 448, as near to 4:3 as may be and rather more than fewer, and one of the whole picture.
        ("internvl3-8b", LARGE, {}, (4 * 3 + 1) * 256),
        ("internvl3-8b", LARGE, {"max_tiles": 1}, 256),
        ("smolvlm2-2.2b", LARGE, {"longest_edge": 768}, 5 * 81),
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
        (
            "qwen2.5-vl-7b",
            {"min_pixels": 12845057},
            "12845057 is more than the maximum of 12845056: also",
        ),
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
        assert size[0] * size[1] <= LOWERED, f"a picture of {image.size} became a giant of {size}"
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


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))
TURNS = (("user", "What is there?"), ("assistant", "There is a dog."), ("user", "And on the left?"))


def conversation(*seen_in: int) -> Conversation:
    """About a picture in each of these turns; none given: in the first."""
    return Conversation(
        tuple(Turn(role, text, int(number in (seen_in or (0,)))) for number, (role, text) in enumerate(TURNS))
    )


def their_messages(images: list[Image.Image], seen_in: tuple[int, ...]) -> list[dict]:
    """What transformers' documentation shows."""
    unseen = iter(images)
    return [
        {
            "role": role,
            "content": [
                *([{"type": "image", "image": next(unseen)}] if number in seen_in else []),
                {"type": "text", "text": text},
            ],
        }
        for number, (role, text) in enumerate(TURNS)
    ]


def pictures() -> list[Image.Image]:
    """Two, of different sizes."""
    first, second = (Image.open(path).convert("RGB") for path in EXAMPLES[:2])
    return [first, second.crop((0, 0, second.width // 2, second.height))]


FAMILIES = pytest.mark.parametrize("family", ["Qwen2.5-VL", "Gemma 3", "Idefics3"])


@FAMILIES
def test_tokens_and_greedy_texts_are_those_of_transformers(checkpoint_of, family):
    folder = checkpoint_of(family)
    lvlm, images = load(folder, method="greedy", max_new_tokens=6), pictures()
    processor = AutoProcessor.from_pretrained(folder) if "Qwen" not in family else lvlm.processor
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    for seen_in in ((2,), (0, 2)):
        theirs = processor.apply_chat_template(their_messages(images, seen_in), **how)
        lvlm.check_prompt(conversation(*seen_in))
        ours = lvlm.prepare([images[: len(seen_in)]], [conversation(*seen_in)])
        assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])
    plain = AutoModelForImageTextToText.from_pretrained(folder, dtype=lvlm.model.dtype)  # `auto` depends on the machine
    output = plain.generate(**theirs.to(dtype=plain.dtype), do_sample=False, max_new_tokens=6, repetition_penalty=1.0)
    (answer,) = lvlm.answer(ours)
    assert list(answer.tokens) == output[0, theirs["input_ids"].shape[1] :].tolist()


PARTS = ("This is A:", None, "and B:", None, "What differs?")


@FAMILIES
def test_pictures_between_words_stay_there(checkpoint_of, family):
    processor = load_processor(checkpoint_of(family))
    images = iter(pictures())
    content = [{"type": "text", "text": part} if part else {"type": "image", "image": next(images)} for part in PARTS]
    first = {"role": "user", "content": content}
    asked = Turn("user", "\n".join(filter(None, PARTS)), 2, PARTS)
    for following, turns in (([], []), (their_messages([], ())[1:], [Turn(role, text) for role, text in TURNS[1:]])):
        theirs = processor.apply_chat_template(
            [first, *following], add_generation_prompt=True, tokenize=True, return_dict=True
        )
        prompt = Conversation((asked, *turns))
        ours = chat_inputs(processor, "any", [pictures()], [prompt])
        assert ours["input_ids"][0].tolist() == theirs["input_ids"][0]
    assert str(prompt) != str(Conversation((replace(asked, parts=()), *turns)))


def test_a_template_that_puts_pictures_first_may_do_so(llava_folder):
    """As one that takes one text per message."""
    processor = load_processor(llava_folder)
    one_text = (
        "{% for message in messages %}{% for part in message['content'] | selectattr('type', 'eq', 'image') %}"
        "<image>{% endfor %}{{ message['content'][-1]['text'] }}{% endfor %}"
    )
    text = "\n".join(filter(None, PARTS))
    processor.chat_template = processor.tokenizer.chat_template = one_text
    ours, plain = (
        chat_inputs(processor, "any", [pictures()], [prompt])["input_ids"].tolist()
        for prompt in (Conversation((Turn("user", text, 2, PARTS),)), text)
    )
    assert ours == plain


@pytest.mark.parametrize("system", ["{{ raise_exception('no system') }}", ""], ids=["refused", "left out"])
def test_a_template_without_a_system_message_has_its_words_before_the_users(llava_folder, system):
    processor = load_processor(llava_folder)
    processor.chat_template = (
        f"{{% for message in messages %}}{{% if message['role'] == 'system' %}}{system}{{% else %}}"
        "{{ message['role'] }}: <image>{{ message['content'][-1]['text'] }}{% endif %}{% endfor %}"
    )
    for prompt in ("What is there?", Conversation((Turn("user", "What is there?", 1),))):
        (text,) = chat_inputs(processor, "any", pictures()[:1], [prompt], system="Be brief.", as_text=True)
        assert text == "user: <image>Be brief. What is there?"


@pytest.mark.parametrize(("family", "method"), [("Qwen2.5-VL", "sira"), ("Gemma 3", "sira"), ("Idefics3", "vcd")])
def test_one_turn_and_several_share_a_batch(checkpoint_of, family, method):
    lvlm = load(checkpoint_of(family), method=method, max_new_tokens=4)
    one, other = pictures()
    shown = [one, [one], [one, other], [other, one]]
    prompts = ["What is there?", conversation(2), conversation(0, 2), conversation(0, 2)]
    together = lvlm.answer(lvlm.prepare(shown, prompts))
    alone = [lvlm.answer(lvlm.prepare([each], [prompt]))[0] for each, prompt in zip(shown, prompts, strict=True)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert len({answer.tokens for answer in alone}) > 1


# They leave out what the assistant said; place a picture in every turn; have no template.
@pytest.mark.parametrize("family", ["LLaVA-NeXT", "JoyCaption (LLaVA)", "PaliGemma"])
def test_a_chat_format_without_room_for_turns_is_refused(checkpoint_of, family):
    lvlm = load(checkpoint_of(family))
    with pytest.raises(SettingsError, match="one user message with one picture"):
        lvlm.check_prompt(conversation())
    with pytest.raises(SettingsError, match="one user message with one picture"):
        lvlm.prepare([Image.open(EXAMPLES[0]).convert("RGB")], [conversation()])


def test_a_template_whose_assistant_says_plain_text(checkpoint_of):
    """As that of Mistral's checkpoints: lists of parts are for the user only."""
    processor, last = load_processor(checkpoint_of("Pixtral (LLaVA)")), "{%- endif %}{%- endfor %}"
    assert processor.chat_template.endswith(last)
    said = "{%- elif message['role'] == 'assistant' %}{{- message['content'] + '</s>' }}"
    processor.chat_template = processor.chat_template.removesuffix(last) + said + last
    (text,) = chat_inputs(processor, "any", pictures()[:1], [conversation()], as_text=True)
    assert "[/INST]There is a dog.</s>[INST]And on the left?[/INST]" in text


def test_the_command_says_so_and_has_options(sira, qwen_folder, photos):
    """coffee.jpg has 600 x 400 pixels."""
    code, _, err = sira("caption", photos["coffee"], "--model", QWEN, "--offline")
    assert code == 1
    assert f"--model {QWEN} takes image: {{max_pixels: 1003520}} from the preset qwen2.5-vl-7b\n" in err
    _, _, err = sira("caption", photos["coffee"], "--model", "nobody/nothing", "--offline")
    assert "takes" not in err
    command = ("caption", photos["coffee"], "--model", qwen_folder, "--max-new-tokens", 1, "--json")
    code, out, _ = sira(*command, "--max-pixels", 28 * 28 * 6)
    assert (code, json.loads(out)["image_tokens"]) == (0, 3 * 2)
    code, out, err = sira(*command, "--max-pixels", 100)
    assert (code, out) == (2, "")
    assert "image.max_pixels: 100 is below the processor's minimum of 3136" in err
