"""Descriptions as XMP sidecars, where programs for photographs look: `photo.jpg.xmp`, merged into one that exists.

    dc:description                       the text, for every language (x-default)
    Iptc4xmpCore:AltTextAccessibility    the same, up to 250 characters; longer: ExtDescrAccessibility
    dc:subject, digiKam:TagsList         tags and labels, next to those that are there
    sira:...                             model, method and key of the record, the support of each object, "reviewed"

All other properties of a sidecar stay as they are. `merged` is the whole of it; `XmpSidecars` finds the files.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.data.captions.sidecars import Sidecars
from sira_cli.errors import DataError, SettingsError
from sira_cli.files import make_folder, replacing
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.single import FilePicture

LONGEST = 2**24  # bytes of a sidecar
ALT = 250  # characters: IPTC's advice for alternative texts
RDF, XML = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/XML/1998/namespace"
NAMESPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "sira": "urn:x-sira:xmp:1.0#",
}
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
    f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}">'
    '<rdf:Description rdf:about=""/></rdf:RDF></x:xmpmeta>'
    '<?xpacket end="w"?>'
).encode()


@dataclass(frozen=True)
class Described:
    """The content of a sidecar that comes from a record.

    Attributes:
        text: the description; empty: none.
        keywords: tags or labels.
        facts: properties of the namespace `sira`: a text, or several.
    """

    text: str
    keywords: tuple[str, ...] = ()
    facts: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Described:
        """Return the description in a record: of values that follow a schema, a caption, tags, labels or objects."""
        data, text = record.get("data"), str(record["text"])
        keywords: list[Any] = []
        if isinstance(data, Mapping):
            text = str(data.get("caption") or data.get("scene") or "")
            named = [*data.get("labels", ()), *data.get("objects", ())]
            keywords = [*data.get("tags", ()), *(each["name"] for each in named if isinstance(each, Mapping))]
        elif isinstance(data, list):
            text, keywords = "", data
        facts: dict[str, str | Sequence[str]] = {
            name: str(record[name]) for name in ("model", "revision", "method", "key") if record.get(name)
        }
        facts |= {"version": str(record.get("sira_version", "")), "reviewed": "no"}
        claims = [*(record.get("objects") or ()), *(record.get("claims") or ())]
        if claims:
            facts["support"] = [f"{claim['support']:.2f} {claim['thing']}" for claim in claims]
        words = tuple(dict.fromkeys(word for word in keywords if isinstance(word, str) and word))
        return cls(text, words, facts)


def description(data: bytes) -> str:
    """Return the description in a sidecar; empty if it has none.

    Raises:
        DataError: it is not XMP, or not safe to read.
    """
    return next(iter(_values(_root(data), "dc:description")), "")


def merged(data: bytes | None, described: Described, *, overwrite: bool = False) -> bytes | None:
    """Return a sidecar with a description, and with everything else that it had.

    Args:
        data: of the existing sidecar; None: it does not exist.
        described: what to put in. Keywords are added to those that others have set.
        overwrite: replace a description that is not sira's.

    Returns:
        None if the sidecar has a description of somebody else, which is to stay.

    Raises:
        DataError: the existing sidecar is not XMP, or not safe to read.
    """
    from lxml import etree

    root = _root(_EMPTY if data is None else data)
    there = next(iter(_values(root, "dc:description")), "")
    if there and not overwrite and _hash(there) not in _values(root, "sira:described"):
        return None
    ours = {*_values(root, "sira:keywords")}
    _clear(root, lambda name: name.startswith(f"{{{NAMESPACES['sira']}}}"))
    if described.text:
        _put(root, "dc:description", "Alt", [described.text])
        for name in ("AltTextAccessibility", "ExtDescrAccessibility"):
            _clear(root, _tag(f"Iptc4xmpCore:{name}").__eq__)
        alt = "AltTextAccessibility" if len(described.text) <= ALT else "ExtDescrAccessibility"
        _put(root, f"Iptc4xmpCore:{alt}", "Alt", [described.text])
        _put(root, "sira:described", "", [_hash(described.text)])
    if described.keywords or ours:
        for name, kind in (("dc:subject", "Bag"), ("digiKam:TagsList", "Seq")):
            kept = [word for word in _values(root, name) if word not in ours]
            _put(root, name, kind, [*kept, *(word for word in described.keywords if word not in kept)])
        _put(root, "sira:keywords", "Bag", described.keywords)
    for name, value in described.facts.items():
        kind, values = ("", [value]) if isinstance(value, str) else ("Bag", [*value])
        _put(root, f"sira:{name}", kind, values)
    written: bytes = etree.tostring(root.getroottree(), encoding="UTF-8", xml_declaration=False)
    return written


def _root(data: bytes) -> Any:
    """Parse a sidecar: no entities, no files, nothing from the network.

    Raises:
        DataError: it is not XMP, is larger than `LONGEST`, or has a document type.
        SettingsError: the extra `xmp` is missing.
    """
    try:
        from lxml import etree
    except ImportError as error:
        raise SettingsError("XMP sidecars need lxml: pip install 'sira-cli[xmp]'") from error
    if len(data) > LONGEST:
        raise DataError(f"has {len(data):,} bytes, expected at most {LONGEST:,}")
    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise DataError(f"is not XML: {error}") from error
    if root.getroottree().docinfo.doctype:
        raise DataError("has a document type, which no XMP has")
    if next(_descriptions(root), None) is None:
        raise DataError("is not XMP: expected rdf:RDF with an rdf:Description")
    return root


def _tag(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


def _descriptions(root: Any) -> Iterator[Any]:
    """Yield the parts of a sidecar that hold properties of the picture."""
    rdf = root if root.tag == f"{{{RDF}}}RDF" else root.find(f"{{{RDF}}}RDF")
    return iter(()) if rdf is None else rdf.iterchildren(f"{{{RDF}}}Description")


def _values(root: Any, name: str) -> list[str]:
    """Return a property's values: those of a list, an element's text, or an attribute's."""
    found: list[str] = []
    for part in _descriptions(root):
        found += [part.get(_tag(name))] if part.get(_tag(name)) else []
        for element in part.iterchildren(_tag(name)):
            items = list(element.iter(f"{{{RDF}}}li"))
            items.sort(key=lambda item: item.get(f"{{{XML}}}lang", "x-default") != "x-default")
            found += [text for item in items or [element] if (text := (item.text or "").strip())]
    return found


