"""Requests of lmms-eval: their texts and losses; and the model itself."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli.errors import PictureError, SettingsError
from sira_cli.eval.lmms import answers, losses, plain_request, request_of
from sira_cli.methods.prompts import Conversation, Turn
from sira_cli.run.ways import PlainText

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "scene-2900000.png")
QUESTION = "Is there a dog in the image? Please answer this question with one word."


@pytest.fixture
def images(scenes) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sorted((scenes / "images").iterdir())]


def said(image, text: str) -> dict:
    return {"role": "user", "content": [{"type": "image", "url": image}, {"type": "text", "text": text}]}


def test_messages_become_turns(images):
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    request = request_of("pope test 3", [system, said(images[0], QUESTION)], {"max_new_tokens": 8, "until": ["\n\n"]})
    assert request.prompt == QUESTION
    assert len(request.pictures) == 1
    assert request.until == ("\n\n",)
    assert request.settings == (("max_new_tokens", 8), ("system", "Be brief."), ("temperature", 0.0))
    answer = {"role": "assistant", "content": [{"type": "text", "text": "No."}]}
    more = {"role": "user", "content": [{"type": "text", "text": "Are you"}, {"type": "text", "text": "sure?"}]}
    turns = request_of("pope test 3", [said(images[0], QUESTION), answer, more]).prompt
    assert turns == Conversation((Turn("user", QUESTION, 1), Turn("assistant", "No."), Turn("user", "Are you\nsure?")))


@pytest.mark.parametrize(
    ("given", "settings", "until"),
    [
        ({}, {"temperature": 0.0}, ()),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, {"temperature": 0.0}, ()),
        ({"temperature": 1, "top_k": 5, "min_p": None}, {"temperature": 1.0, "top_k": 5}, ()),
        ({"temperature": 0, "num_beams": 3, "top_k": 5}, {"num_beams": 3, "temperature": 0.0}, ()),
        ({"until": "\n", "image_aspect_ratio": "original"}, {"temperature": 0.0}, ("\n",)),
    ],
)
def test_settings_of_generation(images, given, settings, until):
    request = plain_request("pope test 3", QUESTION, images[:1], given)
    assert (dict(request.settings), request.until) == (settings, until)


@pytest.mark.parametrize(
    ("content", "generation", "error"),
    [
        ("Hello", {}, "t: has no picture"),
        ([{"type": "video", "url": "a.mp4"}], {}, "t: has video of the user"),
        ([{"type": "image", "url": EXAMPLE}], {"temperature": 1, "length_penalty": 5}, "t: sira has no length_penalty"),
    ],
)
def test_requests_that_are_refused(content, generation, error):
    with pytest.raises(SettingsError, match=error):
        request_of("t", [{"role": "user", "content": content}], generation)


def test_texts_are_those_of_the_model_alone(demo, images):
    """In batches, sorted by their settings, and cut where the task says."""
    under = demo.under(demo.preset.method("sira"), demo.preset.with_settings(max_new_tokens=24))
    asked = [plain_request(f"t {number}", "Describe this image.", [image]) for number, image in enumerate(images[:3])]
    words = under.caption(images[0], "Describe this image.").text.split()
    cut = {"until": [f" {words[3]}", f" {words[2]}"], "max_new_tokens": 12}
    asked += [plain_request("t cut", "Describe this image.", [images[0]], cut)]
    asked += [plain_request("t two", "Describe this image.", images[:2])]
    found = dict(answers(under, asked, 2, "caption"))
    for number in range(3):
        assert found[number].text == under.caption(images[number], "Describe this image.").text
    assert found[4].text == under.caption(images[:2], "Describe this image.").text != found[0].text
    assert found[3].text == " ".join(words[:2])


def test_a_conversation_is_answered_with_its_earlier_turns(demo, images):
    turns = [said(images[0], QUESTION), {"role": "assistant", "content": "No."}, {"role": "user", "content": "Sure?"}]
    request = request_of("t", turns)
    ((_, found),) = answers(demo, [request], 1, "ask")
    (alone,) = demo.answer(demo.prepare([images[0]], [request.prompt]))
    assert found.text == alone.text


def test_a_picture_that_is_gone_ends_the_evaluation(demo, images, tmp_path):
    asked = [plain_request("t", QUESTION, [picture]) for picture in (images[0], str(tmp_path / "gone.png"))]
    with pytest.raises(PictureError, match="gone"):
        list(answers(demo, asked, 2, "ask"))


def test_a_batch_that_does_not_fit_into_memory_is_halved(demo, images, monkeypatch, caplog):
    asked = [plain_request(f"t {number}", QUESTION, [image]) for number, image in enumerate(images[:3])]
    alone = [answer.text for _, answer in answers(demo, asked, 1, "ask")]
    decode = PlainText.answers

    def small(way, images, inputs, seeds):
        if len(seeds) > 1:
            raise torch.OutOfMemoryError("too much")
        return decode(way, images, inputs, seeds)

    monkeypatch.setattr(PlainText, "answers", small)
    assert [answer.text for _, answer in answers(demo, asked, 3, "ask")] == alone
    assert "out of memory with 3 requests at once, now 1" in caplog.text


@pytest.mark.parametrize("method", ["sira", "greedy"])
def test_losses_are_those_of_choices(demo, images, method):
    """The mean over a text's tokens of what `choose` sums, alone and in a batch of texts of other lengths."""
    under = demo.under(demo.preset.method(method))
    texts, expected = ["Yes", "No", "There is a dog and a very small tree"], []
    asked = [plain_request("t", QUESTION, [image]) for image in images[:2] for _ in texts]
    found = losses(under, asked, texts * 2, 6)
    for request in asked[:: len(texts)]:
        inputs = under.prepare([request.pictures[0].open().image], [QUESTION])
        (answer,) = under.choose(inputs, texts)
        row = inputs["input_ids"][0].tolist()
        counts = [len(under.vocabulary.encode_after(row, text)) for text in texts]
        sums = [choice["logprob"]["contrast"] for choice in answer.choices or ()]
        expected += [-total / count for total, count in zip(sums, counts, strict=True)]
    for measured in (found, losses(under, asked, texts * 2, 1)):
        assert [loss for loss, _ in measured] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(SettingsError, match="t: the choice ' ' has no tokens"):
        losses(under, asked[:1], [" "], 1)
    with pytest.raises(SettingsError, match="likelihood of a given answer needs method"):
        losses(demo.under(demo.preset.method("vcd")), asked[:1], ["Yes"], 1)
    decoded = [answer.text.split()[0].rstrip(".,") for _, answer in answers(under, asked[::3], 2, "ask")]
    best = [[likeliest for _, likeliest in found[at : at + 2]] for at in (0, 3)]
    assert best == [[word == "Yes", word == "No"] for word in decoded]


