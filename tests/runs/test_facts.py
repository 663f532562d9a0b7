"""Facts from pictures' metadata in prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from sira_cli.data.prompts import filled, needs_columns
from sira_cli.data.xmp.facts import LONGEST, fact
from sira_cli.data.xmp.metadata import Metadata
from sira_cli.errors import SettingsError
from sira_cli.pictures.single import FilePicture
from sira_cli.runs.xmp import Described
from tests.runs.test_xmp import merged
from tests.runs.test_xmp_runs import with_iptc


@pytest.fixture
def picture(tmp_path) -> FilePicture:
    """A JPEG with EXIF, GPS and IPTC, and keywords in a sidecar."""
    file = tmp_path / "Paris" / "tower.jpg"
    file.parent.mkdir()
    exif = Image.Exif()
    exif[ExifTags.Base.Artist] = "Anna\x07\n B."
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2026:05:04 12:00:00"
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: (48.0, 51.0, 30.24), 3: "E", 4: (2.0, 17.0, 40.2)})
    Image.new("RGB", (64, 48)).save(file, exif=exif)
    with_iptc(file, b"Der Eiffelturm" + b" x" * 1000)
    (file.parent / "tower.jpg.xmp").write_bytes(merged(None, Described("A tower.", "", ("tower", "iron"))))
    return FilePicture(str(file), "tower.jpg")


FACTS = {
    "exif.DateTimeOriginal": "2026:05:04 12:00:00",
    "exif.Artist": "Anna B.",
    "gps": "48.8584 N, 2.2945 E",
    "xmp.subject": "tower, iron",
    "xmp.description": "A tower.",
    "iptc.Caption": ("Der Eiffelturm" + " x" * 1000)[:LONGEST],
    "iptc.City": "",
    "folder": "Paris",
    "stem": "tower",
}


@pytest.mark.parametrize("name", FACTS)
def test_facts(picture, name):
    assert fact(Metadata(picture), name) == FACTS[name]


def test_joiners_stay_and_other_signs_without_a_shape_go(picture):
    place = Path(f"{picture.location}.xmp")
    place.write_bytes(merged(None, Described("\u0645\u06cc\u200c\u062e\u0648\u0627\u0646\u0645\u202e x")))
    assert fact(Metadata(picture), "xmp.description") == "\u0645\u06cc\u200c\u062e\u0648\u0627\u0646\u0645 x"


def test_a_prompt_with_several_facts_reads_the_file_once(picture, monkeypatch):
    reads, read = [], FilePicture.read
    monkeypatch.setattr(FilePicture, "read", lambda self: reads.append(1) or read(self))
    filled("{exif.Artist} {gps} {iptc.Caption}", picture)
    assert len(reads) == 1


def test_prompts_are_filled_and_missing_facts_have_defaults(picture):
    prompt = "In {iptc.City|an unknown city}, {iptc.City}{folder}: {xmp.subject|nothing}?"
    assert needs_columns(prompt, [picture])
    assert filled(prompt, picture) == "In an unknown city, Paris: tower, iron?"
    (Path(picture.location).with_suffix(".txt")).write_text("A note.")
    assert filled("{txt} {stem}", picture) == "A note. tower"


@pytest.mark.parametrize("name", ["exif.DateTimeOrginal", "iptc.Town", "xmp.nothing"])
def test_unknown_facts_are_errors_before_the_run(sira, picture, name):
    code, _, err = sira("caption", picture.location, "-p", "demo", "--prompt", f"At {{{name}}}.")
    assert (code, f"the prompt holds {{{name}}}, which is no fact" in err) == (2, True)
    with pytest.raises(SettingsError):
        needs_columns(f"{{{name}}}", [picture])


def test_damaged_metadata_are_no_facts(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    assert fact(Metadata(FilePicture(str(tmp_path / "a.jpg"), "a.jpg")), "exif.Artist") == ""


def test_a_record_has_the_filled_prompt(sira, picture):
    code, out, _ = sira("ask", picture.location, "Is this {folder}?", "-p", "demo", "--json", "--max-new-tokens", 4)
    assert (code, json.loads(out)["prompt"]) == (0, "Is this Paris?")
