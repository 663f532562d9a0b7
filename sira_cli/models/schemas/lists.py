"""The lists of a growing JSON text: where a further entry would begin, and whether there is room for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

_CLOSING = {ord("["): b"]", ord("{"): b"}"}


@dataclass(frozen=True)
class _Place:
    """A place in a JSON text: open brackets, and whether it is in a string, and after a backslash."""

    open: bytes = b""
    quoted: bool = False
    escaped: bool = False

    def after(self, byte: int) -> _Place:
        """Return the next place."""
        if self.escaped or (self.quoted and byte not in b'\\"'):
            return replace(self, escaped=False) if self.escaped else self
        if self.quoted:
            return replace(self, quoted=byte != ord('"'), escaped=byte == ord("\\"))
        if byte == ord('"'):
            return replace(self, quoted=True)
        if byte in b"[{":
            return replace(self, open=self.open + bytes([byte]))
        return replace(self, open=self.open[:-1]) if byte in b"]}" else self


class Commas:
    """The tokens of a vocabulary with a comma that may be outside strings."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Find the tokens.

        Args:
            pieces: bytes of every token.
        """
        self._pieces = pieces
        self._plain = [token for token, piece in enumerate(pieces) if b"," in piece]
        self._quoted = [token for token in self._plain if b'"' in pieces[token][: pieces[token].rindex(b",")]]

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""
        return self._pieces[token]

    def among(self, bits: bytes, quoted: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the tokens with a set bit, and their bytes; `quoted`: the text is in a string."""
        for token in self._quoted if quoted else self._plain:
            if bits[token // 8] >> token % 8 & 1:
                yield token, self._pieces[token]


class OpenLists:
    """The open lists of a text with a token limit. Near the limit no entry begins, so that the lists can be closed.

    An entry may be twice as long as the longest one before it in lists of the same depth.
    """

    def __init__(self, limit: int, complete: Callable[[bytes], bool]) -> None:
        """Begin an empty text.

        Args:
            limit: tokens of the text, its end token included.
            complete: returns whether bytes are a complete text.
        """
        self._left, self._complete = limit, complete
        self._place, self._text = _Place(), bytearray()
        self._entry: dict[int, int] = {}  # by depth: tokens left when the newest entry began
        self._longest: dict[int, int] = {}  # by depth: tokens of an entry

    def skip(self) -> None:
        """Count a token that does not belong to the text."""
        self._left -= 1

    def add(self, piece: bytes) -> None:
        """Take the next token."""
        for byte in piece:
            depth = len(self._place.open)
            in_list = not self._place.quoted and self._place.open[-1:] == b"["
            if in_list and byte in b",]":
                self._longest[depth] = max(self._longest.get(depth, 0), self._entry[depth] - self._left)
            self._place = self._place.after(byte)
            if (in_list and byte == ord(",")) or len(self._place.open) > depth:
                self._entry[len(self._place.open)] = self._left
        self._text += piece
        self._left -= 1

    def without_more(self, bits: bytes, commas: Commas) -> bytes:
        """Remove the tokens that begin an entry without certain room from a mask.

        Args:
            bits: a bit per token.
            commas: of the vocabulary.
        """
        if not any(self._is_short(depth) for depth in self._longest):
            return bits
        left, known = bytearray(bits), dict[int, bool]()
        for token, piece in commas.among(bits, self._place.quoted):
            place = self._place
            for at, byte in enumerate(piece):
                depth = len(place.open)
                if byte == ord(",") and not place.quoted and place.open[-1:] == b"[" and self._is_short(depth):
                    if depth not in known:
                        closed = b"".join(_CLOSING[bracket] for bracket in reversed(place.open))
                        known[depth] = self._complete(bytes(self._text) + piece[:at] + closed)
                    if known[depth]:
                        left[token // 8] &= ~(1 << token % 8)
                        break
                place = place.after(byte)
        return bytes(left)

    def _is_short(self, depth: int) -> bool:
        return depth in self._longest and self._left < 2 * self._longest[depth] + depth + 1
