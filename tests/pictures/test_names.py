"""Names of files in records: whatever bytes they hold, no two have the same text, and the text gives the name back."""

from __future__ import annotations

import base64
import itertools
import json
import os
import unicodedata

from sira_cli.pictures.find import check_images, find_pictures
from sira_cli.pictures.names import as_text, from_text, one_line
from sira_cli.pictures.sources import located, recorded
from tests.support.shards import EXAMPLES


def test_ordinary_names_stand_for_themselves():
    for name in ("a.jpg", "sub/ü ö.png", "new\nline.png", r"back\slash.png", r"C:\xylo\x7f.png", "中文.jpg", "\u2028"):
        assert as_text(name) == from_text(name) == name


def test_no_two_names_share_a_text():
    """All names of up to five pieces out of those that could be confused."""
    pieces = (b"\\", b"\xff", b"x", b"f", b"ff", "é".encode())
    names = {os.fsdecode(b"".join(each)) for size in range(1, 6) for each in itertools.product(pieces, repeat=size)}
    texts = {as_text(name) for name in names}
    assert len(texts) == len(names)
    for name in names:
        as_text(name).encode()  # any JSON reader takes it
        assert from_text(as_text(name)) == name


def test_a_name_in_the_other_unicode_form_is_found(tmp_path):
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        place = tmp_path / unicodedata.normalize(form, f"Fotos é {form}")
        place.mkdir()
        (place / unicodedata.normalize(form, "Café.png")).touch()
        folder, name = (unicodedata.normalize(other, each) for each in (str(place), "Café.png"))
        assert not located("nowhere/é").is_here()
        assert all(one.is_here() for one in (located(f"{folder}/{name}"), recorded(name, place)))
        assert [one.is_here() for one in find_pictures([folder])] == [True]
        check_images(place, [name])


def test_a_picture_as_base64_is_no_name(sira, tmp_path, monkeypatch):
    """Tables of benchmarks hold pictures so: they are read as data sets, and refused in a line where names belong."""
    monkeypatch.chdir(tmp_path)
    cells = [base64.b64encode(path.read_bytes()).decode() for path in EXAMPLES[:2]]
    rows = [{"image": cell, "text": "Is there a dog?"} for cell in cells]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for command in (("check", "q.jsonl"), ("ask", "--questions", "q.jsonl"), ("caption", "--files-from", "q.jsonl")):
        code, _, err = sira(*command, "-p", "demo")
        assert (code, "q.jsonl: line 1: image holds a picture as base64, expected its name" in err) == (2, True)
        assert len(err) < 300
    assert [picture.read() for picture in find_pictures(["q.jsonl"])] == [path.read_bytes() for path in EXAMPLES[:2]]


def test_long_names_are_short_in_messages_and_those_of_base64_also_in_records():
    names = ["A" * 5000 + each for each in ("A", "B")]
    assert len(one_line(names[0])) == 200
    assert len({as_text(name) for name in names}) == 2
    assert max(len(as_text(name)) for name in names) < 200
    path = "folder.of/" + "sub/" * 100 + "a.jpg"
    assert as_text(path) == path  # leads to the picture
    assert one_line(path).startswith("folder.of/sub/")
    assert one_line(path).endswith("sub/a.jpg")
