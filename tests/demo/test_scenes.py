"""The little world: exact, deterministic, spoken of truly, counted by hand, and exported in the benchmarks' formats."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sira_cli.demo import scenes as world
from sira_cli.demo.export import export, file_name
from sira_cli.demo.measure import SceneReport, count
from sira_cli.demo.questions import SPLITS, Questions, caption, contents, held_out, mentions, yes_no_question
from sira_cli.demo.scenes import OBJECTS, PLACES, TEST_SEEDS, Scene, SceneObject, make_scene, render
from sira_cli.eval.statistics import Tally
from tests.support.eval.writing import read
from tools.language import questions

SCENES = [make_scene(seed, broken=seed % 2 == 1) for seed in range(120)]


def test_a_seed_decides_everything():
    ranges = sorted((world.TRAINING_SEEDS, world.VALIDATION_SEEDS, TEST_SEEDS), key=lambda seeds: seeds.start)
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
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "9bb70f42a23269bd"
    assert {name for place in PLACES.values() for name in place.objects} == {*OBJECTS}


def test_answers_are_true():
    asked: Counter[str] = Counter()
    for of in SCENES:
        for turn in questions(of, np.random.default_rng(of.seed)):
            named = [name for _, _, name in mentions(turn.prompt)]
            things = of.objects.get(named[0], []) if named else []
            if not named:
                sort, true = "place", [f"A {of.place}.", f"An {of.place}."]
            elif "olor" in turn.prompt:
                ((sort, *true),) = {("color", thing.color.capitalize()) for thing in things}
            elif turn.prompt.startswith("How many"):
                sort, true = "count", [("No", "One", "Two", "Three")[len(things)]]
            else:
                sort, true = turn.answer, ["Yes" if things else "No"]
            assert turn.answer in true
            asked[sort] += 1
    assert asked["Yes"] == asked["No"]
    assert min(asked.values()) > 60
    assert len(asked) == 5


def test_several_of_a_kind_stand_side_by_side_in_full_view():
    for of in SCENES:
        _, seen = render(of)
        for things in of.objects.values():
            if len(things) == 1:
                continue
            boxes = [thing.box for thing in things]
            for (_, top, right, foot), (left, other_top, _, other_foot) in itertools.pairwise(boxes):
                assert (top, foot) == (other_top, other_foot)
                assert 0 <= left - right < 0.25 * (right - boxes[0][0])
            pixels = [(seen == 1 + of.things.index(thing)).sum() for thing in things]
            assert min(pixels) > max(pixels) / 2
            assert {thing.strength for thing in things} == {1.0}


def test_contents_are_kinds_with_their_numbers():
    boxes = [(10 * number, 0, 10 * number + 8, 9) for number in range(3)]
    things = [SceneObject(name, "red", box) for name, box in zip(("person", "bus", "person"), boxes, strict=True)]
    assert contents(Scene(1, "street", tuple(things))) == "bus, 2 people"


def test_mentions_are_whole_words_the_longest_first():
    text = "Two people, a Traffic light, a couch, some cars; no cart, a mugs' game and an apple-tree."
    assert [name for _, _, name in mentions(text)] == [
        *("person", "traffic light", "sofa", "car", "cup", "apple", "tree")
    ]
    assert [text[start:end] for start, end, _ in mentions(text)][:3] == ["people", "Traffic light", "couch"]


def test_captions_counted_by_hand():
    said = {
        "cup bowl table": ("A red cup and a blue cup. A dog and a dog.", "A cup and a dog."),
        "cup": ("There is one mug here.", "A bowl."),
        "apple": ("Nothing.", "A dog."),
        "ball": ("Nothing.", "Nothing."),
    }
    tallies = {"captions": {"greedy": Tally(), "sira": Tally()}}
    for number, (names, texts) in enumerate(said.items()):
        scene = Scene(number, "kitchen", tuple(SceneObject(name, "red", (0, 0, 40, 40)) for name in names.split()))
        for method, text in zip(tallies["captions"], texts, strict=True):
            count(tallies, method, scene, text, [], [])
    report = SceneReport.of(tallies, {})
    found = {name: figure.value for name, figure in report.figures["greedy"].items()}
    assert found["CHAIRs"] == pytest.approx(100 / 4)
    assert found["CHAIRi"] == pytest.approx(100 * 2 / 5)  # repeats count
    assert found["coverage"] == pytest.approx(100 * 2 / 6)  # each object once
    assert found["words"] == pytest.approx((12 + 5 + 1 + 1) / 4)
    assert report.outcomes == {"sira": {"fewer": 1, "more": 2, "as many": 1}}
    assert report.differences["sira"]["CHAIRs"].value == pytest.approx(100 / 2)


def test_questions_are_balanced_and_of_their_split():
    questions, typical = Questions(sample=300), {split: list[bool]() for split in SPLITS}
    assert [held_out(seed).broken for seed in TEST_SEEDS[:4]] == [False, True, False, True]
    for scene in map(held_out, TEST_SEEDS[:200]):
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


# --- `sira demo --export`: the benchmarks' own formats, and nothing in them but what the scenes hold

EXPORTED = {file_name(of): of for of in map(held_out, TEST_SEEDS[:12])}


@pytest.fixture(scope="module", autouse=True)
def _few_training_scenes():
    """Which questions are asked follows from 2,000 training scenes, which take seconds to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sira_cli.demo.export.Questions", functools.partial(Questions, sample=100))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    done: list[int] = []
    export([*EXPORTED.values()], folder, done.append)
    assert done == list(range(1, len(EXPORTED) + 1))
    return folder


