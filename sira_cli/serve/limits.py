"""Limits of the cost of one request."""

from __future__ import annotations

from dataclasses import dataclass

from sira_cli.models.vocabulary import Vocabulary
from sira_cli.serve.protocol import ChatRequest, RequestError

_PIECE = 8192  # characters that are counted at once: the decoder also needs the tokenizer


@dataclass(frozen=True)
class Limits:
    """Limits of the cost of one request.

    Attributes:
        tokens: of a text.
        pixels: of all pictures together.
        data: bytes of a body.
        seconds: from the request to the end of its answer.
        pictures: in one conversation.
        prompt: tokens of a prompt, those of its pictures included.
        schema: characters of a JSON schema.
    """

    tokens: int = 1024
    pixels: int = 2**25
    data: int = 2**25
    seconds: float = 300.0
    pictures: int = 8
    prompt: int = 2**15
    schema: int = 2**16

    @property
    def parts(self) -> int:
        """Values, lists and objects of a body: each takes more memory than its bytes in the body."""
        return 10_000 + 2 * self.prompt  # commas in a prompt also count


def check_parts(body: bytes | bytearray, most: int) -> None:
    """Check the number of parts of a body, before it is parsed."""
    if sum(map(body.count, (b",", b"[", b"{"))) > most:
        raise too_large(f"the body has more than {most:,} commas and brackets", param=None)


def check_length(chat: ChatRequest, vocabulary: Vocabulary, most: int) -> None:
    """Check first that the text of a request is not too long.

    A pass over a prompt takes time quadratic in its length, and all requests wait for it.

    Messages and settings (`role`) are counted in pieces, up to the limit: this overcounts at borders of pieces, and
    leaves out the tokens of pictures and template.
    """
    count = 0
    settings = [value for value in chat.sira.settings().values() if isinstance(value, str)]
    for text in [message.texts() for message in chat.messages] + settings:
        for start in range(0, len(text), _PIECE):
            count += len(vocabulary.encode(text[start : start + _PIECE]))
            if count > most:
                raise too_long(f"has {count:,} tokens and more, without its pictures", most)


def too_long(how: str, most: int) -> RequestError:
    """Return the error for a prompt that is too long."""
    message = f"messages: the prompt {how}; this server takes {most:,}, with its pictures. Shorten it"
    return too_large(message, code="context_length_exceeded")


def too_large(message: str, *, param: str | None = "messages", code: str = "too_large") -> RequestError:
    """Return the error for a request over a limit."""
    return RequestError(message, 413, param=param, code=code)
