"""XMP sidecars: read back by another parser, everything of others kept, and nothing unsafe read."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from sira_cli.data.xmp.packet import NAMESPACES, RDF, TEXT, Packet
from sira_cli.errors import DataError
from sira_cli.runs import xmp
from sira_cli.runs.xmp import ALT, Described

PICTURES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[:2]
FAST = ("-p", "demo", "--max-new-tokens", 12)
OURS = ("dc:description", "dc:subject", "digiKam:TagsList")
FOREIGN = {
    "xmp": ("http://ns.adobe.com/xap/1.0/", ("Rating", "CreatorTool", "Label")),
    "lr": ("http://ns.adobe.com/lightroom/1.0/", ("hierarchicalSubject",)),
    "darktable": ("http://darktable.sf.net/", ("history_end", "auto_presets_applied")),
    "dc": (NAMESPACES["dc"], ("creator", "rights")),
}


def merged(data: bytes | None, described: Described, **options: object) -> bytes | None:
    packet = xmp.merged(Packet(data), described, **options)
    return None if packet is None else packet.to_bytes()


def description(data: bytes) -> str:
    return Packet(data).text(TEXT)


def tag(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


def read(data: bytes) -> dict[str, list[str]]:
    """The properties of a sidecar, by the standard library's parser."""
    found: dict[str, list[str]] = {}
    for part in ET.fromstring(data).iter(f"{{{RDF}}}Description"):
        for name, value in part.attrib.items():
            found.setdefault(name, []).append(value)
        for element in part:
            items = list(element.iter(f"{{{RDF}}}li")) or [element]
            found.setdefault(element.tag, []).extend(item.text or "" for item in items)
    return found


def without_ours(data: bytes) -> str:
    """Canonical XML of everything else."""
    root = ET.fromstring(data)
    for part in root.iter(f"{{{RDF}}}Description"):
        for element in list(part):
            ours = element.tag.startswith((f"{{{NAMESPACES['sira']}}}", f"{{{NAMESPACES['Iptc4xmpCore']}}}"))
            if ours or element.tag in map(tag, OURS):
                part.remove(element)
    return ET.canonicalize(ET.tostring(root))


def text_of(data: bytes) -> str:
    return data.decode("utf-16" if data[:2] == b"\xff\xfe" else "utf-8")


def foreign(draw: random.Random) -> bytes:
    """A sidecar of somebody else: attributes and elements, one part or several, with a comment."""
    parts, left = [], [(prefix, name) for prefix, (_, names) in FOREIGN.items() for name in names]
    draw.shuffle(left)
    for _ in range(draw.randint(1, 2)):
        chosen, left = left[:3], left[3:]
        declared = " ".join(f'xmlns:{prefix}="{FOREIGN[prefix][0]}"' for prefix in {prefix for prefix, _ in chosen})
        attributes = f'{chosen[0][0]}:{chosen[0][1]}="{draw.random()}"'
        inside = f"<{chosen[1][0]}:{chosen[1][1]}>é &amp; ü</{chosen[1][0]}:{chosen[1][1]}>"
        seq = "".join(f"<rdf:li>{number}</rdf:li>" for number in range(draw.randint(0, 3)))
        inside += (
            f"<!-- kept --><{chosen[2][0]}:{chosen[2][1]}><rdf:Seq>{seq}</rdf:Seq></{chosen[2][0]}:{chosen[2][1]}>"
        )
        parts.append(f'<rdf:Description rdf:about="" {declared} {attributes}>\n {inside}\n</rdf:Description>')
    body = f'<rdf:RDF xmlns:rdf="{RDF}">{"".join(parts)}</rdf:RDF>'
    if draw.random() < 0.7:
        body = f'<x:xmpmeta xmlns:x="adobe:ns:meta/">{body}</x:xmpmeta>'
    encoding = draw.choice(["utf-8", "utf-8", "utf-16"])
    head = f'<?xml version="1.0" encoding="{encoding}"?>' if encoding == "utf-16" or draw.random() < 0.5 else ""
    return (head + body).encode(encoding)


RECORD = {
    "text": "A dog <on> the “grass”.",
    "model": "bundled",
    "method": "sira",
    "key": "k1",
    "sira_version": "0.2.0",
    "objects": [{"thing": "dog", "support": 0.97}],
}


