"""A server that decodes for clients of OpenAI's and Ollama's protocols, and the limits of the cost of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _limit(usual: int, unit: str, most: int = 10**9) -> Any:
    return field(default=usual, metadata={"unit": unit, "most": most})


@dataclass(frozen=True)
class Limits:
    """Limits of the cost of one request, each with its unit, the answer beyond it, and its largest value."""

    waiting: int = _limit(64, "requests; more: 429", 1024)
    tokens: int = _limit(1024, "of a text")
    mb: float = _limit(32, "of a request; larger: 413")
    megapixels: float = _limit(32, "of a request's pictures; more: 413")
    pictures: int = _limit(8, "in a conversation; more: 413")
    prompt: int = _limit(32768, "tokens with pictures; longer: 413")
    seconds: float = _limit(300, "per request; then 504")

    @property
    def bytes(self) -> int:
        """Bytes of a request."""
        return int(self.mb * 2**20)

    @property
    def pixels(self) -> int:
        """Pixels of a request's pictures."""
        return int(self.megapixels * 10**6)
