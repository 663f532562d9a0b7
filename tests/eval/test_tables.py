"""Ground truth and similarities from tables that are ready."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.chair import Chair
from sira_cli.eval.coco import find_truth
from sira_cli.eval.similarity import find_similarity
from tests.support.eval.amber_data import SAID, benchmark, near
from tests.support.eval.coco_data import CAPTIONS, IMAGES
from tests.support.eval.helpers import values

TRUTH = {7: ["person", "dog", "bench"], 8: ["car"], 310196: []}


@pytest.mark.parametrize(
    "entry",
    [
        lambda image, objects: (str(image), objects),
        lambda image, objects: (f"COCO_val2014_{image:012d}.jpg", objects),
        lambda image, objects: (str(image), {"name": f"COCO_val2014_{image:012d}.jpg", "objects": objects}),
    ],
)
def test_a_table_gives_the_figures_of_cocos_files(chair, tmp_path, entry):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(dict(entry(image, objects) for image, objects in TRUTH.items())))
    table = Chair(path, ids=list(IMAGES), language="fallback")
    assert table.parts == chair.parts
    for part in chair.parts:
        assert table.score(part, CAPTIONS) == chair.score(part, CAPTIONS)
    assert table.stand_ins() == {"captions": "words without NLTK's data, ground truth from a table"}
    assert table.facts()["annotations"] == [str(path)]


def test_the_cache_is_such_a_table(chair, home):
    (path,) = home.rglob("chair/*.json")
    table = Chair(path, ids=list(IMAGES), language="fallback")
    assert table.score(table.parts[0], CAPTIONS) == chair.score(chair.parts[0], CAPTIONS)


def test_words_of_the_list_become_their_heads(tmp_path):
    (tmp_path / "t.json").write_text('{"7": ["man", "puppy", "dog"]}')
    assert find_truth(tmp_path / "t.json", [7], str.split).objects == {7: frozenset({"person", "dog"})}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r't.json: expected a JSON object such as {"310196": \["person", "dog"\]}'),
        ({"images": [], "annotations": []}, "is a file of COCO: give its folder"),
        ({"seven": []}, "expected an image's number or its file name in COCO, got 'seven'"),
        ({"7": [], "07": []}, "image 7 is there twice"),
        ({"7": "dog"}, "image 7: expected a list of objects, got 'dog'"),
        ({"7": ["unicorn"]}, "image 7: 'unicorn' is not in CHAIR's list of words"),
    ],
)
def test_tables_that_are_wrong_are_refused(tmp_path, content, message):
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        find_truth(tmp_path / "t.json", [7], str.split)


def test_an_image_that_the_table_lacks_is_named(sira, tmp_path):
    (tmp_path / "truth.json").write_text(json.dumps({"7": ["dog"]}))
    (tmp_path / "c.jsonl").write_text('{"image_id": 8, "caption": "A dog."}\n')
    run = ("eval", "chair", tmp_path / "truth.json", "--option", "language=fallback")
    code, _, err = sira(*run, "--answers", tmp_path / "c.jsonl")
    assert code == 2
    assert f"c.jsonl: line 1: image 8 is not in {tmp_path}/truth.json (1 are missing)" in err
    (tmp_path / "c.jsonl").write_text('{"image_id": 7, "caption": "A dog and a cat."}\n')
    report = json.loads(sira(*run, "--answers", tmp_path / "c.jsonl", "--json")[1])
    assert values(report)["captions", "c", "CHAIRi"] == 50
    assert report["stand_ins"]["captions"].endswith("ground truth from a table")


def test_similarities_of_a_table(data, tmp_path):
    """One direction is enough; what the table does not have is not similar."""
    path = tmp_path / "similar.json"
    path.write_text(json.dumps({"dog": {"puppy": 0.9, "ship": 0.8, "sun": 0.1}, "sun": {"sky": 0.81}}))
    table = find_similarity(str(path))
    assert [table.above(*pair) for pair in (("dog", "puppy"), ("puppy", "dog"), ("sky", "sun"), ("tree", "tree"))] == [
        *(True, True, True, True)
    ]
    assert [table.above(*pair) for pair in (("dog", "ship"), ("dog", "sun"), ("man", "woman"))] == [False] * 3
    assert not table.official
    assert table.facts()["name"] == str(path)
    pairs = near({"dog", "puppy"}, {"sun", "sky"})
    one, other = (dataclasses.replace(benchmark(data), similarity=each) for each in (table, pairs))
    assert one.score(one.parts[0], SAID) == other.score(other.parts[0], SAID)
    assert one.stand_ins() == {"generative": f"similarity {path}"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "s.json: expected a JSON object such as"),
        ({"dog": ["puppy"]}, r"s.json: dog: expected an object of words and numbers, got \['puppy'\]"),
    ],
)
def test_tables_of_similarities_that_are_wrong(tmp_path, content, message):
    (tmp_path / "s.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        find_similarity(str(tmp_path / "s.json"))
    with pytest.raises(DataError, match="cannot be read"):
        find_similarity(str(tmp_path / "none.json"))
