"""`sid`: a contrast with the image tokens that matter least (Huo et al. 2025, arXiv:2408.02032)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import PictureSettingsError
from sira_cli.methods.base import Decoding, Inputs, Method
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

AUTHORS = {"caption": 50, "ask": 100}  # visible image tokens, of LLaVA-1.5's 576 per picture
AUTHORS_ALL = 576


@dataclass(frozen=True)
class Sid(Method):
    """(1 + alpha) z - alpha z' with APC; from layer 2 on z' sees only the least attended image tokens."""

    name = "sid"
    alpha: float = setting(0.5, "contrast strength", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)
    # fewer than the picture has; for a picture with no more than the authors' number, their share of its tokens: 50/576
    # or 100/576, rounded, at least one
    visible: int | None = setting(
        None,
        "image tokens that the contrast stream sees (none: 50 for captions, 100 for questions, or their share of 576)",
        kind=int,
        low=0,
        optional=True,
    )

    def for_task(self, task: str) -> Sid:
        """Fill in the authors' number of visible image tokens for the task."""
        return self if self.visible is not None else SidAsPublished(self.alpha, self.beta, AUTHORS[task])

    def keyed(self, task: str) -> dict[str, Any]:
        """Return the settings as they are: keys hold the task, which decides what none stands for."""
        return self.settings()

    def for_picture(self, image_tokens: int) -> Sid:
        """Fill in the number of visible tokens for a picture of this size."""
        return Sid(self.alpha, self.beta, self.visible_of(image_tokens))

    def visible_of(self, image_tokens: int) -> int:
        """Return the number of a picture's tokens that the contrast stream sees."""
        visible = self.visible or 0
        if visible >= image_tokens:
            raise PictureSettingsError(
                f"method sid leaves {visible} image tokens visible, but this picture has {image_tokens}: a stream that "
                f"sees them all contrasts nothing. Set visible below {image_tokens}, or leave it out"
            )
        return visible

    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Decoding:
        """Fork at layer 2 (`sira_cli.methods.sid_fork`)."""
        from sira_cli.core.fork import attached
        from sira_cli.methods.sid_fork import SidFork

        settings = SiraConfig(alpha=self.alpha, beta=self.beta, image_tokens=config.image_tokens)
        return attached(SidFork(model, settings, self.for_task("caption").visible_of))


@dataclass(frozen=True)
class SidAsPublished(Sid):
    """SID with the default `visible` (no value given): a picture with few tokens shows the authors' share of them."""

    def visible_of(self, image_tokens: int) -> int:
        """Return `visible`, or for small pictures the same share of their tokens as of LLaVA-1.5's."""
        visible = self.visible or 0
        share = max(1, round(image_tokens * visible / AUTHORS_ALL))
        return visible if visible < image_tokens else min(share, image_tokens - 1)
