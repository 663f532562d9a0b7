"""Records in other forms, with texts that somebody has corrected; and what ExifTool makes of an argument file."""

from __future__ import annotations

import codecs
import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.analysis.corrections import corrected
from sira_cli.analysis.export import Export, _can_have_a_sidecar, arguments
from sira_cli.errors import DataError
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.rows import read_rows
from sira_cli.pictures.sources import located
from tests.support.eval.writing import lines, read, save
from tests.support.records import caption_record

FAILED = {"status": "error", "error": "no picture", "finish_reason": "error", "text": ""}
EXIFTOOL = shutil.which("exiftool")
with_exiftool = pytest.mark.skipif(EXIFTOOL is None, reason="needs apt-get install libimage-exiftool-perl")


def picture(folder: Path, name: str = "a.jpg") -> Path:
    Image.new("RGB", (8, 8), "red").save(folder / name, "PNG" if name.endswith(".png") else "JPEG")
    return folder / name


@pytest.fixture
def folder(tmp_path):
    """A folder with three pictures and their records: the second one was tried twice, the third one failed."""
    [picture(tmp_path, f"{name}.png") for name in "abc"]
    records = [caption_record("a.png"), *(caption_record(name, **FAILED) for name in ("b.png", "c.png"))]
    lines(tmp_path / "captions.jsonl", [*records, caption_record("b.png", "Two cats.")])
    return tmp_path


def correction(name: str, text: str) -> dict:
    return {"schema": "sira.correction/1", "file_name": name, "key": f"key of {name}", "text": text}


def texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.txt")}


def test_a_table_has_a_row_per_picture(folder, sira):
    tables = ("--csv", folder / "c.csv", "--parquet", folder / "c.parquet")
    code, _, err = sira("export", folder / "captions.jsonl", *tables)
    assert (code, err.count(": 3\n")) == (0, 2)
    from pyarrow import parquet

    with (folder / "c.csv").open(newline="", encoding="utf-8-sig") as file:
        for rows in ([*csv.DictReader(file)], parquet.read_table(folder / "c.parquet").to_pylist()):
            found = [(row["file_name"], row["status"], row["text"]) for row in rows]
            assert found == [("a.png", "ok", "A dog."), ("b.png", "ok", "Two cats."), ("c.png", "error", "")]


def test_a_csv_file_is_one_that_excel_reads_and_begins_with_the_name(folder, sira):
    lines(folder / "captions.jsonl", [{"id": "q1", **caption_record("a.png", "Une forêt, 雨.")}])
    code, *_ = sira("export", folder / "captions.jsonl", "--csv", folder / "c.csv")
    data = (folder / "c.csv").read_bytes()
    assert (code, data[:3]) == (0, codecs.BOM_UTF8)
    assert data[3:].startswith(b"file_name,id,schema,")
    [(_, row)] = read_rows(folder / "c.csv")  # our own reader
    assert (row["file_name"], row["text"]) == ("a.png", "Une forêt, 雨.")


def test_text_files_are_those_of_a_run(folder, sira):
    save(folder / "a.txt", "Mine.\n")
    code, _, err = sira("export", folder / "captions.jsonl", "--sidecar")
    assert code == 0
    for note in ("text files: 1", "left out: records without a text: 1", "left out: texts whose files exist: 1"):
        assert f"{note}\n" in err
    assert texts(folder) == {"a.txt": "Mine.\n", "b.txt": "Two cats.\n"}
    sira("export", folder / "captions.jsonl", "--caption-extension", "cap", "--output-dir", folder / "tree")
    assert sorted(file.name for file in (folder / "tree").iterdir()) == ["a.cap", "b.cap"]


