"""The messages of a chat, as OpenAI's protocol has them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, model_validator


class ImageUrl(BaseModel):
    """The location of a picture; OpenAI's `detail` is ignored."""

    url: str


class ContentPart(BaseModel):
    """A piece of a message."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | str | None = None

    @model_validator(mode="after")
    def _with_url(self) -> Self:
        if self.type == "image_url" and not self.url:  # without it, the text would be about another picture
            raise ValueError("image_url: expected the picture's URL, data:image/...;base64,...")
        return self

    @property
    def url(self) -> str:
        """The location of its picture."""
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url or ""


class RoleMessage(BaseModel):
    """The role of a message; subclasses hold its content."""

    role: Literal["system", "developer", "user", "assistant"]

    @model_validator(mode="before")
    @classmethod
    def _without_words(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("role") == "assistant" and given.get("content") is None:
            return given | {"content": ""}  # clients send null for an answer without words
        return given


class Message(RoleMessage):
    """A message of a chat."""

    content: str | list[ContentPart]

    def texts(self) -> str:
        """Return its text; one line per part."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if part.type == "text" and part.text)

    def pictures(self) -> list[str]:
        """Return the locations of its pictures."""
        if isinstance(self.content, str):
            return []
        return [part.url for part in self.content if part.type != "text"]

    def parts(self) -> tuple[str | None, ...]:
        """Return its texts, with None for each picture; empty if all pictures come before or after the words."""
        content = () if isinstance(self.content, str) else self.content
        parts = [part.text if part.type == "text" else None for part in content if part.type != "text" or part.text]
        seen = [number for number, part in enumerate(parts) if part is None]
        at_one_end = seen in ([*range(len(seen))], [*range(len(parts) - len(seen), len(parts))])
        return () if at_one_end else tuple(parts)
