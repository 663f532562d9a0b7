"""Captions and lists of images for CHAIR: files that are read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sira_cli.errors import DataError
from sira_cli.eval.chair import Chair, read_ids
from sira_cli.eval.coco import image_of
from tests.support.eval.coco_data import CAPTIONS


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


# Answers


def test_lines_arrays_and_shards_are_read(chair, tmp_path):
    expected = {"captions": CAPTIONS}
    rows = [{"image_id": int(image), "caption": text} for image, text in CAPTIONS.items()]
    assert chair.read([write_lines(tmp_path / "a.jsonl", *rows)]) == expected
    array = tmp_path / "a.json"
    array.write_text(json.dumps(rows, indent=1))
    assert chair.read([array]) == expected
    rows[0]["image_id"] = "7"
    shards = [write_lines(tmp_path / "c.jsonl", rows[2]), write_lines(tmp_path / "d.jsonl", *rows[:2])]
    assert chair.read(shards) == expected
    assert list(chair.read(shards)["captions"]) == list(CAPTIONS)  # in the order of the images


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "a.jsonl: holds no captions"),
        ([{"image_id": "7" * 5000, "caption": "x"}], "a.jsonl: line 1: image_id is not an image of COCO: '7"),
        (
            [{"image_id": 7, "caption": "x"}, {"image_id": "7", "caption": "y"}],
            r"a.jsonl: no caption of image 8 \(2 of 3 are missing\)",
        ),
        (
            [{"image_id": image, "caption": "x"} for image in (8, 7, 7)],
            r"image 7 has 2 captions \(.*a.jsonl: line 2 and .*a.jsonl: line 3\), image 8 has 1 \(.*: line 1\): ",
        ),
    ],
)
def test_rows_that_are_wrong_are_named(chair, tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        chair.read([write_lines(tmp_path / "a.jsonl", *rows)])


# Lists of images


def test_ids_are_read_in_every_form(tmp_path):
    lines = write_lines(tmp_path / "ids.txt", "310196", "", "000000000007.jpg", "val2014/COCO_val2014_000000000008.jpg")
    assert list(read_ids(lines)) == [310196, 7, 8]
    assert read_ids(lines)[7].startswith(f"{lines}: line ")
    array = tmp_path / "ids.json"
    array.write_text('[310196, "7", "COCO_train2014_000000000008.jpg"]')
    assert list(read_ids(array)) == [310196, 7, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ids: holds no images"),
        ("7\nseven\n", "ids: line 2: expected an image's number or its file name in COCO, got 'seven'"),
        ("7\n8\n000000000007.jpg", "ids: line 3: image 7 is also in .*ids: line 1"),
    ],
)
def test_lists_that_are_wrong_are_refused(tmp_path, text, message):
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_ids(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_ids(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "image"),
    [
        *[("7", 7), (" 0007 ", 7), ("COCO_val2014_000000000042.jpg", 42), ("a/b/000000000042.JPG", 42)],
        *[(r"c:\val\42.png", 42), ("photo7.jpg", None), ("", None), ("-7", None), ("\u0667", None), ("7.gif", None)],
    ],
)
def test_image_of_a_name(text, image):
    assert image_of(text) == image


# Several captions of an image


def test_several_captions_of_an_image_all_count(chair, tmp_path):
    """As the official script counts the rows: every figure is that of all captions together."""
    one = write_lines(
        tmp_path / "a.jsonl", *({"image_id": int(id_), "caption": text} for id_, text in CAPTIONS.items())
    )
    others = {"7": "A dog.", "8": "A car and a cat.", "310196": "A bench."}
    other = write_lines(
        tmp_path / "b.jsonl", *({"image_id": int(id_), "caption": text} for id_, text in others.items())
    )
    (part,) = chair.parts
    first, second, both = (chair.read(paths)["captions"] for paths in ([one], [other], [one, other]))
    assert both == first | {f"{id_}#2": text for id_, text in second.items()}
    (tally,) = chair.score(part, both).values()
    sums = [chair.score(part, texts)["captions"] for texts in (first, second)]
    for picture, counts in tally.counts.items():
        assert counts == {name: sum(each.counts[picture][name] for each in sums) for name in counts}
    assert tally.total()["captions"] == 6
    assert tally.right == sums[0].right  # the first caption's, for the paired test
    figures = chair.figures("captions", tally.total())
    assert figures["CHAIRs"] == 100 * 3 / 6  # of image 7 the first, of 8 and 310196 the second
    assert [row["caption"] for row in chair.details(part, both)] == [
        text for id_ in CAPTIONS for text in (CAPTIONS[id_], others[id_])
    ]


def test_captions_of_other_images_are_left_out(coco, tmp_path):
    some = Chair(coco, ids=[8], language="fallback")
    rows = [{"image_id": int(image), "caption": text} for image, text in CAPTIONS.items()]
    assert some.read([write_lines(tmp_path / "a.jsonl", *rows)]) == {"captions": {"8": CAPTIONS["8"]}}
