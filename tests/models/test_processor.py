"""A processor and its chat format: older files, sizes of pictures, several turns and pictures as in transformers."""

from __future__ import annotations

import copy
import functools
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from sira_cli import load
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import LongPromptError, SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS
from sira_cli.methods.prompts import Conversation, Turn
from sira_cli.models import presets, resizing
from sira_cli.models.chat import chat_inputs
from sira_cli.models.preset import ImageSettings, Preset
from sira_cli.models.processor import load_processor
from sira_cli.pictures.sources import as_picture
from tests.support import checkpoints
from tests.support.checkpoints import ALL, edited
from tests.support.helpers import by_the_letter, under
from tests.support.shards import EXAMPLES

# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
COUNTING = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
PADDING = ("tokenizer_config.json", "special_tokens_map.json")
QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
QUESTION = "Is there a cat on the table?"
ONE_ONLY = "JoyCaption (LLaVA)"  # its template places the image token itself


@pytest.mark.parametrize(
    ("family", "files", "names"),
    [
        ("LLaVA-1.5", ["processor_config.json"], (*COUNTING, "processor_class", "image_token")),
        ("LLaVA-NeXT", ["processor_config.json"], COUNTING),
        ("LLaVA-NeXT", PADDING, ("pad_token",)),
        (ONE_ONLY, ["processor_config.json"], COUNTING),  # its tower has no token of its own
    ],
)
def test_an_older_folder_gives_the_same_texts(checkpoint_of, tmp_path, photos, family, files, names):
    settings = {"max_new_tokens": 4} | ({"system": "You are helpful."} if family == ONE_ONLY else {})
    folder = edited(checkpoint_of(family), tmp_path / "older", *files, **dict.fromkeys(names))
    pictures = [photos["coffee"], photos["tall"]]  # of several lengths in LLaVA-NeXT, so that one is padded
    now, then = (
        [(each.status, each.text, each.image_tokens) for each in load(place, **settings).caption_many(pictures)]
        for place in (checkpoint_of(family), folder)
    )
    assert now == then
    assert {status for status, *_ in now} == {"ok"}


def test_what_nothing_tells_is_refused_when_loading(llava_folder, tmp_path):
    folder = edited(llava_folder, tmp_path / "older", *PADDING, pad_token=None, eos_token=None)
    with pytest.raises(UnsupportedModelError, match="neither a padding token nor an end token"):
        load(folder)


# --- sizes of pictures


@pytest.fixture(scope="module")
def image_tokens(tmp_path_factory):
    """Count the image tokens of a picture of a size under a preset's model and settings."""
    written, place = functools.cache(checkpoints.write_files), tmp_path_factory.mktemp("files")

    def count(name: str, size: tuple[int, int], **settings: int) -> int:
        written(name, place / name)
        config, image = AutoConfig.from_pretrained(place / name), ImageSettings(**settings)
        processor = load_processor(place / name, image=image)
        inputs = chat_inputs(processor, config.model_type, [Image.new("RGB", size)], [QUESTION])
        return int(ImageTokens().resolve(config).find(inputs["input_ids"]).sum())

    return count


@pytest.mark.parametrize(
    ("name", "size", "settings", "expected"),
    [
        ("qwen2.5-vl-7b", (4000, 3000), {"max_pixels": 1003520}, 41 * 30),
        ("qwen2.5-vl-7b", (56, 56), {"min_pixels": 28 * 28 * 100}, 10 * 10),
        ("qwen3-vl-8b", (4000, 3000), {"max_pixels": 32 * 32 * 300, "min_pixels": 32 * 32}, 20 * 15),
        # Tiles of 448 x 448, as near to 4:3 as may be and rather more than fewer, and one of the whole picture.
        ("internvl3-8b", (4000, 3000), {}, (4 * 3 + 1) * 256),
        ("internvl3-8b", (4000, 3000), {"max_tiles": 1}, 256),
        ("smolvlm2-2.2b", (4000, 3000), {"longest_edge": 768}, 5 * 81),
        ("gemma3-4b", (2000, 1000), {"pan_and_scan": True}, 3 * 256),
    ],
)
def test_limits_decide_how_many_image_tokens_there_are(image_tokens, name, size, settings, expected):
    assert image_tokens(name, size, **settings) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("qwen2.5-vl-7b", {"max_pixels": 3135}, r"image\.max_pixels: 3135 is below the processor's minimum of 3136"),
        ("qwen2.5-vl-7b", {"min_pixels": 2000, "max_pixels": 1999}, r"max_pixels: 1999 is below .* 2000"),
        ("qwen2.5-vl-7b", {"min_pixels": 12845057}, "12845057 is more than the maximum of 12845056: also"),
        ("smolvlm2-2.2b", {"longest_edge": 383}, r"image\.longest_edge: 383 is below the processor's minimum of 384"),
        ("llava-1.5-7b", {"min_pixels": 9}, r"image\.min_pixels: CLIPImageProcessor\w* has no such limit"),
        ("internvl3-8b", {"pan_and_scan": True}, r"image\.pan_and_scan: .* has no such limit"),
    ],
)
def test_what_a_processor_cannot_do_is_refused(image_tokens, name, settings, message):
    with pytest.raises(SettingsError, match=message):
        image_tokens(name, (64, 64), **settings)


