"""XMP in whole runs: captions read from it, checks and accepted texts written to it, kills, two processes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from sira_cli.data.xmp.packet import TEXT, Packet
from sira_cli.runs.xmp import Described
from sira_cli.runs.xmp_sidecars import describe
from tests.runs.test_xmp import FAST, HOSTILE, PICTURES, foreign, merged, read, tag, without_ours
from tests.support.helpers import SIRA

DEMO = ("-p", "demo", "--language", "en")


def theirs(text: str) -> bytes:
    """A sidecar of somebody else with a description."""
    packet = Packet(foreign(random.Random(3)))
    packet.put_text(TEXT, text, drop=bool)
    return packet.to_bytes()


def with_iptc(file: Path, caption: bytes) -> None:
    """A JPEG with IPTC's Caption-Abstract, in the blocks that Photoshop made."""
    record = b"\x1c\x02\x78" + len(caption).to_bytes(2, "big") + caption
    block = b"8BIM\x04\x04\0\0" + len(record).to_bytes(4, "big") + record + b"\0" * (len(record) % 2)
    segment = b"Photoshop 3.0\0" + block
    data = file.read_bytes()
    file.write_bytes(data[:2] + b"\xff\xed" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:])


@pytest.fixture
def folder(tmp_path) -> Path:
    """Captions in a sidecar of somebody else, in one with the shorter name, and inside pictures."""
    image = Image.open(PICTURES[0]).convert("RGB")
    for name in "abcd":
        image.save(tmp_path / f"{name}.jpg")
    (tmp_path / "a.jpg.xmp").write_bytes(theirs("A cat and a dog."))
    (tmp_path / "b.xmp").write_bytes(merged(None, Described("A blue square.")))
    image.save(tmp_path / "c.jpg", xmp=merged(None, Described("A cat.")))
    with_iptc(tmp_path / "d.jpg", "Ein Hund über dem Gras.".encode("latin-1"))
    return tmp_path


SOURCES = {"a.jpg": "a.jpg.xmp", "b.jpg": "b.xmp", "c.jpg": "XMP in the picture", "d.jpg": "IPTC in the picture"}
TEXTS = {
    "a.jpg": "A cat and a dog.",
    "b.jpg": "A blue square.",
    "c.jpg": "A cat.",
    "d.jpg": "Ein Hund über dem Gras.",
}


def test_captions_in_metadata_are_checked_and_records_name_their_source(sira, folder):
    assert sira("check", folder, "-p", "demo", "-o", folder / "checks.jsonl")[0] == 0
    found = [json.loads(line) for line in (folder / "checks.jsonl").read_text().splitlines()]
    assert {record["file_name"]: record["text"] for record in found} == TEXTS
    assert {record["file_name"]: record["source"] for record in found} == SOURCES
    (folder / "a.txt").write_text("A text file counts first.")
    for extension, names in ((".txt", ["a.jpg"]), (".xmp", [*TEXTS])):
        code, out, _ = sira("check", folder, "-p", "demo", "--caption-extension", extension, "--json")
        assert (code, [Path(json.loads(line)["file_name"]).name for line in out.splitlines()]) == (0, names)


def test_metadata_that_cannot_be_read_are_that_pictures_error(sira, folder):
    (folder / "b.xmp").write_bytes(HOSTILE["deep"])
    image = Image.open(PICTURES[0]).convert("RGB")
    image.save(folder / "c.jpg", xmp=HOSTILE["file"])
    code, out, err = sira("check", folder, "-p", "demo", "--json")
    found = {Path(one["file_name"]).name: one["error"] for one in map(json.loads, out.splitlines())}
    assert (code, found["a.jpg"], found["d.jpg"]) == (3, "", "")
    assert "b.jpg: b.xmp: is not XML: " in found["b.jpg"]
    assert "c.jpg: XMP in the picture: has a document type" in found["c.jpg"]
    assert all(one in err for one in found.values())


def test_a_check_writes_support_next_to_texts_of_others(sira, folder):
    before = (folder / "a.jpg.xmp").read_bytes()
    for _ in range(2):  # the second time it is the same
        assert sira("check", folder, "-p", "demo", "--xmp")[0] == 0
    after = (folder / "a.jpg.xmp").read_bytes()
    found = read(after)
    assert without_ours(after) == without_ours(before)
    assert found[tag("dc:description")] == [TEXTS["a.jpg"]]
    assert tag("Iptc4xmpCore:AltTextAccessibility") in found
    named = [entry.split(" ", 1) for entry in found[tag("sira:support")]]
    assert [thing for _, thing in named] == ["cat", "dog"]
    assert found.get(tag("sira:unsure"), []) == [thing for support, thing in named if float(support) < 0.5]
    assert (folder / "c.jpg.xmp").exists()  # embedded metadata are read only
    assert merged(after, Described("Another text.")) is None  # it is still theirs


