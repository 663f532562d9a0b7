"""Two collections about the same pictures, side by side."""

from __future__ import annotations

from sira_cli.analysis.compare import Stretch, differences
from sira_cli.errors import DataError
from sira_cli.view.collection import Collection
from sira_cli.view.items import Item


class Compared:
    """The texts of another collection, by the pictures of the first.

    A picture is the same in both if it has the same name; if more pictures of the two have the same path or the same
    content, that decides, as in `sira compare`.

    Attributes:
        other: the other collection.
        pairs: how many pictures both have.
    """

    def __init__(self, first: Collection, other: Collection) -> None:
        """Find the pairs.

        Raises:
            DataError: there are none.
        """
        self.other = other
        self._partners: dict[int, Item] = {}
        for identify in (_by_name, _by_path, _by_content):
            known = {identify(item): item for item in other.items if identify(item)}
            found = {
                number: known[name] for number, item in enumerate(first.items) if (name := identify(item)) in known
            }
            if len(found) > len(self._partners):
                self._partners = found
        self.pairs = len(self._partners)
        if not self.pairs:
            raise DataError(
                f"{first.source} and {other.source} have no picture in common: give captions of the same pictures"
            )

    def partner(self, number: int) -> Item | None:
        """Return the other's item about the picture of that number, if it has one."""
        return self._partners.get(number)

    def stretches(self, number: int, text: str) -> list[Stretch]:
        """Return what the other's text has and a text has, word by word; none if the other has no such picture."""
        partner = self.partner(number)
        return [] if partner is None else differences(partner.text, text)


def _by_name(item: Item) -> str:
    return item.name


def _by_path(item: Item) -> str:
    return item.picture.address


def _by_content(item: Item) -> str:
    return str(item.values.get("image_sha256") or "")