def test_a_model_id_takes_sizes_and_system_prompt_from_its_preset(sira, photos):
    assert presets.resolve(QWEN) == Preset(model=QWEN, image=ImageSettings(max_pixels=1003520))
    preset = presets.resolve(presets.find("joycaption-beta-one").model)
    assert (preset.name, preset.prompts.system) == ("", "You are a helpful image captioner.")
    code, _, err = sira("caption", photos["coffee"], "--model", QWEN, "--offline")
    assert code == 1
    assert f"--model {QWEN} takes image: {{max_pixels: 1003520}} from the preset qwen2.5-vl-7b\n" in err


def test_the_command_has_an_option_for_the_size(sira, qwen_folder, photos):
    """coffee.jpg has 600 x 400 pixels."""
    command = ("caption", photos["coffee"], "--model", qwen_folder, "--max-new-tokens", 1, "--json")
    code, out, _ = sira(*command, "--max-pixels", 28 * 28 * 6)
    assert (code, json.loads(out)["image_tokens"]) == (0, 3 * 2)


@pytest.mark.parametrize("family", ALL)
def test_no_processor_makes_a_giant(family, checkpoint_of, monkeypatch):
    """Of a thin picture; the limit is lowered to more pixels than any processor here makes by its settings."""
    sizes, resize = list[tuple[int, int]](), Image.Image.resize
    monkeypatch.setattr(resizing, "MOST", 2**18)
    noted = lambda own, size, *args, **more: sizes.append(size) or resize(own, size, *args, **more)  # noqa: E731
    monkeypatch.setattr(Image.Image, "resize", noted)
    processor = load_processor(checkpoint_of(family))
    for size in [(1, 60_000), (60_000, 1), (7, 1300), (1300, 7), (199, 1), (640, 480)]:
        with suppress(*[ValueError] * (size != (640, 480))):
            chat_inputs(processor, "paligemma", [Image.new("RGB", size)], [QUESTION])
    assert 0 < max(width * height for width, height in sizes) <= 2**18


# --- several turns, and several pictures in a prompt

TURNS = (("user", "What is there?"), ("assistant", "There is a dog."), ("user", "And on the left?"))


def conversation(*seen_in: int) -> Conversation:
    """About a picture in each of these turns; none given: in the first."""
    return Conversation(
        tuple(Turn(role, text, int(number in (seen_in or (0,)))) for number, (role, text) in enumerate(TURNS))
    )


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    """Two, of different sizes."""
    first, second = (Image.open(path).convert("RGB") for path in EXAMPLES[:2])
    return [first, second.crop((0, 0, second.width // 2, second.height))]


AS_TENSORS = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}


@pytest.mark.parametrize("family", ["Qwen2.5-VL", "Gemma 3", "Idefics3"])
def test_tokens_and_greedy_texts_are_those_of_transformers(checkpoint_of, family, pictures):
    folder = checkpoint_of(family)
    lvlm = load(folder, method="greedy", max_new_tokens=6)
    processor = AutoProcessor.from_pretrained(folder) if "Qwen" not in family else lvlm.processor
    for seen_in in ((2,), (0, 2)):
        unseen, messages = iter(pictures), []  # as transformers' documentation shows
        for number, (role, text) in enumerate(TURNS):
            picture = [{"type": "image", "image": next(unseen)}] if number in seen_in else []
            messages.append({"role": role, "content": [*picture, {"type": "text", "text": text}]})
        theirs = processor.apply_chat_template(messages, **AS_TENSORS)
        lvlm.check_prompt(conversation(*seen_in))
        ours = lvlm.prepare([pictures[: len(seen_in)]], [conversation(*seen_in)])
        assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])
    plain = AutoModelForImageTextToText.from_pretrained(folder, dtype=lvlm.model.dtype)  # `auto` depends on the machine
    output = plain.generate(**theirs.to(dtype=plain.dtype), do_sample=False, max_new_tokens=6, repetition_penalty=1.0)
    (answer,) = lvlm.answer(ours)
    assert list(answer.tokens) == output[0, theirs["input_ids"].shape[1] :].tolist()


