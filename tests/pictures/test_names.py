"""Names of files in records: whatever bytes they hold, no two have the same text, and the text gives the name back."""

from __future__ import annotations

import itertools
import os
import unicodedata

from sira_cli.pictures.find import check_images, find_pictures
from sira_cli.pictures.names import as_text, from_text
from sira_cli.pictures.sources import located, recorded


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
