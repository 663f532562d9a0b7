"""ExifTool and Exiv2 (which digiKam, darktable and others read with) find in sidecars what was put there."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from sira_cli.data.xmp.packet import Packet
from sira_cli.runs import xmp
from sira_cli.runs.xmp import ALT, Described
from tests.runs.test_xmp import foreign

EXIFTOOL, EXIV2 = shutil.which("exiftool"), shutil.which("exiv2")
pytestmark = pytest.mark.skipif(
    EXIFTOOL is None or EXIV2 is None, reason="needs apt-get install libimage-exiftool-perl exiv2"
)
WORDS = ["Hund", "a < b", '"quoted"', "naïve", "夕焼け", "&amp;", "O'Neill", "🙂", "red car", "1999", "]]>", "e\u0301"]
LANGUAGES = ["", "en", "de", "pt-BR"]
FOREIGN = ("XMP-xmp", "XMP-lr", "XMP-darktable", "XMP-dc:Creator", "XMP-dc:Rights")


def described(draw: random.Random) -> Described:
    def words(most: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, most)))

    keywords = tuple(dict.fromkeys(draw.choice(WORDS) for _ in range(draw.randint(0, 5))))
    facts = {"model": words(3), "key": "k", "reviewed": "no", "support": [f"0.{draw.randint(10, 99)} {words(2)}"]}
    text = "" if keywords and draw.random() < 0.2 else words(draw.choice([5, 90]))
    return Described(text, words(4) if text and draw.random() < 0.3 else "", keywords, facts, draw.choice(LANGUAGES))


def exiftool(folder: Path) -> dict[str, dict]:
    """All that ExifTool reads, by file: with the program's own names, a text for a list of one."""
    command = [EXIFTOOL, "-j", "-G1", "-charset", "utf8", "-ext", "xmp", str(folder)]
    read = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {Path(each["SourceFile"]).name: each for each in read}


def exiv2(file: Path, key: str) -> list[str]:
    """The lines that Exiv2 prints of a property."""
    command = [EXIV2, "-g", f"^{key}", "-PXv", "print", str(file)]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.splitlines()


def listed(value: object) -> list[str]:
    return [str(each) for each in (value if isinstance(value, list) else [] if value is None else [value])]


def check(folder: Path, expected: dict[str, Described], for_exiv2: set[str]) -> dict[str, dict]:
    found = exiftool(folder)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        read = found[name]
        assert "ExifTool:Warning" not in read, (name, read["ExifTool:Warning"])
        alt = wanted.alt or (wanted.text if len(wanted.text) <= ALT else "")
        longer = "" if wanted.text == alt else wanted.text
        texts = {"dc:Description": wanted.text, "iptcCore:AltTextAccessibility": alt}
        texts["iptcCore:ExtDescrAccessibility"] = longer
        for tag, text in texts.items():
            assert str(read.get(f"XMP-{tag}", "")) == text, (name, tag)
            if wanted.language and text:
                assert str(read[f"XMP-{tag}-{wanted.language}"]) == text
        for tag in ("dc:Subject", "digiKam:TagsList"):
            assert listed(read.get(f"XMP-{tag}")) == [*wanted.keywords], (name, tag)
        if name not in for_exiv2:
            continue
        assert exiv2(folder / name, "Xmp.dc.subject") == ([", ".join(wanted.keywords)] if wanted.keywords else [])
        (line,) = exiv2(folder / name, "Xmp.dc.description") or [""]
        languages = ["x-default", *([wanted.language] if wanted.language else [])] if wanted.text else []
        assert line == ", ".join(f'lang="{language}" {wanted.text}' for language in languages)
    return found


SIZES = [(20, 12), pytest.param(300, 100, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("new", "merged"), SIZES)
def test_other_programs_read_what_was_written(tmp_path, new, merged):
    draw, expected, for_exiv2 = random.Random(new), {}, set()
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    for number in range(new + merged):
        wanted, name = described(draw), f"{number}.xmp"
        before = foreign(draw) if number >= new else None
        if before is not None:
            (tmp_path / "before" / name).write_bytes(before)
            while before[:2] == b"\xff\xfe" and "🙂" in repr(wanted):
                wanted = described(draw)  # ExifTool knows no characters of two halves in UTF-16
        (tmp_path / "after" / name).write_bytes(xmp.merged(Packet(before), wanted).to_bytes())
        expected[name] = wanted
        # Exiv2 refuses UTF-16.
        if before is None or exiv2(tmp_path / "before" / name, "Xmp"):
            for_exiv2.add(name)
    assert len(for_exiv2) > new + merged / 4
    after = check(tmp_path / "after", expected, for_exiv2)
    for name, before in exiftool(tmp_path / "before").items():
        kept = {tag: value for tag, value in before.items() if tag.startswith(FOREIGN)}
        assert kept
        assert {tag: after[name].get(tag) for tag in kept} == kept
