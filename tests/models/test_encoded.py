"""A picture is encoded once for questions that follow each other, and the features are its own."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from sira_cli.models.encoded import MOST, EncodedPictures
from tests.support import tiny
from tests.support.helpers import case_of, generate_sira, left_pad


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch):
    """Have a list get an entry whenever a model's image encoder runs."""

    def watched(model: Any) -> list[int]:
        runs: list[int] = []
        encode = type(model.base_model).get_image_features
        counted = functools.wraps(encode)(lambda *args, **more: runs.append(1) or encode(*args, **more))
        monkeypatch.setattr(type(model.base_model), "get_image_features", counted)
        return runs

    return watched


def asked(case: tiny.Tiny, picture: int, question: int) -> dict[str, torch.Tensor]:
    """The case's prompt with another picture of the same size, and other text of another length behind it."""
    pixels = next(name for name in ("pixel_values", "images") if name in case.inputs)
    inputs = {**case.inputs, pixels: tiny.pixels(*case.inputs[pixels].shape, seed=picture)}
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


@pytest.mark.parametrize("name", [*tiny.REPRESENTATIVES, "Pixtral (LLaVA)", "aria", "molmo2", "qwen3_vl_moe"])
def test_the_next_question_gets_the_same_numbers(name: str, runs):
    """Also in types that no table lists."""
    case, encoded = case_of(name), EncodedPictures()
    count = runs(case.model)
    for picture in range(2):
        for question in range(2):
            inputs = asked(case, picture, question)
            expected = generate_sira(case.model, inputs, max_new_tokens=3)
            count.clear()
            with encoded.used_by(case.model, 1):
                assert same(generate_sira(case.model, inputs, max_new_tokens=3), expected)
            assert len(count) == (question == 0)
    assert "get_image_features" not in vars(case.model.base_model)
    if name not in tiny.FAMILIES:  # a batch: which part is a picture is not known
        count.clear()
        with encoded.used_by(case.model, 2):
            generate_sira(case.model, case.inputs, max_new_tokens=1)
        assert len(count) == 1


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


@pytest.mark.parametrize("name", ["LLaVA-1.5", "LLaVA-NeXT", "Qwen3-VL"])
def test_beams_which_repeat_the_features_leave_them_as_they_were(name: str, runs):
    case = tiny.FAMILIES[name]()
    expected, count = generate_sira(case.model, case.inputs, num_beams=3)[0], runs(case.model)
    with EncodedPictures().used_by(case.model, 1):
        found = [generate_sira(case.model, case.inputs, num_beams=3)[0] for _ in range(2)]
        assert len(count) == 1
    assert all(torch.equal(each, expected) for each in found)


def test_few_pictures_are_kept_and_new_ones_go_together(llava: tiny.Tiny, runs):
    count = runs(llava.model)
    with EncodedPictures().used_by(llava.model, 1):
        for picture in (*range(MOST + 1), 0, MOST):
            generate_sira(llava.model, asked(llava, picture, 0), max_new_tokens=1)
    assert len(count) == MOST + 2  # the first one again, the last one not
    count.clear()
    with EncodedPictures().used_by(llava.model, 3):
        generate_sira(llava.model, left_pad([asked(llava, picture, 0) for picture in range(3)]), max_new_tokens=1)
    assert len(count) == 1
    with pytest.raises(ZeroDivisionError), EncodedPictures().used_by(llava.model, 1):
        raise ZeroDivisionError
    assert "get_image_features" not in vars(llava.model.base_model)
