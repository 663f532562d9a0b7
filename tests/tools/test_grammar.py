"""The checker of the drawn language: it takes all captions that the world writes, and finds faults in others."""

from __future__ import annotations

import numpy as np
import pytest

from sira_cli.demo.questions import caption, held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, Scene, SceneObject
from tools.grammar import broken_sentences, instances, is_broken, is_right


def test_every_caption_of_the_world_is_right_and_names_what_exists():
    for seed in VALIDATION_SEEDS[:300]:
        scene = held_out(seed)
        text = caption(scene, np.random.default_rng(seed))
        assert broken_sentences(text) == [], text
        assert instances(scene, text) == (len(scene.things), 0)


@pytest.mark.parametrize(
    "sentence",
    [
        "There is an car on the left.",
        "There is a cars on the left.",
        "There are two car.",
        "There are a car on the left.",
        "There is two cars.",
        "There is a car on the left, which are red.",
        "There are two cars, which is red.",
        "There is a car on the left and.",
        "There is a car on the left",
        "The image shows a park.",
    ],
)
def test_a_broken_sentence_is_found(sentence):
    text = f"The image shows a park. There is a dog on the left. {sentence}"
    assert broken_sentences(text) == [sentence]
    assert all(map(is_broken, (text, "", "There is a dog on the left.")))  # also no text, and one without its place


def test_instances_are_counted_by_kind():
    box = (0, 0, 9, 9)
    scene = Scene(1, "park", (SceneObject("dog", "red", box), SceneObject("dog", "red", box)))
    text = "There is a dog on the left and a puppy on the right. There are two dogs. There is a cat in the middle."
    assert instances(scene, text) == (4, 2)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("There is a sofa on the right, which is gray. There is a ball on the left and an apple on the left.", True),
        ("There is a sofa on the right, which is red. There is a ball on the left and an apple on the left.", False),
        ("There is a sofa on the left. There is a ball on the left and an apple on the left.", False),
        ("There is a sofa on the right. There is a ball on the left.", False),
        ("There are two sofas on the right. There is a ball on the left and an apple on the left.", False),
        ("There is a sofa on the right. There is a ball and a dog. There is an apple on the left.", False),
        ("There is a sofa on the right and a sofa on the right. There is a ball and an apple.", False),
        ("There is a sofa on the right. There is a ball and an apple", False),
    ],
)
def test_a_caption_that_is_right_throughout(text, right):
    """Scene 2,900,007: a gray sofa on the right, a yellow ball on the left, a red apple left of the middle."""
    assert is_right(held_out(2_900_007), f"The image shows an office. {text}") is right
