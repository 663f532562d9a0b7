"""Records in other forms, with texts that somebody has corrected."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.analysis.export import corrected
from sira_cli.errors import DataError
from tests.support.records import caption_record as result

FAILED = {"status": "error", "error": "no picture", "finish_reason": "error", "text": ""}


def written(path: Path, *records: dict) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def correction(name: str, text: str) -> dict:
    return {"schema": "sira.correction/1", "file_name": name, "key": f"key of {name}", "text": text}


def texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.txt")}


@pytest.fixture
def folder(tmp_path):
    """A folder with three pictures and their records: the second one was tried twice, the third one failed."""
    for name in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    records = [result("a.png"), result("b.png", **FAILED), result("c.png", **FAILED), result("b.png", "Two cats.")]
    written(tmp_path / "captions.jsonl", *records)
    return tmp_path


def test_a_table_has_a_row_per_picture(folder, sira):
    code, _, err = sira(
        "export", folder / "captions.jsonl", "--csv", folder / "c.csv", "--parquet", folder / "c.parquet"
    )
    assert (code, err.count(": 3\n")) == (0, 2)
    with (folder / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["file_name"], row["status"], row["text"]) for row in rows] == [
        *[("a.png", "ok", "A dog."), ("b.png", "ok", "Two cats."), ("c.png", "error", "")]
    ]
    from pyarrow import parquet

    assert parquet.read_table(folder / "c.parquet").column("text").to_pylist() == ["A dog.", "Two cats.", ""]


def test_text_files_are_those_of_a_run(folder, sira):
    (folder / "a.txt").write_text("Mine.\n")
    code, _, err = sira("export", folder / "captions.jsonl", "--sidecar")
    assert code == 0
    for note in ("text files: 1", "left out: records without a text: 1", "left out: texts whose files exist: 1"):
        assert f"{note}\n" in err
    assert texts(folder) == {"a.txt": "Mine.\n", "b.txt": "Two cats.\n"}
    sira("export", folder / "captions.jsonl", "--caption-extension", "cap", "--output-dir", folder / "tree")
    assert sorted(file.name for file in (folder / "tree").iterdir()) == ["a.cap", "b.cap"]


def test_corrected_texts_replace_those_of_the_run_alone(folder, sira):
    sira("export", folder / "captions.jsonl", "--sidecar")
    (folder / "b.txt").write_text("Mine.\n")
    given = (correction("a.png", "A"), correction("b.png", "B"), correction("a.png", "A cat."))
    command = ("export", folder / "captions.jsonl", "--corrections", written(folder / "corrections.jsonl", *given))
    assert sira(*command, "--sidecar")[0] == 0
    assert texts(folder) == {"a.txt": "A cat.\n", "b.txt": "Mine.\n"}
    moved = folder / "elsewhere/captions.jsonl"
    moved.parent.mkdir()
    assert sira(*command, "-o", moved)[0] == 0
    records = [json.loads(line) for line in moved.read_text().splitlines()]
    expected = [("../a.png", "A cat.", "A dog."), ("../b.png", "B", "Two cats."), ("../c.png", "", None)]
    assert [(record["file_name"], record["text"], record.get("draft")) for record in records] == expected
    assert [record["key"] for record in records] == [f"key of {name}.png" for name in "abc"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (correction("gone.png", "A cat."), "gone.png: no record of"),
        ({"file_name": "a.png", "text": "A."}, "line 2: is not a correction"),
    ],
)
def test_what_is_no_correction_is_refused(folder, sira, wrong, message):
    corrections = written(folder / "corrections.jsonl", correction("a.png", "A cat."), wrong)
    given = ("export", folder / "captions.jsonl", "--corrections", corrections)
    code, _, err = sira(*given, "--csv", folder / "c.csv")
    assert (code > 0, message in err, (folder / "c.csv").exists()) == (True, True, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to write"),
        (("--csv", "c.txt"), "ends in .csv"),
        (("-o", "captions.jsonl"), "is read by this command"),
        (("--exiftool", "args"), "exists"),
    ],
)
def test_nothing_is_replaced_unasked(options, message, folder, sira, monkeypatch):
    monkeypatch.chdir(folder)
    Path("args").write_text("mine", encoding="utf-8")
    code, _, err = sira("export", "captions.jsonl", *options)
    assert code == 2
    assert message in err
    assert Path("args").read_text(encoding="utf-8") == "mine"


def test_arguments_for_exiftool_name_pictures_that_are_there(folder, sira):
    (folder / "a.png").unlink()
    code, _, err = sira("export", folder / "captions.jsonl", "--exiftool", folder / "args")
    assert code == 0
    assert f"texts in {folder / 'args'}, for `exiftool -@ {folder / 'args'}`: 1\n" in err
    assert "left out: texts about pictures that are several, not in a file here" in err
    assert str(folder / "b.png") in (folder / "args").read_text().splitlines()


def test_scores_of_the_text_before_leave():
    record = result("a.png", "A dog.", schema="sira.check/1", support=0.1, added=["dog"], words=[{"word": "A"}])
    record["objects"] = [{"thing": "dog", "spans": [[2, 5]], "support": 0.1, "neither": 0.0}]
    new = corrected(record, "A cat.")
    assert (new["text"], new["draft"], new["objects"], new["key"]) == ("A cat.", "A dog.", [], record["key"])
    assert not {"added", "words", "support"} & new.keys()


def test_a_text_that_follows_a_schema_stays_json():
    record = result("a.png", '["dog"]', json_schema="tags:3", data=["dog"])
    assert corrected(record, '["cat"]')["data"] == ["cat"]
    with pytest.raises(DataError, match=r"a\.png: its text follows a schema"):
        corrected(record, "A cat.")