def test_pictures_between_words_stay_there(checkpoint_of, pictures):
    processor, images = load_processor(checkpoint_of("Qwen2.5-VL")), iter(pictures)
    parts = ("This is A:", None, "and B:", None, "What differs?")
    content = [{"type": "text", "text": part} if part else {"type": "image", "image": next(images)} for part in parts]
    theirs = processor.apply_chat_template([{"role": "user", "content": content}], **AS_TENSORS)
    first, asked = (Turn("user", "\n".join(filter(None, parts)), 2, own) for own in ((), parts))
    ours = chat_inputs(processor, "any", [pictures], [Conversation((asked,))])
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    assert str(Conversation((asked,))) != str(Conversation((first,)))


def test_a_template_whose_assistant_says_plain_text(checkpoint_of, pictures):
    """As that of Mistral's checkpoints: lists of parts are for the user only."""
    processor, last = load_processor(checkpoint_of("Pixtral (LLaVA)")), "{%- endif %}{%- endfor %}"
    assert processor.chat_template.endswith(last)
    assistant = "{%- elif message['role'] == 'assistant' %}{{- message['content'] + '</s>' }}"
    processor.chat_template = processor.chat_template.removesuffix(last) + assistant + last
    (text,) = chat_inputs(processor, "any", pictures[:1], [conversation()], as_text=True)
    assert "[/INST]There is a dog.</s>[INST]And on the left?[/INST]" in text


# They leave out what the assistant said; place a picture in every turn; have no template.
@pytest.mark.parametrize("family", ["LLaVA-NeXT", ONE_ONLY, "PaliGemma"])
def test_a_chat_format_without_room_for_turns_is_refused(checkpoint_of, family, pictures):
    lvlm = load(checkpoint_of(family))
    refused = [(conversation(), pictures[:1]), *[(QUESTION, [pictures])] * (family == ONE_ONLY)]
    for prompt, shown in refused:
        for refuse in (lambda: lvlm.check_prompt(prompt, 2), lambda: lvlm.prepare(shown, [prompt])):  # noqa: B023
            with pytest.raises(SettingsError, match="one user message with one picture"):
                refuse()
    lvlm.prepare(pictures, [QUESTION] * 2)  # one each


@pytest.mark.parametrize("family", ALL)
def test_prompts_with_one_picture_and_with_two_are_decoded_as_in_the_paper(family, checkpoint_of, pictures):
    """And together in a batch they have the texts that each has alone, with several turns among them."""
    lvlm = load(checkpoint_of(family), max_new_tokens=3, dtype="float32")
    alone = [lvlm.prepare([each], [QUESTION]) for each in pictures]
    shown, prompts, asked = alone[:1], [QUESTION, "What do you see in it?"], [*pictures]
    if family != ONE_ONLY:
        shown.append(lvlm.prepare([pictures], [QUESTION]))
        one, other, both = (int(lvlm.find_image(inputs["input_ids"]).sum()) for inputs in (*alone, shown[1]))
        assert both == one + other
        asked, prompts = [*asked, pictures[::-1]], [*prompts, "What is there?"]
    for inputs in shown:
        if len({*inputs["input_ids"][lvlm.find_image(inputs["input_ids"])].tolist()}) == 1:
            by_the_letter(lvlm, inputs, 2)
    if family in ("Qwen2.5-VL", "Gemma 3", "Idefics3"):
        asked, prompts = [*asked, pictures[:1], pictures], [*prompts, conversation(2), conversation(0, 2)]
    together = lvlm.answer(lvlm.prepare(asked, prompts))
    each = [lvlm.answer(lvlm.prepare([one], [prompt]))[0] for one, prompt in zip(asked, prompts, strict=True)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in each]