def test_corrected_texts_replace_those_of_the_run_alone(folder, sira):
    sira("export", folder / "captions.jsonl", "--sidecar")
    save(folder / "b.txt", "Mine.\n")
    given = [correction("a.png", "A"), correction("b.png", "B"), correction("a.png", "A cat.")]
    command = ("export", folder / "captions.jsonl", "--corrections", lines(folder / "corrections.jsonl", given))
    code, _, err = sira(*command, "--sidecar")
    assert code == 3
    *_, missed, arrived = err.splitlines()
    assert missed.startswith("sira: b.png: its correction did not arrive: ")
    assert missed.endswith("b.txt holds a text of another: --overwrite replaces it")
    assert arrived == "sira: corrections: 1 of 2 arrived"
    assert texts(folder) == {"a.txt": "A cat.\n", "b.txt": "Mine.\n"}
    moved = folder / "elsewhere/captions.jsonl"
    moved.parent.mkdir()
    assert sira(*command, "-o", moved)[0] == 0
    expected = [("../a.png", "A cat.", "A dog."), ("../b.png", "B", "Two cats."), ("../c.png", "", None)]
    records = read(moved)
    assert [(record["file_name"], record["text"], record.get("draft")) for record in records] == expected
    assert [record["key"] for record in records] == [f"key of {name}.png" for name in "abc"]


def checked(name: str, text: str, **support: float) -> dict:
    """A record of a check, with the support of each object."""
    objects = [{"thing": thing, "support": value} for thing, value in support.items()]
    return caption_record(name, text, schema="sira.check/1", objects=objects, verify={"min_support": 0.5})


def test_the_best_supported_of_several_captions(tmp_path):
    records = [
        checked("a.png", "A dog and a cat.", dog=0.9, cat=0.1),
        caption_record("b.png", schema="sira.check/1", **FAILED),
        checked("a.png#2", "A dog.", dog=0.9),
        checked("b.png#2", "A sofa.", sofa=0.2),
        checked("a.png#3", "A dog and a cup.", dog=0.9, cup=0.7),
        checked("a.png#4", "A dog and a bed.", dog=0.9, bed=0.7),
    ]
    lines(tmp_path / "checks.jsonl", records)
    found = {record["file_name"]: record["text"] for _, record, _ in Export(tmp_path / "checks.jsonl", best=True)}
    assert found == {"a.png": "A dog and a cup.", "b.png": "A sofa."}


def test_captions_without_a_second_look_have_no_best_one(folder, sira):
    code, _, err = sira("export", folder / "captions.jsonl", "--best", "-o", folder / "best.jsonl")
    assert code == 2
    assert "a.png: has no second look to rank it by: expected records of sira check" in err


def exported(folder: Path, sira, *given: dict) -> tuple[int, list[str]]:
    """Export with corrections to text files; return the exit code, and the lines about corrections."""
    file = lines(folder / "corrections.jsonl", given)
    code, _, err = sira("export", folder / "captions.jsonl", "--corrections", file, "--sidecar")
    return code, [line.removeprefix("sira: ") for line in err.splitlines() if "correction" in line]


def test_a_later_correction_replaces_an_earlier_one(folder, sira):
    """That of a page knows which were saved before; the model's text may be the later one."""
    sira("export", folder / "captions.jsonl", "--sidecar")
    for text, earlier in (("A cat.", []), ("A cat.", []), ("A black cat.", ["A cat."]), ("A dog.", ["A black cat."])):
        assert exported(folder, sira, correction("a.png", text) | {"earlier": earlier}) == (
            0,
            ["corrections: 1 of 1 arrived"],
        )
        assert texts(folder) == {"a.txt": f"{text}\n", "b.txt": "Two cats.\n"}
    exported(folder, sira, correction("a.png", "A cat."))
    exported(folder, sira, correction("a.png", "A cat."), correction("a.png", "A red cat."))  # both in one file
    assert texts(folder)["a.txt"] == "A red cat.\n"


def test_the_text_before_a_corrected_record_is_replaced(folder, sira):
    file = lines(folder / "captions.jsonl", [caption_record("a.png", "A cat.", draft="A dog.")])
    save(folder / "a.txt", "A dog.\n")
    assert exported(folder, sira, correction("a.png", "A red cat."))[0] == 0
    assert (texts(folder), read(file)[0]["text"]) == ({"a.txt": "A red cat.\n"}, "A cat.")


def test_corrections_that_do_not_arrive_are_named(folder, sira):
    given = [correction("a.png", " \n"), correction("b.png", "A cat."), correction("gone.png", "A bird.")]
    assert exported(folder, sira, *given) == (
        3,
        [
            f"gone.png: its correction did not arrive: no record of {folder / 'captions.jsonl'} has its key",
            "a.png: its correction did not arrive: the corrected text is empty: no text file is written",
            "corrections: 1 of 3 arrived",
        ],
    )
    assert texts(folder) == {"b.txt": "A cat.\n"}


