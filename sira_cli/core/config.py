"""The settings of SIRA decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import SettingsError


@dataclass(frozen=True)
class SiraConfig:
    """How to fork and contrast (paper, Section 3).

    Args:
        k: number of post-boundary layers K; the fork is at layer b = L - K. 1 <= K <= L - 1.
        k_fraction: K as a share of L, between 0 and 1, rounded down (at least 1 layer). Without `k`
            and `k_fraction`, K = L / 2, as in the paper for both of its models.
        alpha: contrast strength in z_cd = (1 + alpha) z_full - alpha z_cf; 0 is plain decoding.
        beta: plausibility cut-off, off (None) as in the paper. Tokens with
            z_full < max z_full + ln(beta) are never chosen. 0 < beta <= 1.
        image_tokens: which prompt positions belong to the image.

    Raises:
        SettingsError: a value is out of range or of the wrong type.
    """

    k: int | None = None
    k_fraction: float | None = None
    alpha: float = 0.5
    beta: float | None = None
    image_tokens: ImageTokens = field(default_factory=ImageTokens)

    def __post_init__(self) -> None:
        if self.k is not None and self.k_fraction is not None:
            raise SettingsError("give k or k_fraction, not both")
        if self.k is not None and (not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1):
            raise SettingsError(f"k must be a whole number of layers, at least 1; got {self.k!r}")
        if self.k_fraction is not None:
            check_range("k_fraction", self.k_fraction, 0.0, 1.0, open_ends=True)
        check_range("alpha", self.alpha, 0.0)
        if self.beta is not None:
            check_range("beta", self.beta, 0.0, 1.0)
        if self.beta == 0:
            raise SettingsError("beta must be above 0; leave it out to switch the cut-off off")
        if not isinstance(self.image_tokens, ImageTokens):
            raise SettingsError(f"image_tokens must be an ImageTokens rule; got {self.image_tokens!r}")

    def layers_after_fork(self, layers: int) -> int:
        """Return K for a decoder of `layers` = L layers."""
        k = self.k if self.k is not None else max(1, math.floor((self.k_fraction or 0.5) * layers))
        if k >= layers:
            raise SettingsError(
                f"k = {k} is out of range: this model has L = {layers} decoder layers, so k must be "
                f"1..{layers - 1} (the paper uses L/2 = {layers // 2})"
            )
        return k


def check_range(name: str, value: float, low: float, high: float = math.inf, open_ends: bool = False) -> None:
    """Check that a setting is a number from `low` to `high`."""
    wanted = f"{low:g} or more" if high == math.inf else f"between {low:g} and {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:  # nor NaN
        raise SettingsError(f"{name} must be a number {wanted}; got {value!r}")
    if not low <= value <= high or (open_ends and value in (low, high)):
        raise SettingsError(f"{name} must be {wanted}{', ends excluded' if open_ends else ''}; got {value!r}")
