"""A picture is encoded once for questions that follow each other, and the features are its own."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from sira_cli.models.encoded import MOST, EncodedPictures
from tests.support import census, tiny
from tests.support.helpers import generate_sira, left_pad


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch):
    """Have a list get an entry whenever a model's image encoder runs."""
    runs: list[int] = []

    def watched(model: Any) -> list[int]:
        body = type(model.base_model)
        encode = body.get_image_features
        counted = functools.wraps(encode)(lambda *args, **more: runs.append(1) or encode(*args, **more))
        monkeypatch.setattr(body, "get_image_features", counted)
        return runs

    return watched


def asked(case: tiny.Tiny, picture: int, question: int) -> dict[str, torch.Tensor]:
    """The case's prompt with another picture of the same size, and other text of another length behind it."""
    inputs = {**case.inputs, "pixel_values": tiny.pixels(*case.inputs["pixel_values"].shape, seed=picture)}
    shape = inputs["input_ids"].shape
    for name, value in inputs.items():
        if value.shape == shape:
            more = {"input_ids": 5 + question, "attention_mask": 1}.get(name, 0)
            inputs[name] = torch.nn.functional.pad(value, (0, question), value=more)
    return inputs


def same(found: Any, expected: Any) -> bool:
    """Whether tokens are equal, and the logits of every step."""
    steps = zip(found[1], expected[1], strict=True)
    return torch.equal(found[0], expected[0]) and all(torch.equal(a.contrast, b.contrast) for a, b in steps)


def test_the_next_question_gets_the_same_numbers(family: tiny.Tiny, runs):
    encoded, count = EncodedPictures(), runs(family.model)
    for picture in range(2):
        for question in range(2):
            inputs = asked(family, picture, question)
            expected = generate_sira(family.model, inputs, max_new_tokens=3)
            count.clear()
            with encoded.used_by(family.model, 1):
                assert same(generate_sira(family.model, inputs, max_new_tokens=3), expected)
            assert len(count) == (question == 0)
    assert "get_image_features" not in vars(family.model.base_model)


def test_a_batch_encodes_each_picture_once(every_family: tiny.Tiny, runs):
    family, encoded, count = every_family, EncodedPictures(), runs(every_family.model)
    batches = [((0, 0), (0, 2), (1, 1)), ((1, 2), (2, 0), (3, 1))]  # picture and question
    for batch, new in zip(batches, (2, 2), strict=True):
        rows = [asked(family, *one) for one in batch]
        count.clear()
        with encoded.used_by(family.model, len(rows)):
            tokens, steps = generate_sira(family.model, left_pad(rows), max_new_tokens=3)
        assert len(count) == new
        for row, inputs in enumerate(rows):
            alone, expected = generate_sira(family.model, inputs, max_new_tokens=3)
            assert tokens[row].tolist() == alone[0].tolist()
            for step, other in zip(steps, expected, strict=True):
                torch.testing.assert_close(step.contrast[row], other.contrast[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["aria", "gemma4_unified", "glm4v", "llava_onevision", "molmo2", "qwen3_vl_moe"])
def test_other_types_keep_a_picture_too(kind: str, runs):
    case, encoded = census.case_of(kind), EncodedPictures()
    count = runs(case.model)
    name = next(name for name in ("pixel_values", "images") if name in case.inputs)
    for number, picture in enumerate((0, 0, 1, 0)):
        inputs = {**case.inputs, name: case.inputs[name].flip(-1) if picture else case.inputs[name]}
        expected = generate_sira(case.model, inputs, max_new_tokens=3)
        count.clear()
        with encoded.used_by(case.model, 1):
            assert same(generate_sira(case.model, inputs, max_new_tokens=3), expected)
        assert len(count) == (number in (0, 2))
    with encoded.used_by(case.model, 2):  # a batch: which part is a picture is not known
        generate_sira(case.model, case.inputs, max_new_tokens=1)
    assert len(count) == 1


@pytest.mark.parametrize(
    ("name", "part", "new"),
    [
        ("LLaVA-1.5", "pixel_values", 2),
        ("Pixtral (LLaVA)", "image_sizes", 2),
        ("Qwen2-VL", "pixel_values", 2),
        ("InternVL", "tiles", 1),  # its encoder does not learn which tiles are one picture; who asks one question does
    ],
)
def test_another_picture_is_encoded(name: str, part: str, new: int, runs):
    case = tiny.FAMILIES[name]()
    first = changed = case.inputs
    if part == "tiles":
        first = changed = tiny.with_mask(tiny.prompt(images=48), pixel_values=tiny.pixels(3, 3, 64, 64))
    elif part == "image_sizes":
        changed = {**first, part: first[part].clone(), "input_ids": tiny.prompt(images=8)}
        changed[part][0, 0] = 16
        changed["attention_mask"] = torch.ones_like(changed["input_ids"])
    else:
        changed = {**first, part: first[part].clone()}
        changed[part].view(-1)[-1] += 1e-3
    count = runs(case.model)
    with EncodedPictures().used_by(case.model, 1):
        found = [generate_sira(case.model, inputs, max_new_tokens=2) for inputs in (first, changed)]
    assert len(count) == new
    assert all(
        same(each, generate_sira(case.model, inputs, max_new_tokens=2))
        for each, inputs in zip(found, (first, changed), strict=True)
    )


@pytest.mark.parametrize("name", ["LLaVA-1.5", "LLaVA-NeXT", "Qwen3-VL"])
def test_beams_which_repeat_the_features_leave_them_as_they_were(name: str, runs):
    case = tiny.FAMILIES[name]()
    expected, count = generate_sira(case.model, case.inputs, num_beams=3)[0], runs(case.model)
    with EncodedPictures().used_by(case.model, 1):
        found = [generate_sira(case.model, case.inputs, num_beams=3)[0] for _ in range(2)]
        assert len(count) == 1
        if name == "Qwen3-VL":  # who replaces features keeps that to himself, as `generate` does for beams
            pixels = {name: case.inputs[name] for name in ("pixel_values", "image_grid_thw")}
            outputs = [case.model.base_model.get_image_features(**pixels) for _ in range(2)]
            outputs[0].pooler_output = outputs[0].deepstack_features[0] = None
            assert None not in (outputs[1].pooler_output, outputs[1].deepstack_features[0])
    assert all(torch.equal(each, expected) for each in found)


def test_few_pictures_are_kept_and_new_ones_go_together(llava: tiny.Tiny, runs):
    count = runs(llava.model)
    with EncodedPictures().used_by(llava.model, 1):
        for picture in (*range(MOST + 1), 0, MOST):
            generate_sira(llava.model, asked(llava, picture, 0), max_new_tokens=1)
    assert len(count) == MOST + 2  # the first one again, the last one not
    rows = left_pad([asked(llava, picture, 0) for picture in range(3)])
    count.clear()
    with EncodedPictures().used_by(llava.model, 3):
        generate_sira(llava.model, rows, max_new_tokens=1)
    assert len(count) == 1
    with pytest.raises(ZeroDivisionError), EncodedPictures().used_by(llava.model, 1):
        raise ZeroDivisionError
    assert "get_image_features" not in vars(llava.model.base_model)
