"""What ExifTool makes of an argument file, beside pictures that people have described in their programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.analysis.export import _UNNAMABLE, arguments

EXIFTOOL = shutil.which("exiftool")
pytestmark = pytest.mark.skipif(EXIFTOOL is None, reason="needs apt-get install libimage-exiftool-perl")


def record(text="A cat.", **more):
    return {"schema": "sira.caption/1", "status": "ok", "model": "m", "text": text, **more}


def followed(caption, **more):
    data = {"caption": caption, **more}
    return record(json.dumps(data), data=data)


def picture(folder: Path, name: str = "a.jpg") -> Path:
    file = folder / name
    Image.new("RGB", (8, 8), "red").save(file, "PNG" if name.endswith(".png") else "JPEG")
    return file


def put(*commands: tuple[Path, list[str]]) -> None:
    args = [line for file, fields in commands for line in ("-q", "-overwrite_original", *fields, str(file), "-execute")]
    subprocess.run([EXIFTOOL, "-@", "-"], input="\n".join(args).encode(), check=True)


def export(folder: Path, *given: tuple, replace: bool = False) -> None:
    """Run ExifTool with an argument file, from another folder; twice, as the second time changes nothing."""
    lines = [line for each in given for line in arguments(*each, replace=replace)]
    (folder / "args").write_bytes(b"".join(os.fsencode(line) + b"\n" for line in lines))
    before = {file: file.read_bytes() for file, *_ in given}
    states = []
    for _ in range(2):
        done = subprocess.run([EXIFTOOL, "-@", folder / "args"], capture_output=True, text=True, cwd="/", check=False)
        assert (done.stderr, done.stdout) == ("", "")
        times = {file: 0 if replace else file.stat().st_mtime_ns for file in folder.glob("*.xmp")}
        states.append({file: (file.read_bytes(), time) for file, time in times.items()})
    assert states[0] == states[1]
    assert before == {file: file.read_bytes() for file in before}
    assert not list(folder.glob("*_original"))


def sidecars(folder: Path) -> dict[str, dict]:
    """The fields of all sidecars in a folder, by name."""
    command = [EXIFTOOL, "-j", "-struct", "-b", "-charset", "filename=utf8", "-G1", "-XMP:all", "--XMPToolkit"]
    if not (files := [*folder.glob("*.xmp")]):
        return {}
    found = json.loads(subprocess.check_output([*command, *files]))
    return {Path(each.pop("SourceFile")).name: each for each in found}


def test_a_picture_without_metadata_gets_all(tmp_path):
    looked = {"objects": [{"thing": "dog", "spans": [[10, 13]], "support": 0.1}], "verify": {"min_support": 0.5}}
    given = followed("Naïve 夕焼け & <b>.\n🙂", alt="Two animals.", tags=["cat", "dog", "black/white", "cat"])
    export(tmp_path, (picture(tmp_path), given | looked))
    assert sidecars(tmp_path)["a.jpg.xmp"] == {
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


def test_a_description_in_the_picture_stays_alone(tmp_path):
    files = [(picture(tmp_path, f"{number}.jpg"), fields) for number, fields in enumerate(DESCRIBED)]
    put(*files)
    export(tmp_path, *((file, record()) for file, _ in files))
    assert sidecars(tmp_path) == {}


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
    export(tmp_path, *((file, followed("A cat.", alt="A pet.")) for file in files))
    pet, cat = {"XMP-iptcCore:AltTextAccessibility": "A pet."}, {"XMP-dc:Description": "A cat."}
    assert sidecars(tmp_path) == {
        "long.jpg.xmp": before["long.jpg.xmp"] | pet,
        "short.xmp": before["short.xmp"] | pet,
        "both.jpg.xmp": before["both.jpg.xmp"] | pet,
        "both.xmp": before["both.xmp"],
        "empty.xmp": before["empty.xmp"] | pet | cat | {"XMP-photoshop:CaptionWriter": "sira, m"},
        "author.jpg.xmp": pet | cat,
    }


def test_replace_is_asked_for(tmp_path):
    file, sidecar = picture(tmp_path), tmp_path / "a.jpg.xmp"
    old = ["-XMP-dc:Description=Old", "-XMP-dc:Description-de=Alt", "-XMP:Rating=4"]
    put((file, ["-EXIF:ImageDescription=Old", "-XMP-dc:Description=Old"]), (sidecar, old))
    export(tmp_path, (file, record()), replace=True)
    fields = {"XMP-dc:Description": "A cat.", "XMP-tiff:ImageDescription": "A cat."}  # Immich prefers the second one
    assert sidecars(tmp_path)[sidecar.name] == {**fields, "XMP-photoshop:CaptionWriter": "sira, m", "XMP-xmp:Rating": 4}


def test_a_correction_replaces_what_was_written_before_it(tmp_path):
    wrong, right = record("A dog."), record("A cat.")
    mine, translated, same = (picture(tmp_path, f"{name}.jpg") for name in ("mine", "translated", "same"))
    export(tmp_path, *((file, wrong) for file in (mine, translated, same)))
    put(
        (tmp_path / "mine.jpg.xmp", ["-XMP-dc:Description=My cat."]),
        (tmp_path / "translated.jpg.xmp", ["-XMP-dc:Description-de=Eine Katze."]),
    )
    export(tmp_path, *((file, right, wrong) for file in (mine, translated, same)))
    assert sidecars(tmp_path) == {
        "mine.jpg.xmp": {"XMP-dc:Description": "My cat."},
        "translated.jpg.xmp": {"XMP-dc:Description-de": "Eine Katze."},
        "same.jpg.xmp": {"XMP-dc:Description": "A cat."},
    }


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


def test_keywords_of_people_are_neither_hidden_nor_doubled(tmp_path):
    """Of Lightroom, digiKam, Windows and Immich."""
    rows = [
        [[part.replace("\\", "|") for part in cell.strip().split(" + ") if part] for cell in row.split("|")]
        for row in KEYWORDS.strip().splitlines()
    ]
    files = [picture(tmp_path, f"{number}.jpg") for number in range(len(rows))]
    for file, (own, beside, *_) in zip(files, rows, strict=True):
        for place, fields in ((file, own), (file.with_name(f"{file.name}.xmp"), beside)):
            if fields:
                put((place, [f"-{field}" for field in fields]))
    export(tmp_path, *((file, record('["cat", "new"]', data=["cat", "new"])) for file in files))
    found = sidecars(tmp_path)
    for file, (_, _, subject, tags) in zip(files, rows, strict=True):
        fields = found[f"{file.name}.xmp"]
        assert (fields["XMP-dc:Subject"], fields["XMP-digiKam:TagsList"]) == (subject, tags), file
        assert "XMP-dc:Description" not in fields


def test_keywords_that_people_add_later_come_in_too(tmp_path):
    file, given = picture(tmp_path), record('["cat"]', data=["cat"])
    export(tmp_path, (file, given))
    put((file, ["-XMP-dc:Subject=dog"]))
    export(tmp_path, (file, given))
    fields = sidecars(tmp_path)["a.jpg.xmp"]
    assert fields == {"XMP-dc:Subject": ["cat", "dog"], "XMP-digiKam:TagsList": ["cat", "dog"]}


NAMES = ["-q.jpg", "# a.jpg", " b'\"  c$1 @d.jpg", "%d 100%.jpg", "ä 夕.png", "c\\nd.jpg", ".e.jpg", "f.g.JPG"]
TEXTS = [
    "<b>",
    "=a",
    "<=/etc/passwd",
    "@x",
    "-x",
    "# x",
    "a < b",
    "&lt;",
    "&#65;",
    "a\\",
    "x\ny",
    "${x} $5",
    "10 %d",
    "'",
]


def test_names_and_texts_of_every_kind(tmp_path):
    files = dict.fromkeys(NAMES, "A cat.") | {f"{number}.jpg": text for number, text in enumerate(TEXTS)}
    tags = ["cat", "a & b", "&amp;", "$x", "夕"]
    no_text = picture(tmp_path, os.fsdecode(b"\xff.jpg"))
    given = [(picture(tmp_path, name), followed(text, tags=tags)) for name, text in files.items()]
    export(tmp_path, (no_text, record()), *given)
    assert no_text.with_name(f"{no_text.name}.xmp").exists()
    found = sidecars(tmp_path)
    for name, text in files.items():
        fields = found[f"{name}.xmp"]
        assert (fields["XMP-dc:Description"], fields["XMP-dc:Subject"]) == (text, tags), name


@pytest.mark.parametrize("name", ["touch x|", "a\nb.jpg"])
def test_names_that_would_be_read_otherwise_are_refused(name):
    assert _UNNAMABLE.search(name)
