"""The image positions of a prompt: P_img of the paper.

A rule is data (it lives in presets); `resolve` turns it into ids, `find` into positions. Only the
image's own positions count: markers such as `<|vision_start|>` are text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sira_cli.errors import ImageTokenError, SettingsError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer


@dataclass(frozen=True)
class Between:
    """Everything from a `start` marker to the next `end` marker; a row may have several spans."""

    start: str | int
    end: str | int
    inclusive: bool = False

    def __post_init__(self) -> None:
        for marker in (self.start, self.end):
            if (not marker and marker != 0) or (isinstance(marker, int) and marker < 0):
                raise SettingsError(f"image_tokens.between: a marker is a token text or an id; got {marker!r}")


@dataclass(frozen=True)
class ImageTokens:
    """A detection rule. Several parts are combined with "or"; no part means `from_config`.

    Args:
        from_config: the ids in the model's config (`image_token_id`, and `video_token_id`).
        ids: token ids.
        tokens: token texts, looked up in the tokenizer.
        between: everything between two markers.

    Raises:
        SettingsError: the rule is empty or holds values of the wrong type.
    """

    from_config: bool | None = None
    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    between: Between | None = None

    def __post_init__(self) -> None:
        for name in ("ids", "tokens"):
            if not isinstance(getattr(self, name), tuple | list):
                raise SettingsError(f"image_tokens.{name} must be a list; got {getattr(self, name)!r}")
        if self.between is not None and not isinstance(self.between, Between):
            raise SettingsError(f"image_tokens.between must be a Between(start, end); got {self.between!r}")
        # Presets and callers may give lists; a frozen rule holds tuples, so that it can be hashed.
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in self.ids):
            raise SettingsError(f"image_tokens.ids must be token ids (0 or more); got {list(self.ids)}")
        if self.from_config is False and not self._has_own_part:
            raise SettingsError("image_tokens.from_config is false and no ids, tokens or between are given")

    @property
    def _has_own_part(self) -> bool:
        return bool(self.ids or self.tokens or self.between)

    def with_ids(self, tokenizer: Tokenizer) -> ImageTokens:
        """Return the same rule with token texts replaced by ids, so that it needs no tokenizer."""
        between = self.between and Between(
            _token_id(self.between.start, tokenizer), _token_id(self.between.end, tokenizer), self.between.inclusive
        )
        ids = self.ids + tuple(_token_id(token, tokenizer) for token in self.tokens)
        return ImageTokens(self.from_config, ids, (), between)

    def completed(self, model_config: object, image_token: int | None) -> ImageTokens:
        """Return the rule with a processor's image token, where the rule asks the config and that names none."""
        asks = self.from_config or not self._has_own_part
        if image_token is None or not asks or _config_image_tokens(model_config):
            return self
        return ImageTokens(False, (*self.ids, image_token), self.tokens, self.between)

    def resolve(self, model_config: object) -> ImageTokenFinder:
        """Return the rule for one model."""
        ids = list(self.ids) + [_token_id(token, None) for token in self.tokens]
        if self.from_config or not self._has_own_part:
            named = _config_image_tokens(model_config)
            if not named:
                raise ImageTokenError(
                    f"{type(model_config).__name__} names no image token (image_token_id). "
                    "Give a rule: image_tokens with ids, tokens or between."
                )
            ids += named
        if self.between is None:
            return ImageTokenFinder(tuple(ids))
        markers = (_token_id(self.between.start, None), _token_id(self.between.end, None))
        return ImageTokenFinder(tuple(ids), markers, self.between.inclusive)


@dataclass(frozen=True)
class ImageTokenFinder:
    """A rule with every name looked up."""

    ids: tuple[int, ...]
    markers: tuple[int, int] | None = None
    inclusive: bool = False

    def find(self, input_ids: Tensor) -> Tensor:
        """Find the image positions of each row: `input_ids [B, S]` -> bool `[B, S]`."""
        import torch

        image = torch.isin(input_ids, input_ids.new_tensor(self.ids))  # [B, S]
        if self.markers is not None:
            for row, ids in enumerate(input_ids.tolist()):
                for first, last in _spans(ids, *self.markers, row):
                    image[row, first : last + 1] = True
                    if not self.inclusive:
                        image[row, [first, last]] = False
        empty = (~image.any(dim=1)).nonzero().flatten().tolist()
        if empty:
            raise ImageTokenError(
                f"no image token found in row {', '.join(map(str, empty))} of the prompt (looked for {self}). "
                "Pass a prompt with an image, or another image-token rule (`image_tokens`); and leave out "
                "guidance_scale, which also decodes without the prompt."
            )
        return image

    def __str__(self) -> str:
        parts = [f"ids {list(self.ids)}"] if self.ids else []
        if self.markers:
            parts.append(f"the span between ids {self.markers[0]} and {self.markers[1]}")
        return " or ".join(parts)


def _spans(ids: list[int], start: int, end: int, row: int) -> list[tuple[int, int]]:
    """Return (start, end) index pairs. Each start marker is closed by the next end marker, before another start."""
    spans: list[tuple[int, int]] = []
    opened: int | None = None
    for position, token in enumerate(ids):
        if token == start and opened is None:
            opened = position
        elif token == end and opened is not None:
            spans.append((opened, position))
            opened = None
        elif token == start:
            break
    if opened is not None:
        raise ImageTokenError(
            f"row {row} of the prompt: the image start marker (id {start}) at position {opened} is not "
            f"closed by an end marker (id {end}). Check image_tokens.between."
        )
    return spans


def _token_id(token: str | int, tokenizer: Tokenizer | None) -> int:
    if isinstance(token, int):
        return token
    if tokenizer is None:
        raise SettingsError(
            f"the image-token rule names {token!r} by its text, which needs a tokenizer: "
            "use load(), ImageTokens.with_ids(tokenizer), or give ids"
        )
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if token not in vocabulary:
        raise SettingsError(f"the image-token rule names {token!r}, which is not a token of this tokenizer")
    return vocabulary[token]


def _config_image_tokens(model_config: object) -> list[int]:
    """Return the ids that the config names: the image token, then the video token; empty if it names none."""
    for config in (model_config, getattr(model_config, "vision_config", None)):  # the second: Phi-4-multimodal
        found: list[int] = []
        for kind in ("image", "video"):
            values = [getattr(config, f"{kind}_token_{name}", None) for name in ("id", "index")]
            found += [value for value in values if isinstance(value, int) and (kind == "image" or found)][:1]
        if found:
            return list(dict.fromkeys(found))
    return []