def _clear(root: Any, is_one: Callable[[str], bool]) -> None:
    """Remove properties by their names."""
    for part in _descriptions(root):
        for name in [name for name in part.attrib if is_one(str(name))]:
            del part.attrib[name]
        for element in list(part.iterchildren("*")):
            if is_one(element.tag):
                part.remove(element)


def _put(root: Any, name: str, kind: str, values: Sequence[str]) -> None:
    """Set a property: a text, or a list of a kind (Alt, Bag, Seq)."""
    from lxml import etree

    _clear(root, _tag(name).__eq__)
    if not values:
        return
    prefix = name.partition(":")[0]
    place = etree.SubElement(next(_descriptions(root)), _tag(name), nsmap={prefix: NAMESPACES[prefix]})
    if kind:
        inside = etree.SubElement(place, f"{{{RDF}}}{kind}")
    for value in values:
        item = etree.SubElement(inside, f"{{{RDF}}}li") if kind else place
        item.text = "".join(letter for letter in value if letter.isprintable() or letter in "\n\t")
        if kind == "Alt":
            item.set(f"{{{XML}}}lang", "x-default")


def _hash(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


class XmpSidecars(Sidecars):
    """Where each picture's XMP is: the file that exists, `photo.jpg.xmp` or `photo.xmp`, else the first."""

    def __init__(self, pictures: Iterable[Picture], *, output_dir: Path | None = None, overwrite: bool = False) -> None:
        """Find every picture's place.

        Raises:
            SettingsError: as `Sidecars`, or the extra `xmp` is missing.
        """
        _root(_EMPTY)
        super().__init__(pictures, extension=".xmp", output_dir=output_dir, overwrite=overwrite)

    def place(self, picture: Picture) -> Path:
        """Return the sidecar of a picture."""
        shorter = super().place(picture)
        if not isinstance(picture, FilePicture):
            return shorter
        longer = shorter.with_name(Path(picture.location).name + ".xmp")
        return shorter if shorter.exists() and not longer.exists() else longer

    def text(self, picture: Picture) -> str:
        """Return the description in a picture's sidecar; empty if it has none."""
        with suppress(OSError, DataError):
            return description(self.place(picture).read_bytes())
        return ""

    def is_there(self, picture: Picture) -> bool:
        """Return whether a picture's sidecar has a description, or keywords of ours alone."""
        with suppress(OSError, DataError):
            root = _root(self.place(picture).read_bytes())
            return bool(_values(root, "dc:description") or _values(root, "sira:key"))
        return False

    def describe(self, picture: Picture, record: Mapping[str, Any]) -> None:
        """Write the description in a record. A sidecar that cannot be merged stays as it is, with a warning.

        Raises:
            SiraError: the file cannot be written.
        """
        place = self.place(picture)
        try:
            there = place.read_bytes() if place.exists() else None
            content = merged(there, Described.of(record), overwrite=self._overwrite)
        except (DataError, OSError) as error:
            logging.getLogger(__name__).warning("%s: is left as it is: %s", place, error)
            return
        if content is not None:
            make_folder(place.parent)
            with replacing(place) as file:
                file.write(content)
