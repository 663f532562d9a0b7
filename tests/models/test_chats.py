"""Several turns in the chat formats of real checkpoints, against transformers' own rendering and decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from sira_cli import load
from sira_cli.errors import SettingsError
from sira_cli.methods.prompts import Conversation, Turn
from sira_cli.models.processor import chat_inputs, load_processor

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


@pytest.mark.parametrize(
    "seen_in",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ((0,), (2,))), (0, 2)],
    ids=["first", "last", "both"],
)
@FAMILIES
def test_tokens_and_greedy_texts_are_those_of_transformers(checkpoint_of, family, seen_in):
    folder = checkpoint_of(family)
    lvlm, images = load(folder, method="greedy", max_new_tokens=6), pictures()[: len(seen_in)]
    processor = AutoProcessor.from_pretrained(folder) if "Qwen" not in family else lvlm.processor
    theirs = processor.apply_chat_template(
        their_messages(images, seen_in),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    lvlm.check_prompt(conversation(*seen_in))
    ours = lvlm.prepare([images], [conversation(*seen_in)])
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
    """As one that takes one text per message, and a checkpoint without any template."""
    processor = load_processor(llava_folder)
    one_text = (
        "{% for message in messages %}{% for part in message['content'] | selectattr('type', 'eq', 'image') %}"
        "<image>{% endfor %}{{ message['content'][-1]['text'] }}{% endfor %}"
    )
    text = "\n".join(filter(None, PARTS))
    for template, kind in ((one_text, "any"), (None, "llava")):
        processor.chat_template = processor.tokenizer.chat_template = template
        ours, plain = (
            chat_inputs(processor, kind, [pictures()], [prompt])["input_ids"].tolist()
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


def test_a_conversation_keeps_the_system_message_before_it(qwen_folder):
    processor = load_processor(qwen_folder)
    (text,) = chat_inputs(processor, "any", pictures()[:1], [conversation()], system="Be brief.", as_text=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
        "What is there?<|im_end|>\n<|im_start|>assistant\nThere is a dog.<|im_end|>\n<|im_start|>user\n"
        "And on the left?<|im_end|>\n<|im_start|>assistant\n"
    )