def amber(folder: Path) -> list[tuple[dict, dict]]:
    """Queries with their annotations."""
    queries, annotations = ((folder / name).read_text() for name in ("query/query_all.json", "annotations.json"))
    return list(zip(json.loads(queries), json.loads(annotations), strict=True))


def form(row: dict) -> dict[str, type]:
    return {key: type(value) for key, value in row.items()}


def test_pictures_are_those_of_the_scenes(folder):
    assert sorted(path.name for path in (folder / "images").iterdir()) == sorted(EXPORTED)
    for name, of in EXPORTED.items():
        with Image.open(folder / "images" / name) as saved:
            assert saved.mode == "RGB"
            assert saved.tobytes() == render(of)[0].tobytes()


@pytest.mark.parametrize("split", SPLITS)
def test_pope_asks_for_yes_and_no_by_turns_and_labels_truly(folder, split):
    rows = read(folder / f"pope/scenes_pope_{split}.json")
    assert [row["question_id"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["label"] for row in rows] == ["yes", "no"] * (len(rows) // 2)
    assert {row["image"] for row in rows} == set(EXPORTED)
    for row in rows:
        ((_, _, name),) = mentions(row["text"])
        assert row["text"] == yes_no_question(name)
        assert row["label"] == ("yes" if name in EXPORTED[row["image"]].objects else "no")
    assert len({(row["image"], row["text"]) for row in rows}) == len(rows)


def test_the_formats_are_those_of_the_benchmarks(folder, benchmarks):
    assert form(read(folder / "pope/scenes_pope_random.json")[0]) == form(
        read(benchmarks / "pope/coco/coco_pope_random.json")[0]
    )
    ours, theirs = amber(folder / "amber"), amber(benchmarks / "amber")
    for number in (0, -1):
        assert [form(row) for row in ours[number]] == [form(row) for row in theirs[number]]
    kinds, official = (
        {(row["type"], row["truth"] if type(row["truth"]) is str else list) for _, row in rows}
        for rows in (ours, theirs)
    )
    assert kinds == official
    for name in ("metrics.txt", "safe_words.txt"):
        mine, official = ({*(path / "amber" / name).read_text().split()} for path in (folder, benchmarks))
        assert set() < mine <= official
        assert mine == official or name == "safe_words.txt"


def test_the_files_are_those_that_were_checked(folder):
    """By their hash: boxes, areas, references, and vocabularies were checked."""
    hashed = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".txt")):
        hashed.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    assert hashed.hexdigest()[:16] == "7741b1866e59a777"


def test_the_command_says_what_to_type_next(sira, tmp_path):
    folder = tmp_path / "a b"
    code, out, err = sira("demo", "--export", folder, "--limit", 2, "--seed", 7)
    assert (code, err) == (0, f"sira: 2 scenes are in {folder}; evaluate on them with\n")
    assert out == f"sira eval pope,chair,amber '{folder}' -p demo\n"
    assert (folder / "coco/ids.txt").read_text() == f"{TEST_SEEDS[7]}\n{TEST_SEEDS[8]}\n"
    code, out, err = sira("demo", "--export", tmp_path / "new", "--evaluate")
    assert code == 2
    assert out == ""
    assert not (tmp_path / "new").exists()
    assert err.startswith("sira: --export only writes files: leave out")
