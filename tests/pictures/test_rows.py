"""Rows of tables: the same in `caption`, `ask` and `check`, each by itself; and their values in a prompt."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import shutil
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from sira_cli.errors import DataError, PictureError, SettingsError
from sira_cli.pictures.captions import find_captions
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.rows import IMAGE_COLUMNS, read_rows, read_table
from sira_cli.pictures.selection import Selection, filled, listed_pictures
from tests.support.shards import EXAMPLES, content, drawn, write_tar


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a.png, b.png and c.png."""
    monkeypatch.chdir(tmp_path)
    for name, example in zip("abc", EXAMPLES, strict=False):
        shutil.copy(example, tmp_path / f"{name}.png")
    return tmp_path


def prompts(path: str, prompt: str) -> list[str]:
    return [filled(prompt, picture) for picture in find_pictures([path])]


# --- values

CELLS = [["a.png", "1998", "01234"], ["b.png", "", "1e5"], ["c.png", "2003", "NA"], ["c.png", "1.50", "True"]]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_a_cell_is_the_text_that_is_in_the_file(folder, name):
    plain = name.removesuffix(".gz")
    with Path(plain).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if name == "t.tsv" else ",")
        writer.writerows([["file_name", "year", "code"], *CELLS])
    if name != plain:
        Path(name).write_bytes(gzip.compress(Path(plain).read_bytes()))
    assert prompts(name, "{year}|{code}") == [f"{year}|{code}" for _, year, code in CELLS]