def test_what_is_no_correction_is_refused(folder, sira):
    corrections = lines(folder / "corrections.jsonl", [correction("a.png", "A."), {"file_name": "a.png", "text": "A."}])
    given = ("export", folder / "captions.jsonl", "--corrections", corrections)
    code, _, err = sira(*given, "--csv", folder / "c.csv")
    assert code == 2
    assert "line 2: is not a correction" in err
    assert not (folder / "c.csv").exists()


def test_scores_of_the_earlier_text_leave_a_corrected_record():
    record = caption_record("a.png", "A dog.", schema="sira.check/1", support=0.1, added=["dog"], words=[{"word": "A"}])
    record["objects"] = [{"thing": "dog", "spans": [[2, 5]], "support": 0.1, "neither": 0.0}]
    new = corrected(record, "A cat.")
    assert new["text"] == "A cat."
    assert new["draft"] == "A dog."
    assert new["objects"] == []
    assert new["key"] == record["key"]
    assert not {"added", "words", "support"} & new.keys()
    record = caption_record("a.png", '["dog"]', json_schema="tags:3", data=["dog"])
    assert corrected(record, '["cat"]')["data"] == ["cat"]
    with pytest.raises(DataError, match=r"a\.png: its text follows a schema"):
        corrected(record, "A cat.")


def test_arguments_for_exiftool_name_pictures_that_are_there(folder, sira, monkeypatch):
    (folder / "a.png").unlink()
    code, _, err = sira("export", folder / "captions.jsonl", "--exiftool", folder / "args")
    assert code == 0
    assert f"texts in {folder / 'args'}, for `exiftool -@ {folder / 'args'}`: 1\n" in err
    assert "left out: texts about pictures that are several, not in a file here" in err
    assert str(folder / "b.png") in (folder / "args").read_text().splitlines()
    monkeypatch.setattr(Picture, "is_here", lambda picture: True)  # Windows can have no such names
    named = [_can_have_a_sidecar(located(name)) for name in ("a.jpg", "touch x|", "a\nb.jpg")]
    assert named == [True, False, False]  # ExifTool would read these otherwise


# --- beside pictures that people have described in their programs


def record(text="A cat.", **more):
    return {"schema": "sira.caption/1", "status": "ok", "model": "m", "text": text, **more}


def followed(caption, **more):
    data = {"caption": caption, **more}
    return record(json.dumps(data), data=data)


def put(*commands: tuple[Path, list[str]]) -> None:
    args = [line for file, fields in commands for line in ("-q", "-overwrite_original", *fields, str(file), "-execute")]
    subprocess.run([EXIFTOOL, "-@", "-"], input="\n".join(args).encode(), check=True)


def export(folder: Path, *given: tuple, replace: bool = False) -> dict[str, dict]:
    """Run ExifTool with an argument file, from another folder; twice, as the second time changes nothing.

    Return the fields of all sidecars by name.
    """
    args = [line for each in given for line in arguments(*each, replace=replace)]
    (folder / "args").write_bytes(b"".join(os.fsencode(line) + b"\n" for line in args))
    before, states = {file: file.read_bytes() for file, *_ in given}, []
    for _ in range(2):
        done = subprocess.run([EXIFTOOL, "-@", folder / "args"], capture_output=True, text=True, cwd="/", check=False)
        assert (done.stderr, done.stdout) == ("", "")
        times = {file: 0 if replace else file.stat().st_mtime_ns for file in folder.glob("*.xmp")}
        states.append({file: (file.read_bytes(), time) for file, time in times.items()})
    assert states[0] == states[1]
    assert before == {file: file.read_bytes() for file in before}
    assert not list(folder.glob("*_original"))
    return sidecars(folder)