def test_the_entry_point_is_declared_and_does_not_import_lmms_eval():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    module, _, name = declared["lmms_eval.models"]["sira"].partition(":")
    entry = importlib.import_module(module)
    assert callable(getattr(entry, name))
    assert "lmms_eval" not in vars(entry)


def test_the_model_of_lmms_eval(demo, images, monkeypatch):
    """With the real package: a request as its task pope makes it, and one of a choice."""
    pytest.importorskip("lmms_eval")
    registry = importlib.import_module("lmms_eval.models.registry_v2").ModelRegistryV2()
    instances = importlib.import_module("lmms_eval.api.instance")
    instance, unwrapped = instances.Instance, instances.unwrap_generation_output  # what the evaluator does with outputs
    registry.register_manifest(importlib.import_module("sira_cli.eval.lmms").manifest())
    monkeypatch.setattr("sira_cli.eval.lmms_model.load", lambda preset, **settings: demo)
    document = {"images": [images[0]]}
    for simple in (False, True):
        made = registry.get_model_class("sira", force_simple=simple)
        model = made.create_from_arg_string("preset=demo,method=sira,alpha=0.5", {"batch_size": 2, "device": None})
        model.task_dict = {"pope": {"test": [document]}}
        visual, generation = (lambda given: given["images"]), {"max_new_tokens": 8, "until": ["\n\n"]}
        more = {"idx": 0, "metadata": {"task": "pope", "doc_id": 0, "repeats": 1}}
        arguments = (QUESTION, lambda given: [said(given["images"][0], QUESTION)], generation, 0, "pope", "test")
        if simple:
            arguments = (QUESTION, generation, visual, 0, "pope", "test")
        (result,) = model.generate_until([instance(request_type="generate_until", arguments=arguments, **more)])
        assert result.text == demo.ask(images[0], QUESTION).text
        assert result.token_counts.output_tokens > 0
        choices = [
            instance(request_type="loglikelihood", arguments=(QUESTION, f" {word}", visual, 0, "pope", "test"), **more)
            for word in ("Yes", "No")
        ]
        (yes, _), (no, _) = (unwrapped(pair)[0] for pair in model.loglikelihood(choices))
        assert (yes < no) == result.text.startswith("Yes")
    with pytest.raises(SettingsError, match="preset=NAME is needed"):
        made()
