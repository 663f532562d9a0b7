"""The objects that the model itself finds in a text, when it is asked (`models.look.second_look`)."""

from __future__ import annotations

import re

from sira_cli.language.things import Thing, Words

ASK = "ask"
_REQUEST = "Which objects and living things does this text name? Copy each as it stands in the text, one per line."
_BULLET = re.compile(r"^[\s\-*\u2022\u30fb]*(?:\d+[.):\u3001]\s*)?")
_QUOTES = " .\u3002\"'`*\u00ab\u00bb\u201c\u201d\u201e\u300c\u300d"


class Asked(Words):
    """A finder that asks the model."""

    name = ASK

    def group(self, name: str) -> str:
        """Return `name`: nothing is known about synonyms."""
        return name

    def things(self, text: str) -> list[Thing]:
        """Return no objects: only the model can tell which words are objects."""
        return []

    def request(self, text: str) -> str:
        """Return the prompt that asks the model for the objects of a text."""
        return f"{_REQUEST}\n\n{text}"

    def found(self, answer: str, text: str) -> list[Thing]:
        """Return the objects in the model's answer that the text really names, in the order of their first mentions."""
        parts = re.split(r"[\n,;\uff0c\u3001\uff1b]", answer)
        names = [" ".join(_BULLET.sub("", part).strip(_QUOTES).lower().split()) for part in parts]
        names = [re.sub(r"^(?:an?|the) ", "", name) for name in names]
        longest = sorted({name for name in names if name}, key=lambda name: (-len(name), name))
        if not longest:
            return []
        pattern = "|".join(r"\s+".join(map(re.escape, name.split())) for name in longest)
        found: dict[str, list[tuple[int, int]]] = {}
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, re.IGNORECASE):
            found.setdefault(" ".join(match[0].lower().split()), []).append(match.span())
        return [Thing(name, tuple(spans), name) for name, spans in found.items()]
