"""A picture is encoded once for questions that follow each other, and the features are its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sira_cli.models.encoded import MOST, EncodedPictures
from tests.support import census, tiny
from tests.support.helpers import generate_sira, left_pad
from tests.support.prompts import qwen_prompts


@contextmanager
def encodings(model: Any) -> Iterator[list[int]]:
    """Yield a list that gets an entry whenever the model's image encoder runs."""
    runs: list[int] = []
    handle = model.get_encoder(modality="image").register_forward_hook(lambda *_: runs.append(1))
    try:
        yield runs
    finally:
        handle.remove()


def asked(case: tiny.Tiny, picture: int, question: int) -> dict[str, torch.Tensor]:
    """The case's prompt with another picture of the same size, and other text of another length behind it."""
    inputs = {**case.inputs, "pixel_values": tiny.pixels(*case.inputs["pixel_values"].shape, seed=picture)}
    for _ in range(question):
        more = dict.fromkeys(case.inputs, 0) | {"input_ids": 5 + question, "attention_mask": 1}
        for name, value in inputs.items():
            if value.shape == inputs["input_ids"].shape and name != "input_ids":
                inputs[name] = torch.nn.functional.pad(value, (0, 1), value=more[name])
        inputs["input_ids"] = torch.nn.functional.pad(inputs["input_ids"], (0, 1), value=5 + question)
    return inputs


def logits(steps: Any) -> torch.Tensor:
    return torch.stack([step.contrast for step in steps])  # [N, B, V]


def test_the_next_question_gets_the_same_numbers(family: tiny.Tiny):
    encoded = EncodedPictures()
    for picture in range(2):
        for question in range(2):
            inputs = asked(family, picture, question)
            expected = generate_sira(family.model, inputs, max_new_tokens=3)
            with encodings(family.model) as runs, encoded.used_by(family.model, 1):
                found = generate_sira(family.model, inputs, max_new_tokens=3)
            assert len(runs) == (question == 0)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(logits(found[1]), logits(expected[1]))
    assert "get_image_features" not in vars(family.model.base_model)


