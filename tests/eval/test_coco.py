"""CHAIR's ground truth from COCO's files, and its cache."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.chair import Chair
from sira_cli.eval.coco import find_truth
from sira_cli.models import presets
from tests.support.eval import language_data
from tests.support.eval.coco_data import CATEGORIES, IMAGES, write_coco

# Ground truth


def truth_of(folder: Path, ids, words=lambda text: text.lower().strip(".").split(), **by: Any):
    return find_truth(folder, ids, words, **by)


def test_ground_truth_is_instances_and_references(coco):
    truth = truth_of(coco, [7, 310196])
    assert truth.objects == {7: {"person", "dog", "bench"}, 310196: frozenset()}
    assert truth.names == {7: "COCO_val2014_000000000007.jpg", 310196: "COCO_val2014_000000310196.jpg"}
    # Instances alone have no bench, references alone no dog, as "dogs" is not put in the singular here.
    assert truth_of(coco / "annotations", [7]) == truth_of(coco, [7])


def test_all_pairs_of_one_year_are_used(tmp_path):
    folder = write_coco(tmp_path / "coco", {7: IMAGES[7]})
    write_coco(folder, {8: IMAGES[8]}, split="train")
    write_coco(folder, {9: (["cat"], [])}, year="2017")
    truth = truth_of(folder, [8, 7])
    assert truth.objects == {7: {"person", "dog", "bench"}, 8: {"car"}}
    assert truth.names[8] == "COCO_train2014_000000000008.jpg"
    with pytest.raises(DataError, match="image 9 is not in ") as caught:
        truth_of(folder, [7, 9, 11])
    assert "instances_val2014.json" in str(caught.value)
    assert "2 are missing" in str(caught.value)
    for path in folder.glob("*2014.json"):
        path.unlink()
    assert truth_of(folder, [9]).objects == {9: {"cat"}}


def test_files_need_not_list_their_images(tmp_path):
    """The official script reads annotations only."""
    folder = write_coco(tmp_path / "coco")
    for path in folder.iterdir():
        content = json.loads(path.read_text())
        del content["images"]
        path.write_text(json.dumps(content))
    truth = truth_of(folder, [7, 310196])
    assert truth.objects == {7: {"person", "dog", "bench"}, 310196: frozenset()}
    assert truth.names[310196] == "COCO_val2014_000000310196.jpg"
    with pytest.raises(DataError, match=r"image 9 is not in .*instances_.*\(1 are missing\)"):
        truth_of(folder, [9])


def test_train_is_not_read_when_val_has_all(tmp_path):
    folder = write_coco(tmp_path / "coco")
    for kind in ("instances", "captions"):
        (folder / f"{kind}_train2014.json").write_text("no JSON")
    assert truth_of(folder, [7]).objects[7] == {"person", "dog", "bench"}
    with pytest.raises(DataError, match=r"instances_train2014\.json: line 1 is not JSON"):
        truth_of(folder, [7, 12])


def broken(folder: Path, kind: str, change) -> None:
    path = folder / f"{kind}_val2014.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("instances", lambda content: [content], "instances_val2014.json: expected a JSON object"),
        ("captions", lambda content: {}, "captions_val2014.json: expected a list 'annotations'"),
        (
            "instances",
            lambda content: {**content, "categories": [{"id": 1, "name": "person"}, {"id": 2, "name": "spork"}]},
            r"instances_val2014.json: categories\[1\]: 'spork' is not in CHAIR's list",
        ),
        (
            "instances",
            lambda content: {**content, "annotations": [{"image_id": 7, "category_id": 99}]},
            r"instances_val2014.json: annotations\[0\]: category 99 is not defined",
        ),
        (
            "captions",
            lambda content: {"annotations": [{"image_id": 7, "caption": "x"}, {"image_id": 7}]},
            r"captions_val2014.json: annotations\[1\]: expected image_id \(int\) and caption \(str\), got \{'image_id'",
        ),
    ],
)
def test_what_is_not_as_in_coco_is_named(tmp_path, kind, change, message):
    folder = write_coco(tmp_path / "coco")
    broken(folder, kind, change)
    with pytest.raises(DataError, match=message):
        truth_of(folder, [7])


def test_synonyms_of_a_head_are_categories_too(tmp_path):
    folder = write_coco(tmp_path / "coco")
    categories = [{"id": 10 + number, "name": "motorbike"} for number, _ in enumerate(CATEGORIES)]
    broken(folder, "instances", lambda content: {**content, "categories": categories})
    assert truth_of(folder, [8]).objects[8] == {"motorcycle"}


# Its cache


def cached(home: Path) -> list[Path]:
    return sorted((home / "cache" / "chair").glob("*"))


def never(text: str) -> list[str]:
    raise AssertionError(f"read again: {text}")


def test_ground_truth_is_read_once(coco, home):
    first = truth_of(coco, [7, 310196], rule="lemma")
    assert presets.cache() == home / "cache"
    (path,) = cached(home)
    assert path.suffix == ".json"
    json.loads(path.read_text())
    assert truth_of(coco, [310196, 7], never, rule="lemma") == first


@pytest.mark.parametrize("what", ["ids", "rule", "size", "time", "place"])
def test_what_decides_is_in_the_key(coco, tmp_path, what):
    ids, by, folder = [7], {"rule": "lemma"}, coco
    path = coco / "annotations" / "captions_val2014.json"
    truth_of(coco, [7], rule="lemma")
    if what == "ids":
        ids = [7, 8]
    elif what == "rule":
        by = {"rule": "singular"}
    elif what == "size":
        state = path.stat()
        path.write_text(path.read_text() + " ")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif what == "time":
        os.utime(path, ns=(0, 1))
    else:
        folder = coco.rename(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="read again"):
        truth_of(folder, ids, never, **by)


def test_rule_and_language_are_in_the_key(coco, home, tmp_path, monkeypatch):
    for rule in ("lemma", "singular"):
        Chair(coco, ids=[7], rule=rule, language="fallback")
    assert len(cached(home)) == 2
    language_data.use(monkeypatch, language_data.build(tmp_path / "nltk_data"))
    Chair(coco, ids=[7], language="nltk")
    language_data.forget()
    assert len(cached(home)) == 3


@pytest.mark.parametrize(
    "content",
    [
        *[b"", b"{", b"\xff\xfe", b"[]", b"3", b"null", b"{}", b'{"7": 1}', b'{"7": {"name": "a.jpg"}}', b'{"x": {}}'],
        *[b'{"7": {"name": "a.jpg", "objects": 4}}', b'{"7": {"name": "a.jpg", "objects": ["spork"]}}'],
        *[b'{"8": {"name": "a.jpg", "objects": []}}', b'{"7": {"name": "a.jpg", "objects": [["cat"]]}}'],
    ],
)
def test_a_corrupt_cache_is_made_anew(coco, home, content):
    first = truth_of(coco, [7])
    (path,) = cached(home)
    good = path.read_bytes()
    path.write_bytes(content)
    assert truth_of(coco, [7]) == first
    assert path.read_bytes() == good
    assert cached(home) == [path]
