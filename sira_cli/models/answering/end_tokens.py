"""The tokens that end a text, and those that pad a shorter one in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class EndTokens:
    """A checkpoint's settings for the end of texts.

    Attributes:
        ids: tokens that end a text; may be empty.
        padding: the token that pads shorter texts; None if the checkpoint has none.
    """

    ids: tuple[int, ...]
    padding: int | None

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> EndTokens:
        """Read the tokens from the checkpoint's generation config, else from its tokenizer."""
        end = model.generation_config.eos_token_id
        if end is None:
            end = tokenizer.eos_token_id
        ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
        pads = (tokenizer.pad_token_id, model.generation_config.pad_token_id, *ends)
        return cls(ends, next((pad for pad in pads if pad is not None), None))

    def finish_reason(self, tokens: list[int]) -> Literal["stop", "length"]:
        """Return `stop` if the model ended the text itself."""
        return "stop" if tokens and tokens[-1] in self.ids else "length"

    def until_end(self, tokens: list[int]) -> list[int]:
        """Cut off the padding of a shorter text in a batch; the end token stays."""
        ends = (index for index, token in enumerate(tokens) if token in self.ids)
        return tokens[: next(ends, len(tokens)) + 1]
