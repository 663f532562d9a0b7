"""The little world: exact, deterministic, and spoken of truly; questions about it, and captions counted by hand."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest

from sira_cli.demo import scenes as world
from sira_cli.demo.measure import FIGURES, SceneReport, count, read_figures
from sira_cli.demo.questions import SPLITS, Questions, caption, held_out, mentions
from sira_cli.demo.scenes import OBJECTS, PLACES, Scene, SceneObject, make_scene, render
from sira_cli.eval.statistics import Tally
from tools import card
from tools.language import questions
from tools.pictures import LABELS, MIN_PATCH_SHARE, patch_labels
from tools.support import from_json

SCENES = [make_scene(seed, broken=seed % 2 == 1) for seed in range(120)]


def test_a_seed_decides_everything():
    ranges = sorted((world.TRAINING_SEEDS, world.VALIDATION_SEEDS, world.TEST_SEEDS), key=lambda seeds: seeds.start)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(ranges))
    assert make_scene(7) == make_scene(7)
    assert make_scene(7) != make_scene(8)
    assert make_scene(7) != make_scene(7, broken=True)
    picture, seen = render(make_scene(7))
    again, seen_again = render(make_scene(7))
    assert picture.tobytes() == again.tobytes()
    assert np.array_equal(seen, seen_again)


def test_the_world_is_the_one_that_the_model_was_trained_on():
    texts = (f"{of} {caption(of, np.random.default_rng(of.seed))}" for of in SCENES)
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "5ec3a005feec1d84"
    assert {name for place in PLACES.values() for name in place.objects} == {*OBJECTS}


def test_answers_are_true():
    asked: Counter[str] = Counter()
    for of in SCENES:
        for turn in questions(of, np.random.default_rng(of.seed)):
            named = [name for _, _, name in mentions(turn.prompt)]
            things = of.objects.get(named[0], []) if named else []
            if not named:
                sort = "place"
                assert turn.answer in (f"A {of.place}.", f"An {of.place}.")
            elif "olor" in turn.prompt:
                sort = "color"
                assert {thing.color.capitalize() for thing in things} == {turn.answer}
            elif turn.prompt.startswith("How many"):
                sort = "count"
                assert ("No", "One", "Two", "Three").index(turn.answer) == len(things)
            elif turn.answer in ("Yes", "No"):
                sort = turn.answer
                assert (turn.answer == "Yes") == bool(things)
            else:
                sort = "where"
                (thing,) = things
                x = (thing.box[0] + thing.box[2]) / 2 / world.SIDE
                side = "On the left." if x < 1 / 3 else "In the middle." if x < 2 / 3 else "On the right."
                assert turn.answer == side
            asked[sort] += 1
    assert asked["Yes"] == asked["No"]
    assert min(asked.values()) > 60
    assert len(asked) == 6


def test_mentions_are_whole_words_the_longest_first():
    text = "Two people, a Traffic light, a couch, some cars; no cart, a mugs' game and an apple-tree."
    assert [name for _, _, name in mentions(text)] == [
        *("person", "traffic light", "sofa", "car", "cup", "apple", "tree")
    ]
    assert [text[start:end] for start, end, _ in mentions(text)][:3] == ["people", "Traffic light", "couch"]


def test_patch_labels_equal_a_slow_count():
    for of in SCENES[:5]:
        _, seen = render(of)
        labels = patch_labels(of, seen)
        middles = [((t.box[0] + t.box[2]) // 2 // 48, (t.box[1] + t.box[3]) // 2 // 48) for t in of.things]
        assert labels.shape == (64, LABELS)
        for patch in range(64):
            row, column = divmod(patch, 8)
            tile = seen[48 * row : 48 * row + 48, 48 * column : 48 * column + 48]
            seen_here = [(tile == index).sum() >= MIN_PATCH_SHARE * 48 * 48 for index in range(1, 1 + len(of.things))]
            here = {word for each in itertools.compress(of.things, seen_here) for word in (each.name, each.color)}
            assert labels[patch].tolist() == [
                *(word in here for word in (*OBJECTS, *world.COLORS)),
                (column, row) in middles,
            ]


def test_captions_counted_by_hand():
    said = {
        "cup bowl table": ("A red cup and a blue cup. A dog and a dog.", "A cup and a dog."),
        "cup": ("There is one mug here.", "A bowl."),
        "apple": ("Nothing.", "Nothing."),
    }
    tallies = {"captions": {"greedy": Tally(), "sira": Tally()}}
    for number, (names, texts) in enumerate(said.items()):
        scene = Scene(number, "kitchen", tuple(SceneObject(name, "red", (0, 0, 40, 40)) for name in names.split()))
        for method, text in zip(tallies["captions"], texts, strict=True):
            count(tallies, method, scene, text, [], [])
    report = SceneReport.of(tallies, {})
    found = {name: figure.value for name, figure in report.figures["greedy"].items()}
    assert found["CHAIRs"] == pytest.approx(100 / 3)
    assert found["CHAIRi"] == pytest.approx(100 * 2 / 5)  # repeats count
    assert found["coverage"] == pytest.approx(100 * 2 / 5)  # each object once
    assert found["words"] == pytest.approx((12 + 5 + 1) / 3)
    assert report.outcomes == {"sira": {"fewer": 1, "more": 1, "as many": 1}}
    assert report.differences["sira"]["CHAIRs"].value == pytest.approx(100 / 3)


def test_questions_are_balanced_and_of_their_split():
    questions, typical = Questions(sample=300), {split: list[bool]() for split in SPLITS}
    assert [held_out(seed).broken for seed in world.TEST_SEEDS[:4]] == [False, True, False, True]
    for scene in map(held_out, world.TEST_SEEDS[:200]):
        asked = questions.about(scene)
        assert asked == questions.about(scene)
        assert len({question.name for question in asked}) == len(asked)
        assert all(question.expected == (question.name in scene.objects) for question in asked)
        assert sum(question.expected for question in asked) == min(3, len(scene.objects))
        for split in SPLITS:
            absent = [question.name for question in asked if split in question.splits and not question.expected]
            assert len(absent) == 3
            if split == "popular":  # the commonest absent objects
                rarest = min(questions._frequency[name] for name in absent)
                left_out = OBJECTS.keys() - {*scene.objects, *absent}
                assert all(questions._frequency[name] <= rarest for name in left_out)
            typical[split] += [name in PLACES[scene.place].objects for name in absent if not scene.broken]
    assert np.mean(typical["adversarial"]) > 0.8 > 0.4 > np.mean(typical["random"])


def test_figures_are_written_as_they_are_read(tmp_path):
    shipped, file = read_figures(), tmp_path / "figures.json"
    card.write_figures(SceneReport.from_json(shipped), from_json(shipped["words"]), shipped["tags"], file)
    assert file.read_bytes() == FIGURES.read_bytes()