def test_a_new_sidecar_has_the_description_and_where_it_comes_from():
    data = merged(None, Described.of(RECORD))
    found = read(data)
    assert found[tag("dc:description")] == found[tag("Iptc4xmpCore:AltTextAccessibility")] == [RECORD["text"]]
    assert found[tag("sira:support")] == ["0.97 dog"]
    assert [found[tag(f"sira:{name}")] for name in ("model", "method", "key", "reviewed")] == [
        ["bundled"], ["sira"], ["k1"], ["no"],
    ]  # fmt: skip
    assert description(data) == RECORD["text"]
    assert data.startswith(b"<?xpacket begin=")
    long = read(merged(None, Described.of(RECORD | {"text": "word " * ALT})))
    assert tag("Iptc4xmpCore:AltTextAccessibility") not in long
    assert tag("Iptc4xmpCore:ExtDescrAccessibility") in long


@pytest.mark.parametrize(
    ("data", "text", "keywords"),
    [
        (["dog", "red car"], "", ["dog", "red car"]),
        ({"caption": "A dog.", "tags": ["dog"]}, "A dog.", ["dog"]),
        ({"labels": [{"name": "cat", "confidence": 1}]}, "", ["cat"]),
        ({"scene": "A farm.", "objects": [{"name": "cow"}, {"name": "cow"}]}, "A farm.", ["cow"]),
    ],
)
def test_values_of_the_built_in_schemas_become_descriptions_and_keywords(data, text, keywords):
    found = read(merged(None, Described.of(RECORD | {"text": json.dumps(data), "data": data})))
    assert found.get(tag("dc:description"), [""]) == [text]
    assert found[tag("dc:subject")] == found[tag("digiKam:TagsList")] == keywords


@pytest.mark.parametrize("seed", range(60))
def test_everything_of_others_is_kept(seed):
    before = foreign(random.Random(seed))
    once = merged(before, Described.of(RECORD | {"data": {"caption": "A dog.", "tags": ["dog"]}}))
    again = merged(once, Described.of(RECORD | {"text": "Another text."}))
    for data in (once, again):
        assert without_ours(data) == without_ours(before)
        assert text_of(data).count("kept") == text_of(before).count("kept")
        assert data[:2] == before[:2]  # the encoding, and whether it is declared
    assert description(again) == "Another text."
    assert tag("dc:subject") not in read(again)  # our keywords went with our text


def test_joiners_stay_and_what_xml_does_not_allow_goes():
    family, persian = "\U0001f469\u200d\U0001f467", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0646\u0645"
    packet = Packet()
    packet.put("dc:rights", f"a\x00\x07{family} {persian}\ufffe\ud800\x85\nb")
    assert read(packet.to_bytes())[tag("dc:rights")] == [f"a{family} {persian}\nb"]


def test_keywords_of_others_stay_in_front_of_ours():
    first = merged(None, Described("", "", ("old", "dog")))
    theirs = first.replace(b"<rdf:li>old</rdf:li>", b"<rdf:li>Anna</rdf:li>", 2)  # in both lists, not in sira's
    found = read(merged(theirs, Described("", "", ("cat",))))
    assert found[tag("dc:subject")] == found[tag("digiKam:TagsList")] == ["Anna", "cat"]


@pytest.mark.parametrize("form", ["element", "attribute"])
def test_a_description_of_somebody_else_is_replaced_with_overwrite_only(form):
    said = '<dc:description><rdf:Alt><rdf:li xml:lang="x-default">Mine</rdf:li></rdf:Alt></dc:description>'
    attribute = ' dc:description="Mine"' if form == "attribute" else ""
    inside = said if form == "element" else ""
    theirs = (
        f'<rdf:RDF xmlns:rdf="{RDF}"><rdf:Description rdf:about="" xmlns:dc="{NAMESPACES["dc"]}"{attribute}>{inside}'
        "</rdf:Description></rdf:RDF>"
    ).encode()
    assert merged(theirs, Described.of(RECORD)) is None
    assert read(merged(theirs, Described.of(RECORD), overwrite=True))[tag("dc:description")] == [RECORD["text"]]
    edited = merged(None, Described.of(RECORD)).replace(b"A dog", b"My dog")
    assert merged(edited, Described.of(RECORD)) is None  # somebody has changed our text


