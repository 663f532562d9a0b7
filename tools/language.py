"""The requests and questions that the bundled model is trained on, with their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from sira_cli.demo.questions import LEXICON, NUMBERS, article, caption, choose, kinds_in_order, yes_no_question
from sira_cli.demo.scenes import COLORS, OBJECTS, PLACES, Scene, make_scene
from sira_cli.eval.benchmark import ONE_WORD
from sira_cli.models.schema import Schema

CAPTION_PROMPTS = (
    "Please describe this image in detail.",
    "Describe this image.",
    "Please help me describe the image in detail.",
    "What is in this picture?",
    "Write a caption for this image.",
)

TAGS_PROMPT = Schema.of("tags").prompt

YES_NO = (
    "Is there {a} {name} in the image?",
    "Is there {a} {name} in this picture?",
    "Does the image show {a} {name}?",
    "Can you see {a} {name}?",
    "Is there {a} {name}?",
)
COLOR = ("What color is the {name}?", "What is the color of the {name}?", "Which color does the {name} have?")
COUNT = ("How many {names} are there?", "How many {names} are in the image?", "How many {names} can you see?")
PLACE = ("What place is this?", "Where was this picture taken?", "What kind of place does the image show?")

TYPICAL_SHARE = 0.6  # of questions about absent objects, those that ask for a typical object of the place
SEVERAL_SHARE = 0.5  # of the questions about a number, if a kind has several objects


@dataclass(frozen=True)
class Exchange:
    """A question or request, and the answer to it."""

    prompt: str
    answer: str


def tags(scene: Scene) -> str:
    """Return every kind of object as a JSON list."""
    return json.dumps(kinds_in_order(scene))


def questions(
    scene: Scene, rng: np.random.Generator, yes_no: int = 6, others: int = 4, share: float = TYPICAL_SHARE
) -> list[Exchange]:
    """Ask `yes_no` questions whether something is in the scene, as often yes as no, and at most `others` other ones.

    The others ask for a colour, a number and the kind of place: one of each. `share`: of typical objects of the place
    among the absent ones that are asked about.
    """
    present = list(scene.objects)
    absent = [name for name in OBJECTS if name not in scene.objects]
    typical = [name for name in PLACES[scene.place].objects if name in absent]
    turns = []
    for number in range(yes_no):
        missing = typical if typical and rng.random() < share else absent
        name = choose(rng, present if number % 2 else missing)
        suffix = ONE_WORD if rng.random() < 0.3 else ""
        turns.append(Exchange(yes_no_question(name, choose(rng, YES_NO)) + suffix, "Yes" if number % 2 else "No"))
    return turns + _other_questions(scene, rng)[:others]


def _other_questions(scene: Scene, rng: np.random.Generator) -> list[Exchange]:
    """Ask one question of each other kind, shuffled."""
    present = list(scene.objects)
    name = choose(rng, present)
    turns = [Exchange(choose(rng, COLOR).format(name=name), scene.objects[name][0].color.capitalize())]
    several = [name for name, things in scene.objects.items() if len(things) > 1]
    if several and rng.random() < SEVERAL_SHARE:
        name = choose(rng, several)
    else:
        name = choose(rng, present if rng.random() < 0.85 else [name for name in OBJECTS if name not in present])
    amount = NUMBERS[len(scene.objects.get(name, ()))]
    turns.append(Exchange(choose(rng, COUNT).format(names=OBJECTS[name].plural), amount.capitalize()))
    turns.append(Exchange(choose(rng, PLACE), f"{article(scene.place).capitalize()} {scene.place}."))
    return [turns[index] for index in rng.permutation(len(turns))]


def corpus(seed: int, size: int) -> list[str]:
    """Return texts to train a tokenizer on, with every word of the world."""
    texts = [*CAPTION_PROMPTS, ONE_WORD, *COLORS, *NUMBERS, *PLACES, *LEXICON]
    for name in OBJECTS:
        texts += [yes_no_question(name, template) for template in YES_NO]
    for index in range(size):
        rng = np.random.default_rng([seed, index, 2])
        scene = make_scene(index)
        texts += [caption(scene, rng), f"{TAGS_PROMPT}\n{tags(scene)}"]
        texts += [f"{turn.prompt} {turn.answer}" for turn in questions(scene, rng)]
    return texts