def sidecars(folder: Path) -> dict[str, dict]:
    command = [EXIFTOOL, "-j", "-struct", "-b", "-charset", "filename=utf8", "-G1", "-XMP:all", "--XMPToolkit"]
    files = [*folder.glob("*.xmp")]
    found = json.loads(subprocess.check_output([*command, *files])) if files else []
    return {Path(each.pop("SourceFile")).name: each for each in found}


@with_exiftool
def test_a_picture_without_metadata_gets_all(tmp_path):
    looked = {"objects": [{"thing": "dog", "spans": [[10, 13]], "support": 0.1}], "verify": {"min_support": 0.5}}
    given = followed("Naïve 夕焼け & <b>.\n🙂", alt="Two animals.", tags=["cat", "dog", "black/white", "cat"])
    assert export(tmp_path, (picture(tmp_path), given | looked))["a.jpg.xmp"] == {
        "XMP-dc:Description": "Naïve 夕焼け & <b>.\n🙂",
        "XMP-dc:Subject": ["cat", "dog", "black/white"],
        "XMP-digiKam:TagsList": ["cat", "dog", "black|white"],
        "XMP-iptcCore:AltTextAccessibility": "Two animals.",
        "XMP-photoshop:CaptionWriter": "sira, m; unsure: dog",
    }


DESCRIBED = [  # as Lightroom, digiKam, Windows, and others write it
    ["-XMP-dc:Description=Mine", "-IPTC:Caption-Abstract=Mine", "-EXIF:ImageDescription=Mine"],
    ["-XMP-dc:Description-de=Meins", "-XMP-tiff:ImageDescription=Mine", "-XMP-exif:UserComment=Mine"],
    *([f"-EXIF:XP{name}=Mine"] for name in ("Title", "Comment", "Subject")),
    *([f"-EXIF:{name}=Mine"] for name in ("ImageDescription", "UserComment")),
    *([f"-{name}=Mine"] for name in ("IPTC:Caption-Abstract", "Comment", "XMP-acdsee:Caption")),
    ["-XMP-dc:Description-de=Meins"],
]


@with_exiftool
def test_a_description_in_the_picture_stays_alone(tmp_path):
    files = [(picture(tmp_path, f"{number}.jpg"), fields) for number, fields in enumerate(DESCRIBED)]
    put(*files)
    assert export(tmp_path, *((file, record()) for file, _ in files)) == {}


@with_exiftool
def test_descriptions_in_sidecars_stay(tmp_path):
    files = [picture(tmp_path, f"{name}.jpg") for name in ("long", "short", "both", "empty", "author")]
    empty, author = files[3:]
    put(
        (tmp_path / "long.jpg.xmp", ["-XMP-dc:Description=Mine", "-XMP-dc:Description-de=Meins", "-XMP:Rating=4"]),
        (tmp_path / "short.xmp", ["-XMP-tiff:ImageDescription=Mine", "-XMP:Rating=4"]),
        (tmp_path / "both.jpg.xmp", ["-XMP:Rating=4"]),
        (tmp_path / "both.xmp", ["-XMP-dc:Description=Mine"]),
        (empty, ["-EXIF:ImageDescription= ", "-EXIF:Artist=Me"]),
        (tmp_path / "empty.xmp", ["-XMP:Rating=4", "-XMP-dc:Title=Title"]),
        (author, ["-IPTC:Writer-Editor=Jo"]),
    )
    before = sidecars(tmp_path)
    pet, cat = {"XMP-iptcCore:AltTextAccessibility": "A pet."}, {"XMP-dc:Description": "A cat."}
    assert export(tmp_path, *((file, followed("A cat.", alt="A pet.")) for file in files)) == {
        "long.jpg.xmp": before["long.jpg.xmp"] | pet,
        "short.xmp": before["short.xmp"] | pet,
        "both.jpg.xmp": before["both.jpg.xmp"] | pet,
        "both.xmp": before["both.xmp"],
        "empty.xmp": before["empty.xmp"] | pet | cat | {"XMP-photoshop:CaptionWriter": "sira, m"},
        "author.jpg.xmp": pet | cat,
    }