LAUGHS = "<!DOCTYPE a [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {letter} '{f'&{before};' * 10}'>" for before, letter in itertools.pairwise("abcdefghij")
)
HOSTILE = {
    "laughs": f'{LAUGHS}]><rdf:RDF xmlns:rdf="{RDF}"><rdf:Description>&j;</rdf:Description></rdf:RDF>'.encode(),
    "file": f'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><rdf:RDF xmlns:rdf="{RDF}"><rdf:Description>&x;'
    "</rdf:Description></rdf:RDF>".encode(),
    "huge": b" " * (2**24 + 1),
    "deep": b"<a>" * 5000,
    "text": b"not XML",
    "empty": b"",
    "html": b"<html/>",
    "encoding": b'<?xml version="1.0" encoding="utf-8"?><a>\xff\xfe</a>',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_not_safe_xmp_is_refused(kind):
    with pytest.raises(DataError):
        merged(HOSTILE[kind], Described.of(RECORD))


def test_a_run_writes_sidecars_and_goes_on(sira, tmp_path):
    names = [shutil.copy(picture, tmp_path / picture.name) for picture in PICTURES]
    first, second = (Path(name) for name in names)
    second.with_suffix(".xmp").write_bytes(foreign(random.Random(0)))  # as Lightroom names it
    code, _, err = sira("caption", tmp_path, *FAST, "--xmp")
    assert (code, "2 of 2 pictures done" in err) == (0, True)
    places = [first.with_name(f"{first.name}.xmp"), second.with_suffix(".xmp")]
    assert sorted(path.name for path in tmp_path.glob("*.xmp")) == sorted(place.name for place in places)
    texts = [description(place.read_bytes()) for place in places]
    assert all(texts)
    before = [place.read_bytes() for place in places]
    places[0].unlink()
    code, _, err = sira("caption", tmp_path, *FAST, "--xmp")
    assert (code, "1 of 2 pictures done" in err) == (0, True)
    assert [place.read_bytes() for place in places] == before
    assert sira("caption", tmp_path, *FAST, "--xmp", "--method", "greedy", "--overwrite")[0] == 0
    assert read(places[0].read_bytes())[tag("sira:method")] == ["greedy"]


def test_a_sidecar_that_cannot_be_read_is_that_pictures_error(sira, tmp_path):
    """No text is decoded for it; mended, the same command goes on. One that breaks later is left as it is."""
    for picture in PICTURES:
        shutil.copy(picture, tmp_path / picture.name)
    bad = tmp_path / f"{PICTURES[0].name}.xmp"
    bad.write_bytes(HOSTILE["laughs"])
    output = tmp_path / "captions.jsonl"
    for again in ((), ("--retry-errors",)):
        code, _, err = sira("caption", tmp_path, *FAST, "--xmp", "-o", output, *again)
        assert (code, err.count(f": {bad}: is not XML: ")) == (3, 1)
        assert bad.read_bytes() == HOSTILE["laughs"]
        first, second = map(json.loads, output.read_text().splitlines())
        assert (first["status"], first["text"], second["status"]) == ("error", "", "ok")
        assert first.keys() == second.keys()
    bad.unlink()
    assert sira("caption", tmp_path, *FAST, "--xmp", "-o", output)[0] == 0
    assert description(bad.read_bytes()) == json.loads(output.read_text().splitlines()[0])["text"]
    bad.write_bytes(HOSTILE["text"])
    code, _, err = sira("caption", tmp_path, *FAST, "--xmp", "-o", output)
    assert (code, err.count(f"{bad}: is left as it is: ")) == (0, 1)
    other = tmp_path / f"{PICTURES[1].name}.xmp"
    text = description(other.read_bytes())
    other.unlink()
    assert sira("caption", tmp_path, *FAST, "--xmp", "-o", output)[0] == 0  # from its record
    assert description(other.read_bytes()) == text
    code, _, err = sira("caption", tmp_path, *FAST, "--xmp", "--method", "greedy,sira")
    assert (code, "--xmp writes one description per picture: give one --method" in err) == (2, True)


def test_a_run_without_records_goes_on_with_whatever_is_missing(sira, tmp_path):
    """Text files alone do not stand for sidecars, and keywords without a description count as done."""
    picture = Path(shutil.copy(PICTURES[0], tmp_path / "a.png"))
    (tmp_path / "a.txt").write_text("A text.")
    code, _, err = sira("caption", picture, *FAST, "--sidecar", "--xmp")
    assert (code, "1 of 1 pictures done" in err) == (0, True)
    assert (tmp_path / "a.txt").read_text() == "A text."
    sidecar = tmp_path / "a.png.xmp"
    assert description(sidecar.read_bytes())
    sidecar.unlink()
    tags = ("caption", picture, "-p", "demo", "--schema", "tags:2", "--xmp")
    assert sira(*tags)[0] == 0
    before = sidecar.read_bytes()
    assert (description(before), bool(read(before)[tag("sira:keywords")])) == ("", True)
    code, _, err = sira(*tags)
    assert (code, "pictures done" in err, sidecar.read_bytes()) == (0, False, before)
