"""How long a prompt may be: a pass over it takes its length squared, and everybody waits for it."""

from __future__ import annotations

from sira_cli.models.vocabulary import Vocabulary
from sira_cli.serve.protocol import ChatRequest, RequestError

_PIECE = 8192  # characters that are counted at once: the decoder needs the tokenizer, too


def check_length(chat: ChatRequest, vocabulary: Vocabulary, most: int) -> None:
    """Check, before anything else is done with it, that the text of a request is not too long.

    The messages are counted, and the settings (`role`), in pieces, up to the limit: at their borders some tokens more
    than there are, while the pictures' tokens and the template's are not counted.

    Args:
        chat: what is asked.
        vocabulary: the model's.
        most: tokens of a prompt.

    Raises:
        RequestError: it is.
    """
    count = 0
    settings = [value for value in chat.sira.settings().values() if isinstance(value, str)]
    for text in [message.texts() for message in chat.messages] + settings:
        for start in range(0, len(text), _PIECE):
            count += len(vocabulary.encode(text[start : start + _PIECE]))
            if count > most:
                raise too_long(f"has {count:,} tokens and more, without its pictures", most)


def too_long(how: str, most: int) -> RequestError:
    """Return what a client is told whose prompt is too long."""
    message = f"messages: the prompt {how}; this server takes {most:,}, with its pictures. Shorten it"
    return RequestError(message, 413, param="messages", code="context_length_exceeded")
