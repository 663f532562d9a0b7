"""Two collections about the same pictures, side by side."""

from __future__ import annotations

from array import array

from sira_cli.analysis.compare import Stretch, differences
from sira_cli.errors import DataError
from sira_cli.view.collection import Collection, GoneError
from sira_cli.view.items import CaptionItem


class OtherCaptions:
    """The texts of another collection, by the pictures of the first.

    A picture is the same in both if it has the same name; if more pictures of the two have the same path or the same
    content, that decides, as in `sira compare`.

    Attributes:
        other: the other collection.
        pairs: number of pictures in both.
    """

    def __init__(self, first: Collection, other: Collection) -> None:
        """Find the pairs.

        Raises:
            DataError: no pairs.
        """
        self.other, self._first, self.pairs = other, first, 0
        self._versions = (-1, -1)
        self.find_pairs()
        if not self.pairs:
            raise DataError(
                f"{first.source} and {other.source} have no picture in common: give captions of the same pictures"
            )

    def find_pairs(self) -> None:
        """Find the pairs again, if either was read again."""
        versions = (self._first.version, self.other.version)
        if versions == self._versions:
            return
        partners, others = array("i"), array("i")
        all_first = len(self._first)
        for in_first, in_other in zip(self._first.identities(), self.other.identities(), strict=True):
            known = {identity: number for identity, number in in_other() if identity}
            found = [(number, known[identity]) for identity, number in in_first() if identity in known]
            if len(found) > len(partners):
                partners = array("i", (number for number, _ in found))
                others = array("i", (number for _, number in found))
            if len(partners) == all_first:
                break
        texts = array("q", [0]) * (max(others, default=-1) + 1)
        for number, text in self.other.hashes("text"):
            if number < len(texts):
                texts[number] = text
        self._first.index.pair((other, texts[other], number) for number, other in zip(partners, others, strict=True))
        self.pairs, self._versions = len(partners), versions

    def partner(self, number: int) -> CaptionItem | None:
        """Return the other collection's item for the picture of that number, if any."""
        for (other,) in self._first.index.ask("SELECT other FROM items WHERE number = ? AND other IS NOT NULL", number):
            try:
                return self.other.item(other)
            except GoneError:
                return None
        return None

    def stretches(self, number: int, text: str) -> list[Stretch]:
        """Return the stretches of the other's text and of a text, word by word; none if the other lacks the picture."""
        partner = self.partner(number)
        return [] if partner is None else differences(partner.text, text)