@pytest.mark.parametrize(("name", "there", "place"), [
    ("photo.xmp", "a.png.xmp", "a.xmp"), ("photo.jpg.xmp", "a.xmp", "a.png.xmp"), (None, "a.xmp", "a.xmp"),
])  # fmt: skip
def test_the_names_of_sidecars_are_a_setting(sira, tmp_path, name, there, place):
    picture = shutil.copy(PICTURES[0], tmp_path / "a.png")
    (tmp_path / there).write_bytes(before := foreign(random.Random(1)))
    chosen = () if name is None else ("--set", f"xmp_name={name}")
    assert sira("caption", picture, *FAST, "--xmp", *chosen)[0] == 0
    assert Packet((tmp_path / place).read_bytes()).text(TEXT)
    assert place == there or (tmp_path / there).read_bytes() == before


def test_texts_stand_in_their_language_and_translations_of_others_stay():
    first = Packet(merged(None, Described("A dog.", language="en")))
    first.put_text(TEXT, "A dog.", "en", drop=bool)
    german = Packet(merged(None, Described("Ein Hund.", language="de")))
    for packet, kept in ((first, []), (german, [])):
        assert read(merged(packet.to_bytes(), Described("A cat.", language="en")))[tag(TEXT)] == ["A cat."] * 2 + kept
    german.put_text("dc:rights", "Anna", "de", drop=bool)
    translated = german.to_bytes().replace(b'xml:lang="de">Ein Hund', b'xml:lang="fr">Un chien')
    after = merged(translated, Described("A cat.", language="en"))
    assert read(after)[tag(TEXT)] == ["A cat.", "A cat.", "Un chien."]
    assert read(after)[tag("dc:rights")] == ["Anna", "Anna"]


def test_an_alternative_text_of_somebody_else_stays():
    packet = Packet()
    packet.put_text("Iptc4xmpCore:AltTextAccessibility", "By hand.", drop=bool)
    found = read(merged(packet.to_bytes(), Described("A dog.")))
    assert found[tag("Iptc4xmpCore:AltTextAccessibility")] == ["By hand."]
    assert found[tag(TEXT)] == ["A dog."]


def test_padding_stays():
    data = merged(None, Described("A dog.")).replace(b"<?xpacket end", b"\n" + b" " * 2000 + b"<?xpacket end")
    assert merged(data, Described("A cat.")).count(b"\n" + b" " * 2000 + b"<?xpacket end") == 1


def test_what_others_write_at_the_same_time_is_not_lost(tmp_path):
    """Two processes put descriptions into one file; a third one's rating, written in between, stays."""
    place = tmp_path / "a.xmp"
    place.write_bytes(foreign(random.Random(5)))
    script = (
        "import sys; from pathlib import Path\n"
        "from sira_cli.runs.xmp import Described; from sira_cli.runs.xmp_sidecars import describe\n"
        "for number in range(60): describe(Path(sys.argv[1]), Described(f'{sys.argv[2]} {number}.'))"
    )
    runs = [subprocess.Popen([sys.executable, "-c", script, place, name]) for name in ("One", "Two")]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    data = place.read_bytes()
    assert Packet(data).text(TEXT) in ("One 59.", "Two 59.")
    assert without_ours(data) == without_ours(foreign(random.Random(5)))
    assert describe(place, Described("Three."))
    assert [file.name for file in tmp_path.iterdir()] == ["a.xmp"]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, 40])
def test_killed_at_random_moments(sira, home, tmp_path, kills):
    """SIGKILL while sidecars are written: each is as it was, or whole; the last run is as one that was never killed."""
    folders, moments = (tmp_path / "killed", tmp_path / "whole"), random.Random(kills)
    for folder in folders:
        folder.mkdir()
        for number in range(24):
            shutil.copy(PICTURES[number % len(PICTURES)], folder / f"{number:02}.png")
            if number % 2:
                (folder / f"{number:02}.xmp").write_bytes(foreign(random.Random(number)))
    command = ["caption", ".", *map(str, FAST), "--xmp", "-b", "4"]
    for _ in range(kills):
        done = len(list(folders[0].glob("*.png.xmp")))
        with subprocess.Popen(
            [SIRA, *command], cwd=folders[0], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as run:
            until = time.monotonic() + 60
            while done < 11 and len(list(folders[0].glob("*.png.xmp"))) <= done and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(moments.random() * 0.2)
            run.kill()
        for file in folders[0].glob("*.xmp"):
            Packet(file.read_bytes())
    for folder in folders:
        subprocess.run([SIRA, *command], cwd=folder, check=True, capture_output=True)
    left = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert left[0] == left[1]
    assert len(left[0]) == 48
