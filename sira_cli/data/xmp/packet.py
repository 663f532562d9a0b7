"""An XMP packet: reads and changes properties by their usual names, such as `dc:subject`, and keeps the rest.

lxml reads it, because unlike the standard library it keeps prefixes, comments and the processing instructions around
a packet. Entities, document types and anything from the network are off; the size and the depth have limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sira_cli.errors import DataError, SettingsError

LONGEST = 2**24  # bytes of a packet
TEXT = "dc:description"
DEFAULT = "x-default"  # the language of a text for everybody
RDF, XML = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/XML/1998/namespace"
NAMESPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "sira": "urn:x-sira:xmp:1.0#",
    "xmp": "http://ns.adobe.com/xap/1.0/",
}
_LANGUAGE = f"{{{XML}}}lang"
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
    f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}">'
    '<rdf:Description rdf:about=""/></rdf:RDF></x:xmpmeta>'
    '<?xpacket end="w"?>'
).encode()
# Control characters, surrogates and two that are no characters; joiners of emoji and of Persian stay.
_NOT_XML = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PADDING = re.compile(r">(\s+)<\?xpacket end=")


class Packet:
    """The properties of a picture in XMP."""

    def __init__(self, data: bytes | None = None) -> None:
        """Parse a packet; None: make an empty one.

        Raises:
            DataError: the data are not XMP, are larger than `LONGEST`, or have a document type.
            SettingsError: the extra `xmp` is missing.
        """
        try:
            from lxml import etree
        except ImportError as error:
            raise SettingsError("XMP needs lxml: pip install 'sira-cli[xmp]'") from error
        data = _EMPTY if data is None else data
        if len(data) > LONGEST:
            raise DataError(f"has {len(data):,} bytes, expected at most {LONGEST:,}")
        parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
        try:
            self._root = etree.fromstring(data, parser)
        except (etree.XMLSyntaxError, ValueError) as error:
            raise DataError(f"is not XML: {error}") from error
        written = self._root.getroottree().docinfo
        if written.doctype:
            raise DataError("has a document type, which no XMP has")
        if next(self._parts(), None) is None:
            raise DataError("is not XMP: expected rdf:RDF with an rdf:Description")
        text = data.decode(self._encoding, "replace")
        self._declared = text.lstrip("\ufeff").startswith("<?xml")
        padding = _PADDING.search(text)
        self._padding = padding[1] if padding else ""

    @property
    def _encoding(self) -> str:
        return self._root.getroottree().docinfo.encoding or "UTF-8"

    def to_bytes(self) -> bytes:
        """Return the packet with its original encoding, declaration and padding."""
        from lxml import etree

        tree = self._root.getroottree()
        written: bytes = etree.tostring(tree, encoding=self._encoding, xml_declaration=self._declared)
        if not self._padding:
            return written
        # White space after the last element is no part of a tree.
        text = written.decode(self._encoding).replace("<?xpacket end=", f"{self._padding}<?xpacket end=")
        return text.encode(self._encoding)

    def values(self, name: str) -> list[str]:
        """Return a property's values: those of a list, an element's text, or an attribute's; x-default first."""
        found: list[str] = []
        for part in self._parts():
            found += [part.get(tag(name))] if part.get(tag(name)) else []
            for element in part.iterchildren(tag(name)):
                items = list(element.iter(f"{{{RDF}}}li"))
                items.sort(key=lambda item: item.get(_LANGUAGE, DEFAULT) != DEFAULT)
                found += [text for item in items or [element] if (text := (item.text or "").strip())]
        return found

    def text(self, name: str) -> str:
        """Return a property's first value; empty without one."""
        return next(iter(self.values(name)), "")

    def remove(self, name: str) -> None:
        """Remove a property, or with `sira:*` all of a namespace."""
        if name.endswith(":*"):
            start = tag(name.removesuffix("*"))
            self._remove(lambda each: each.startswith(start))
        else:
            self._remove(tag(name).__eq__)

    def put(self, name: str, value: str | Sequence[str], kind: str = "Bag") -> None:
        """Set a property: a text, or a list, of a kind (Bag, Seq). Without values it is removed."""
        self.remove(name)
        if isinstance(value, str):
            self._new(name).text = _allowed(value)
        elif value:
            self._add(self._list(name, kind), [(each, "") for each in value])

    def put_text(self, name: str, text: str, language: str = "", *, drop: Callable[[str], bool]) -> None:
        """Set a text with languages: the default (x-default), and the entry of its own language.

        Args:
            name: of the property.
            text: the text.
            language: its code; empty: unknown.
            drop: which texts in other languages to drop.
        """
        own = (DEFAULT, language.lower())
        kept = [
            item
            for part in self._parts()
            for element in part.iterchildren(tag(name))
            for item in element.iter(f"{{{RDF}}}li")
            if (item.get(_LANGUAGE) or DEFAULT).lower() not in own and not drop((item.text or "").strip())
        ]
        self.remove(name)
        place = self._list(name, "Alt")
        self._add(place, [(text, DEFAULT), *([(text, language)] if language else [])])
        place.extend(kept)

    def _parts(self) -> Iterator[Any]:
        """Yield the elements that hold the picture's properties."""
        root = self._root
        rdf = root if root.tag == f"{{{RDF}}}RDF" else root.find(f"{{{RDF}}}RDF")
        return iter(()) if rdf is None else rdf.iterchildren(f"{{{RDF}}}Description")

    def _remove(self, is_one: Callable[[str], bool]) -> None:
        for part in self._parts():
            for name in [name for name in part.attrib if is_one(str(name))]:
                del part.attrib[name]
            for element in list(part.iterchildren("*")):
                if is_one(element.tag):
                    part.remove(element)

    def _new(self, name: str) -> Any:
        from lxml import etree

        prefix = name.partition(":")[0]
        return etree.SubElement(next(self._parts()), tag(name), nsmap={prefix: NAMESPACES[prefix]})

    def _list(self, name: str, kind: str) -> Any:
        from lxml import etree

        return etree.SubElement(self._new(name), f"{{{RDF}}}{kind}")

    def _add(self, place: Any, entries: Sequence[tuple[str, str]]) -> None:
        """Add texts to a list, each with or without a language."""
        from lxml import etree

        for text, language in entries:
            item = etree.SubElement(place, f"{{{RDF}}}li")
            item.text = _allowed(text)
            if language:
                item.set(_LANGUAGE, language)


def tag(name: str) -> str:
    """Return the full name of a property, such as `{http://purl.org/dc/elements/1.1/}subject`."""
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


def _allowed(text: str) -> str:
    """Return a text without the characters that XML does not allow."""
    return _NOT_XML.sub("", text)