@with_exiftool
def test_replace_is_asked_for(tmp_path):
    file = picture(tmp_path)
    old = ["-XMP-dc:Description=Old", "-XMP-dc:Description-de=Alt", "-XMP:Rating=4"]
    put((file, ["-EXIF:ImageDescription=Old", "-XMP-dc:Description=Old"]), (tmp_path / "a.jpg.xmp", old))
    fields = {"XMP-dc:Description": "A cat.", "XMP-tiff:ImageDescription": "A cat."}  # Immich prefers the second one
    fields |= {"XMP-photoshop:CaptionWriter": "sira, m", "XMP-xmp:Rating": 4}
    assert export(tmp_path, (file, record()), replace=True) == {"a.jpg.xmp": fields}


@with_exiftool
def test_a_correction_replaces_what_was_written_before_it(tmp_path):
    files = [picture(tmp_path, f"{name}.jpg") for name in ("mine", "translated", "same")]
    export(tmp_path, *((file, record("A dog.")) for file in files))
    own = {"mine.jpg.xmp": ("Description", "My cat."), "translated.jpg.xmp": ("Description-de", "Eine Katze.")}
    put(*((tmp_path / name, [f"-XMP-dc:{field}={text}"]) for name, (field, text) in own.items()))
    dog = record("A dog.")
    found = export(tmp_path, *((file, corrected(dog, "A cat."), [dog]) for file in files))
    expected = own | {"same.jpg.xmp": ("Description", "A cat.")}
    assert found == {name: {f"XMP-dc:{field}": text} for name, (field, text) in expected.items()}
    red = corrected(dog, "A red cat.\nIt sits.")
    found = export(tmp_path, *((file, red, [dog, corrected(dog, "A cat.")]) for file in files))
    assert found["same.jpg.xmp"] == {"XMP-dc:Description": "A red cat.\nIt sits."}
    assert {name: found[name] for name in own} == {
        name: {f"XMP-dc:{field}": text} for name, (field, text) in own.items()
    }
    found = export(tmp_path, *((file, dog, [red]) for file in files))
    assert found["same.jpg.xmp"] == {"XMP-dc:Description": "A dog.", "XMP-photoshop:CaptionWriter": "sira, m"}


# Fields of the picture | fields of the sidecar | dc:Subject and digiKam:TagsList of the sidecar afterwards.
KEYWORDS = """
| | cat + new | cat + new
XMP-dc:Subject=cat + IPTC:Keywords=cat + XMP-lr:HierarchicalSubject=Animals\\cat | | cat + new | Animals/cat + new
IPTC:Keywords=old | XMP-dc:Subject=cat + XMP-lr:HierarchicalSubject=Animals\\cat | cat + old + new | Animals/cat + new
XMP-digiKam:TagsList=A/Jo + XMP-lr:HierarchicalSubject=A\\Jo + XMP-dc:Subject=Jo \
| XMP-digiKam:TagsList=B/Rome + XMP-dc:Subject=Rome | Rome + Jo + cat + new | B/Rome + A/Jo + cat + new
EXIF:XPKeywords=cat;my dog + XMP-dc:Subject=cat + XMP-microsoft:LastKeywordXMP=cat | \
| cat + my dog + new | cat + my dog + new
| XMP-digiKam:TagsList=Trips/Rome | cat + new | Trips/Rome + cat + new
IPTC:Keywords=a; b + IPTC:Keywords=c | | a; b + c + cat + new | a; b + c + cat + new
"""


@with_exiftool
def test_keywords_of_people_are_neither_hidden_nor_doubled(tmp_path):
    """Those of Lightroom, digiKam, Windows and Immich, also such as are added later."""
    rows = [
        [[part.replace("\\", "|") for part in cell.strip().split(" + ") if part] for cell in row.split("|")]
        for row in KEYWORDS.strip().splitlines()
    ]
    files = [picture(tmp_path, f"{number}.jpg") for number in range(len(rows))]
    beside = [file.with_name(f"{file.name}.xmp") for file in files]
    fields = ([f"-{field}" for field in row[column]] for column in (0, 1) for row in rows)
    put(*(each for each in zip((*files, *beside), fields, strict=True) if each[1]))
    given = [(file, record('["cat", "new"]', data=["cat", "new"])) for file in files]
    found = export(tmp_path, *given)
    for file, (_, _, subject, tags) in zip(files, rows, strict=True):
        fields = found[f"{file.name}.xmp"]
        assert (fields["XMP-dc:Subject"], fields["XMP-digiKam:TagsList"]) == (subject, tags), file
        assert "XMP-dc:Description" not in fields
    put((files[0], ["-XMP-dc:Subject=dog"]))
    every = ["cat", "new", "dog"]
    assert export(tmp_path, *given)["0.jpg.xmp"] == {"XMP-dc:Subject": every, "XMP-digiKam:TagsList": every}