VALUES = {
    "text": ("01234", "01234"),
    "a date": ("2020-01-01", "2020-01-01"),
    "whole": (1998, "1998"),
    "large": (12345678901234567890, "12345678901234567890"),
    "decimal": (1.5, "1.5"),
    "whole decimal": (1998.0, "1998.0"),
    "truth": (True, "true"),
    "nothing": (None, ""),
    "list": (["red", 2, None], "red, 2, "),
    "object": ({"a": [1, "é"]}, '{"a": [1, "é"]}'),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_json_value_does_not_depend_on_other_rows(folder, kind):
    value, expected = VALUES[kind]
    rows = [
        {"image": "a.png", "x": value},
        {"image": "b.png"},
        {"image": "c.png", "x": None},
        {"image": "c.png", "x": 0.5},
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("t.json").write_text(json.dumps(rows), encoding="utf-8")
    assert prompts("t.jsonl", "{x}") == prompts("t.json", "{x}") == [expected, "", "", "0.5"]


def test_an_empty_number_and_bytes_of_a_parquet_file(folder):
    columns = {"image": ["a.png"] * 2, "x": [float("nan"), 0.5], "y": [b"caf\xc3\xa9", b"\xff"]}
    parquet.write_table(pyarrow.table(columns), "t.parquet")
    first, second = find_pictures(["t.parquet"], image_column="image")
    assert filled("{x|none} {y}", first) == "none café"
    with pytest.raises(PictureError, match=r"t\.parquet/2: the text for the prompt is not UTF-8"):
        filled("{y}", second)


# --- columns


@pytest.mark.parametrize("column", [*IMAGE_COLUMNS, "Image", "FileName"])
def test_a_usual_column_of_pictures_is_one_for_every_command(folder, column):
    value = ["a.png"] if column == "images" else "a.png"
    Path("t.jsonl").write_text(json.dumps({"other": 1, column: value, "text": "A dog."}), encoding="utf-8")
    captioned, (asked,) = find_pictures(["t.jsonl"]), listed_pictures(Path("t.jsonl"), str)
    (checked,) = find_captions("t.jsonl").pictures
    expected = EXAMPLES[0].read_bytes()
    assert [each.files()[0][1] for each in (*captioned, asked, checked)] == [expected] * 3


def test_the_column_of_pictures_can_be_named_for_questions(folder):
    Path("q.csv").write_text("image,pic,question\na.png,b.png,What?\n", encoding="utf-8")
    (picture,) = Selection([], Path("q.csv"), image_column="pic").pictures()
    assert content(picture) == EXAMPLES[1].read_bytes()


def test_columns_without_a_name_are_none(folder):
    Path("t.csv").write_text("file_name,,x,\na.png,1,2,3\n", encoding="utf-8")
    (picture,) = find_pictures(["t.csv"])
    assert picture.columns() == {"x": "2"}


# --- rows that cannot be read

GOOD = ['{"image": "a.png", "text": "A?"}', '{"image": "b.png", "text": "B?"}', '{"image": "c.png", "text": "C?"}']
BAD = {
    "cut.jsonl": [GOOD[0], GOOD[1], '{"image": "b.png, "i": 4}', "", GOOD[2]],
    "list.jsonl": [GOOD[0], GOOD[1], "[1]", GOOD[2]],
    "bytes.jsonl": [GOOD[0], GOOD[1], '{"image": "\udcff.png", "text": "?"}', GOOD[2]],
    "cells.csv": ["image,text", "a.png,A?", "b.png,one, or two?", '"b.png","B\n?"', "c.png,C?"],
    "quotes.csv": ["image,text", "a.png,A?", '"b".png,one', "b.png,B?", "c.png,C?"],
    "bytes.tsv": ["image\ttext", "a.png\tA?", "\udcff.png\tone", "b.png\tB?", "c.png\tC?"],
}


def write_bad(name: str) -> Path:
    """Write a table whose third line is bad."""
    Path(name).write_text("\n".join(BAD[name]), encoding="utf-8", errors="surrogateescape")
    return Path(name)


def found_by(command: str, path: Path) -> list:
    if command == "check":
        return find_captions(path).pictures
    return listed_pictures(path, str) if command == "ask" else find_pictures([str(path)])


@pytest.mark.parametrize("command", ["caption", "ask", "check"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_an_error_of_its_own(folder, name, command):
    pictures = found_by(command, write_bad(name))
    good = [content(picture) for picture in pictures if not picture.fault]
    assert good == [path.read_bytes() for path in EXAMPLES[:3]]
    (bad,) = [picture for picture in pictures if picture.fault]
    assert bad.name_in(folder) == f"{name}/3"
    assert bad.fault.startswith(f"{name}: line 3")
    with pytest.raises(PictureError, match=f"{name}: line 3"):
        bad.read()


def test_a_row_without_its_text_is_an_error_of_its_picture(folder):
    Path("t.jsonl").write_text(f'{GOOD[0]}\n{{"image": "b.png", "text": 7}}\n{{"text": "C."}}\n', encoding="utf-8")
    first, second, third = find_captions("t.jsonl").pictures
    assert first.fault == ""
    assert second.name_in(folder) == "b.png"
    assert third.name_in(folder) == "t.jsonl/3"
    assert second.fault == "t.jsonl: line 2: text is not text: 7"
    assert third.fault.startswith("t.jsonl: line 3: expected image, found text")


def test_rows_are_counted_as_lines_of_the_file(folder):
    Path("t.csv").write_text('image,text\n\na.png,"1\n2"\nb.png,3\n', encoding="utf-8")
    Path("t.jsonl").write_text(f"\n{GOOD[0]}\n\n{GOOD[1]}", encoding="utf-8")
    Path("t.json").write_text("\n[" + ",\n\n".join(GOOD) + "]", encoding="utf-8")
    parquet.write_table(pyarrow.table({"image": ["a.png", "b.png"]}), "t.parquet")
    numbers = {"t.csv": [3, 5], "t.jsonl": [2, 4], "t.json": [1, 2, 3], "t.parquet": [1, 2]}
    for name, expected in numbers.items():
        assert [row.number for row in read_table(name, ["image"])] == expected
        assert [int(picture.sources[0].member) for picture in find_pictures([name])] == expected


@pytest.mark.parametrize("command", ["caption", "ask", "check"])
def test_a_table_of_bad_rows_is_refused_before_a_model_is_loaded(folder, sira, command):
    Path("bad.jsonl").write_text("{1}\n{2}\n", encoding="utf-8")
    given = {"caption": ["bad.jsonl"], "ask": ["--questions", "bad.jsonl"], "check": ["bad.jsonl"]}[command]
    code, _, err = sira(command, *given, "-m", "no/such-model")
    assert code == 2
    assert err.startswith("sira: bad.jsonl: line 1 is not JSON")


def test_a_run_goes_on_after_a_bad_row(folder, sira):
    write_bad("cut.jsonl")
    code, _, _ = sira("caption", "cut.jsonl", "-p", "demo", "--max-new-tokens", 2, "-o", "out.jsonl")
    records = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [(record["file_name"], record["status"]) for record in records]
    assert (code, found) == (3, [(f"cut.jsonl/{n}", "error" if n == 3 else "ok") for n in (1, 2, 3, 5)])


def test_who_needs_all_rows_gets_the_first_error(folder):
    rows = read_rows(write_bad("cut.jsonl"))
    assert [next(rows)[1]["text"], next(rows)[1]["text"]] == ["A?", "B?"]
    with pytest.raises(DataError, match=r"cut\.jsonl: line 3 is not JSON"):
        next(rows)


# --- compressed files, and others that hold pictures


def zstandard(data: bytes) -> bytes:
    """Two frames, as programs with several threads write them."""
    half = len(data) // 2
    return b"".join(pyarrow.compress(part, "zstd", asbytes=True) for part in (data[:half], data[half:]))


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("name", ["t.tar", "t.jsonl", "t.json", "t.csv", "t.tsv"])
def test_a_compressed_data_set_is_what_it_holds(folder, name, ending):
    write_tar(folder / "t.tar", drawn(3))
    Path("t.jsonl").write_text("\n".join(GOOD), encoding="utf-8")
    Path("t.json").write_text(f"[{','.join(GOOD)}]", encoding="utf-8")
    Path("t.csv").write_text("image,text\na.png,A?\nb.png,B?\nc.png,C?\n", encoding="utf-8")
    Path("t.tsv").write_text(Path("t.csv").read_text(encoding="utf-8").replace(",", "\t"), encoding="utf-8")
    Path(name + ending).write_bytes(PACK[ending](Path(name).read_bytes()))
    plain, packed = find_pictures([name]), find_pictures([name + ending])
    assert [content(each) for each in packed] == [content(each) for each in plain]
    assert [each.columns() for each in packed] == [each.columns() for each in plain]
    assert [each.name_in(folder) for each in packed] == [
        each.name_in(folder).replace(name, name + ending) for each in plain
    ]
    if name != "t.tar":
        captions = [[each.caption for each in find_captions(path).pictures] for path in (name, name + ending)]
        assert captions == [["A?", "B?", "C?"]] * 2


@pytest.mark.parametrize("ending", PACK)
def test_a_cut_off_file_gives_the_rows_before(folder, ending):
    text = "\n".join(json.dumps({"image": "a.png", "x": f"{number * 7919 % 9973}"}) for number in range(99_000))
    data = PACK[ending](text.encode())
    Path(f"t.jsonl{ending}").write_bytes(data[: len(data) * 3 // 4])
    *rows, last = read_table(f"t.jsonl{ending}")
    assert len(rows) > 1000
    assert [row.fault for row in rows] == [""] * len(rows)
    assert last.fault.startswith(f"t.jsonl{ending}: ")


def test_short_endings_of_shards_in_a_folder(folder):
    Path("sub").mkdir()
    write_tar(folder / "t.tar", drawn(1))
    for name, pack in {"a.tgz": gzip.compress, "b.txz": lzma.compress, "c.tzst": zstandard}.items():
        Path("sub", name).write_bytes(pack(Path("t.tar").read_bytes()))
    expected = [f"sub/{name}/000000.png" for name in ("a.tgz", "b.txz", "c.tzst")]
    assert [picture.name_in(None) for picture in find_pictures(["sub"])] == expected


def test_without_the_extra_zstandard_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("t.tar.zst").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"t\.tar\.zst: is compressed by Zstandard: pip install 'datasets>=[\d.]+'"):
        find_pictures(["t.tar.zst"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.zip", "is an archive"),
        ("x.jpg.gz", "is compressed"),
        ("x.tar.lz4", "is compressed"),
        ("x.xlsx", "is a spread"),
    ],
)
def test_what_holds_pictures_is_named_before_a_model_is_loaded(folder, sira, name, kind):
    Path(name).write_bytes(b"PK")
    code, _, err = sira("caption", name, "-m", "no/such-model")
    assert code == 2
    assert err.startswith(f"sira: {name}: {kind}")
    assert "PNG" not in err
    bad, good = find_pictures([name, "a.png"])  # next to a picture it is an error of its own
    assert bad.fault.startswith(f"{name}: {kind}")
    assert good.fault == ""
    Path("sub").mkdir()
    Path(name).rename(f"sub/{name}")
    Path("a.png").rename("sub/a.png")
    assert find_pictures(["sub"]).left_out == {Path(name).suffix: 1}
