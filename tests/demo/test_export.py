"""`sira demo --export`: the benchmarks' own formats, and nothing in them but what the scenes hold."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.demo.export import export, file_name
from sira_cli.demo.questions import SPLITS, Questions, held_out, mentions, yes_no_question
from sira_cli.demo.scenes import TEST_SEEDS, render
from tests.support.eval.writing import read

SUBJECTS = [held_out(seed) for seed in TEST_SEEDS[:12]]
SCENES = {file_name(of): of for of in SUBJECTS}


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
    export(SUBJECTS, folder, done.append)
    assert done == list(range(1, len(SUBJECTS) + 1))
    return folder


def amber(folder: Path) -> list[tuple[dict, dict]]:
    """Queries with their annotations."""
    queries, annotations = ((folder / name).read_text() for name in ("query/query_all.json", "annotations.json"))
    return list(zip(json.loads(queries), json.loads(annotations), strict=True))


def form(row: dict) -> dict[str, type]:
    return {key: type(value) for key, value in row.items()}


def test_pictures_are_those_of_the_scenes(folder):
    assert sorted(path.name for path in (folder / "images").iterdir()) == sorted(SCENES)
    for name, of in SCENES.items():
        with Image.open(folder / "images" / name) as saved:
            assert saved.mode == "RGB"
            assert saved.tobytes() == render(of)[0].tobytes()


@pytest.mark.parametrize("split", SPLITS)
def test_pope_asks_for_yes_and_no_by_turns_and_labels_truly(folder, split):
    rows = read(folder / f"pope/scenes_pope_{split}.json")
    assert [row["question_id"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["label"] for row in rows] == ["yes", "no"] * (len(rows) // 2)
    assert {row["image"] for row in rows} == set(SCENES)
    for row in rows:
        ((_, _, name),) = mentions(row["text"])
        assert row["text"] == yes_no_question(name)
        assert row["label"] == ("yes" if name in SCENES[row["image"]].objects else "no")
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
    assert hashed.hexdigest()[:16] == "e3286679609e3060"


def test_the_command_says_what_to_type_next(sira, tmp_path):
    folder = tmp_path / "a b"
    code, out, err = sira("demo", "--export", folder, "--limit", 2, "--seed", 7)
    assert (code, err) == (0, f"sira: 2 scenes are in {folder}; evaluate on them with\n")
    assert out == f"sira eval pope,chair,amber '{folder}' -p demo\n"
    assert (folder / "coco/ids.txt").read_text() == f"{TEST_SEEDS[7]}\n{TEST_SEEDS[8]}\n"
    code, out, err = sira("demo", "--export", tmp_path / "new", "--evaluate")
    assert (code, out, (tmp_path / "new").exists()) == (2, "", False)
    assert err.startswith("sira: --export only writes files: leave out")