NAMES = ["-q.jpg", "# a.jpg", " b'\"  c$1 @d.jpg", "%d 100%.jpg", "ä 夕.png", "c\\nd.jpg", ".e.jpg", "f.g.JPG"]
TEXTS = ["<b>", "=a", "<=/etc/passwd", "@x", "-x", "# x", "a < b", "&lt;", "&#65;", "a\\", "x\n$FileName"]
TEXTS += ["${x} $5", "10 %d", "'"]


@with_exiftool
def test_names_and_texts_of_every_kind(tmp_path):
    files = dict.fromkeys(NAMES, "A cat.") | {f"{number}.jpg": text for number, text in enumerate(TEXTS)}
    tags = ["cat", "a & b", "&amp;", "$x", "夕"]
    no_text = picture(tmp_path, os.fsdecode(b"\xff.jpg"))
    given = [(picture(tmp_path, name), followed(text, tags=tags)) for name, text in files.items()]
    found = export(tmp_path, (no_text, record()), *given)
    assert no_text.with_name(f"{no_text.name}.xmp").exists()
    for name, text in files.items():
        fields = found[f"{name}.xmp"]
        assert (fields["XMP-dc:Description"], fields["XMP-dc:Subject"]) == (text, tags), name


@with_exiftool
def test_each_picture_has_a_sidecar_of_its_own(tmp_path, sira):
    """Names that are alike but for the ending, or of which one is another's with an ending more."""
    names = ["hero.jpg", "hero.jpg.png", "p.jpg", "p.png", "raw.jpg", "alone.jpg"]
    files = [picture(tmp_path, name) for name in names]
    (tmp_path / "raw.cr2").write_bytes(b"raw")
    put(*((tmp_path / name, ["-XMP:Rating=4"]) for name in ("p.xmp", "raw.xmp", "alone.xmp")))
    records = [caption_record(name, f"Text of {name}.") for name in names]
    sira("export", lines(tmp_path / "c.jsonl", records), "--exiftool", tmp_path / "args")
    subprocess.run([EXIFTOOL, "-@", tmp_path / "args"], capture_output=True, check=False)
    found = {name: fields.get("XMP-dc:Description") for name, fields in sidecars(tmp_path).items()}
    own = {f"{file.name}.xmp": f"Text of {file.name}." for file in files[:-1]}
    assert found == own | {"p.xmp": None, "raw.xmp": None, "alone.xmp": "Text of alone.jpg."}


@with_exiftool
def test_keywords_of_a_sidecar_that_may_be_another_pictures_stay_there(tmp_path):
    files = [picture(tmp_path, name) for name in ("p.jpg", "p.png")]
    put((tmp_path / "p.xmp", ["-XMP-dc:Subject=hers"]))
    given = record('["cat"]', data=["cat"])
    args = [line for file in files for line in arguments(file, given, short=False)]
    subprocess.run([EXIFTOOL, "-@", "-"], input="\n".join(args).encode(), capture_output=True, check=False)
    found = {name: fields["XMP-dc:Subject"] for name, fields in sidecars(tmp_path).items()}
    assert found == {"p.xmp": ["hers"], "p.jpg.xmp": ["cat"], "p.png.xmp": ["cat"]}


def test_further_texts_about_a_picture_are_counted(folder, sira):
    given = [caption_record("a.png", text, schema="sira.ask/1") | {"id": text} for text in ("Red.", "Two.")]
    _, _, err = sira("export", lines(folder / "answers.jsonl", given), "--exiftool", folder / "args")
    assert err.splitlines()[-2:] == [
        f"sira: texts in {folder / 'args'}, for `exiftool -@ {folder / 'args'}`: 1",
        "sira: left out: further texts about pictures that have one: 1",
    ]