def test_a_batch_encodes_each_picture_once(every_family: tiny.Tiny):
    family = every_family
    encoded = EncodedPictures()
    batches = [((0, 0), (0, 2), (1, 1)), ((1, 2), (2, 0), (2, 1))]  # picture and question
    for batch, new in zip(batches, (2, 1), strict=True):
        rows = [asked(family, *one) for one in batch]
        with encodings(family.model) as runs, encoded.used_by(family.model, len(rows)):
            tokens, steps = generate_sira(family.model, left_pad(rows), max_new_tokens=3)
        assert len(runs) == new
        for row, inputs in enumerate(rows):
            alone, expected = generate_sira(family.model, inputs, max_new_tokens=3)
            assert tokens[row].tolist() == alone[0].tolist()
            torch.testing.assert_close(logits(steps)[:, row], logits(expected)[:, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["aria", "gemma4_unified", "glm4v", "llava_onevision", "molmo2", "qwen3_vl_moe"])
def test_other_types_keep_a_picture_too(kind: str, monkeypatch: pytest.MonkeyPatch):
    case, encoded, runs = census.case_of(kind), EncodedPictures(), []
    body = type(case.model.base_model)
    encode = body.get_image_features
    monkeypatch.setattr(
        body,
        "get_image_features",
        functools.wraps(encode)(lambda *args, **more: runs.append(1) or encode(*args, **more)),
    )
    for number, picture in enumerate((0, 0, 1, 0)):
        name = next(name for name in ("pixel_values", "images") if name in case.inputs)
        value = case.inputs[name]
        inputs = {**case.inputs, name: value if picture == 0 else value.flip(-1)}
        expected = generate_sira(case.model, inputs, max_new_tokens=3)
        runs.clear()
        with encoded.used_by(case.model, 1):
            found = generate_sira(case.model, inputs, max_new_tokens=3)
        assert len(runs) == (number in (0, 2))
        assert torch.equal(logits(found[1]), logits(expected[1]))
    with encoded.used_by(case.model, 2):  # a batch: which part is a picture is not known
        generate_sira(case.model, case.inputs, max_new_tokens=1)
    assert len(runs) == 1


def test_pictures_of_any_size():
    model, rows = tiny.qwen("2.5").model, qwen_prompts()
    encoded = EncodedPictures()
    for batch, new in (([0, 1, 1], 2), ([1, 2, 0], 1)):
        with encodings(model) as runs, encoded.used_by(model, 3):
            tokens, _ = generate_sira(model, left_pad([rows[number] for number in batch]))
        assert len(runs) == new
        for row, number in enumerate(batch):
            assert tokens[row].tolist() == generate_sira(model, rows[number])[0][0].tolist()


def test_a_picture_in_tiles():
    """InternVL's encoder does not learn which tiles are one picture; who asks one question does."""
    case = tiny.FAMILIES["InternVL"]()
    inputs = tiny.with_mask(tiny.prompt(images=48), pixel_values=tiny.pixels(3, 3, 64, 64))
    encoded = EncodedPictures()
    with encodings(case.model) as runs, encoded.used_by(case.model, 1):
        first = generate_sira(case.model, inputs, max_new_tokens=2)
        again = generate_sira(case.model, inputs, max_new_tokens=2)
    assert len(runs) == 1
    assert torch.equal(logits(first[1]), logits(again[1]))
    assert torch.equal(logits(first[1]), logits(generate_sira(case.model, inputs, max_new_tokens=2)[1]))


@pytest.mark.parametrize(
    ("name", "part"), [("LLaVA-1.5", "pixel_values"), ("Pixtral (LLaVA)", "image_sizes"), ("Qwen2-VL", "pixel_values")]
)
def test_another_picture_is_encoded(name: str, part: str):
    case = tiny.FAMILIES[name]()
    changed = {**case.inputs, part: case.inputs[part].clone()}
    if part == "pixel_values":
        changed[part].view(-1)[-1] += 1e-3
    else:
        changed[part][0, 0] = 16
        changed["input_ids"] = tiny.prompt(images=8)
        changed["attention_mask"] = torch.ones_like(changed["input_ids"])
    with encodings(case.model) as runs, EncodedPictures().used_by(case.model, 1):
        for inputs in (case.inputs, changed):
            generate_sira(case.model, inputs, max_new_tokens=1)
    assert len(runs) == 2


@pytest.mark.parametrize("name", ["LLaVA-1.5", "LLaVA-NeXT", "Qwen3-VL"])
def test_beams_which_repeat_the_features_leave_them_as_they_were(name: str):
    case = tiny.FAMILIES[name]()
    expected = generate_sira(case.model, case.inputs, num_beams=3)[0]
    with encodings(case.model) as runs, EncodedPictures().used_by(case.model, 1):
        found = [generate_sira(case.model, case.inputs, num_beams=3)[0] for _ in range(3)]
    assert len(runs) == 1
    assert all(torch.equal(each, expected) for each in found)


def test_who_replaces_features_keeps_that_to_himself():
    """As `generate` does for beams."""
    case = tiny.FAMILIES["Qwen3-VL"]()
    pixels = {name: case.inputs[name] for name in ("pixel_values", "image_grid_thw")}
    (expected,) = case.model.base_model.get_image_features(**pixels).pooler_output
    with EncodedPictures().used_by(case.model, 1):
        for _ in range(3):
            output = case.model.base_model.get_image_features(**pixels)
            assert torch.equal(output.pooler_output[0], expected)
            output.pooler_output = output.deepstack_features[0] = None


def test_few_pictures_are_kept_and_new_ones_go_together(llava: tiny.Tiny, monkeypatch):
    encoded = EncodedPictures()
    with encodings(llava.model) as runs, encoded.used_by(llava.model, 1):
        for picture in (*range(MOST + 1), 0, MOST):
            generate_sira(llava.model, asked(llava, picture, 0), max_new_tokens=1)
    assert len(runs) == MOST + 2  # the first one again, the last one not
    rows = left_pad([asked(llava, picture, 0) for picture in range(3)])
    with encodings(llava.model) as runs, EncodedPictures().used_by(llava.model, 3):
        generate_sira(llava.model, rows, max_new_tokens=1)
    assert len(runs) == 1
    monkeypatch.setattr("sira_cli.models.encoded.TESTED", ())  # a type outside the families: each time
    with encodings(llava.model) as runs, EncodedPictures().used_by(llava.model, 1), torch.no_grad():
        for _ in range(2):
            llava.model(**llava.inputs)
    assert len(runs) == 2
    with pytest.raises(ZeroDivisionError), EncodedPictures().used_by(llava.model, 1):
        raise ZeroDivisionError
    assert "get_image_features" not in vars(llava.model.base_model)