def test_an_object_has_the_support_of_the_picture_that_shows_it_best(demo):
    """Each picture is asked about by itself: the largest support counts, and says which picture it is."""
    text = "There is a dog on a chair, and an umbrella with a cow."
    alone = [demo.check(path, text).objects for path in EXAMPLES[:3]]
    group = demo.check(EXAMPLES[:3], text).objects
    assert len(group) == 4
    for number, claim in enumerate(group):
        supports = [claims[number].support for claims in alone]
        assert claim.support == pytest.approx(max(supports), abs=1e-5)
        assert claim.image == 1 + supports.index(max(supports))
    assert len({claim.image for claim in group}) > 1
    assert all("image" not in claim.to_json() for claim in alone[0])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_several_pictures(demo, method):
    """What it says about two pictures in a batch with one is what it says about them alone."""
    lvlm, groups = under(demo, method, max_new_tokens=8), [EXAMPLES[:1], EXAMPLES[:2]]
    if method == "ict":  # whose default strength leaves little of the bundled model's texts
        lvlm = lvlm.under(lvlm.decoder.with_values(strength=2.0))
    texts = [result.text for result in lvlm.caption_many(groups, batch_size=2)]
    assert texts == [lvlm.caption(group).text for group in groups]
    assert texts[0] != texts[1]


def test_a_group_that_is_longer_than_the_context_is_refused(demo, pictures, monkeypatch):
    """The bundled model has 1,024 positions."""
    one, two = (demo.prepare([pictures[:1] * count], [QUESTION])["input_ids"].shape[1] for count in (1, 2))
    most = 1 + (1024 - one) // (two - one)
    demo.prepare([pictures[:1] * most], [QUESTION])
    length = one + (two - one) * most
    message = f"a prompt with {most + 1} pictures has {length:,} tokens, .* holds 1,024: shorten it, or give fewer"
    with pytest.raises(LongPromptError, match=message) as refused:
        demo.prepare([pictures[0], pictures[:1] * (most + 1)], [QUESTION] * 2)
    assert refused.value.tokens == length
    with monkeypatch.context() as patch:
        patch.setattr(type(demo), "context", length)
        demo.prepare([pictures[:1] * (most + 1)], [QUESTION])
    assert demo.answer_of([5] * 10, 64, 1014).warnings == ()
    assert demo.answer_of([5] * 10, 64, 1015).warnings == (
        "prompt and text have 1,025 tokens, past the model's context of 1,024",
    )


@pytest.mark.parametrize(
    ("stated", "rope", "context"),
    [
        (512, {"rope_type": "default", "rope_theta": 1e4}, 512),
        (512, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}, 512),
        (512, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        (512, {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, 1536),
    ],
)
def test_the_context_is_that_of_stretched_positions(demo, stated, rope, context):
    """Some configs state the length before they stretch it, others the one after."""
    config = copy.deepcopy(demo.model.config)
    text = config.get_text_config()
    text.max_position_embeddings = stated
    text.rope_parameters = rope
    assert type(demo).context.fget(SimpleNamespace(model=SimpleNamespace(config=config))) == context


def test_a_prompt_within_stretched_positions_is_not_refused(demo, pictures, monkeypatch):
    text = demo.model.config.get_text_config()
    image = as_picture(pictures[0]).open().image
    length = demo.prepare([image], ["Is there a dog?"])["input_ids"].shape[1]
    monkeypatch.setattr(text, "max_position_embeddings", length - 1)
    with pytest.raises(LongPromptError):
        demo.prepare([image], ["Is there a dog?"])
    monkeypatch.setattr(text, "rope_parameters", {**text.rope_parameters, "rope_type": "linear", "factor": 2.0})
    assert demo.prepare([image], ["Is there a dog?"])["input_ids"].shape[1] == length
