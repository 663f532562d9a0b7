"""`maskcd`: a contrast with the model without its image heads (Deng and Yang 2025, arXiv:2510.02790)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import DataError, SettingsError
from sira_cli.methods.base import CutContrast, Decoding, Inputs, PromptBatch
from sira_cli.methods.calibrated import Calibrated
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

MASS = "image_mass"  # tensor of a calibration: float32 [L, H], mean attention on image tokens of each head
THRESHOLD = 2.5  # z-score of an image head
HEADS = 32  # per layer, as LLaVA-1.5-7B has, for which the threshold is


@dataclass(frozen=True)
class MaskCd(CutContrast, Calibrated):
    """(1 + alpha) z - alpha z' with APC; z' from the same inputs, without the output of the image heads.

    Image heads attend to the image much more than other heads of their layer: their attention mass on image tokens,
    stored in the calibration, has a z-score above `threshold` within the layer. In every pass of the contrast stream
    their slices of o_proj's input are zero.
    """

    name = "maskcd"
    threshold: float | None = setting(
        None,
        "minimum z-score of an image head (none: 2.5, less below 32 heads per layer)",
        kind=float,
        low=0,
        optional=True,
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values, with the threshold in force if the model is known."""
        settings = super().settings()
        if self.calibration is not None:
            settings["threshold"] = self.threshold_for(len(self.mass()[0]))
        return settings

    def threshold_for(self, heads: int) -> float:
        """Return the threshold in force for layers with this number of heads."""
        return usual_threshold(heads) if self.threshold is None else self.threshold

    def mass(self) -> Tensor:
        """Return the mean attention mass on image tokens, `[L, H]`, of the calibration."""
        mass = self.read().tensors.get(MASS)
        if mass is None or mass.ndim != 2 or not bool(mass.isfinite().all()):
            raise DataError(f"{self.calibration}: has no {MASS} of layers x heads: make it again")
        return mass

    def image_heads(self) -> Tensor:
        """Return the mask of silenced heads, bool `[L, H]`."""
        z = z_scores(self.mass())  # [L, H]
        threshold = self.threshold_for(z.shape[1])
        heads = z > threshold
        if not bool(heads.any()):
            layer, head = divmod(int(z.argmax()), z.shape[1])
            raise SettingsError(
                f"{self.calibration}: no head has a z-score above {threshold:.4g}, the largest is {float(z.max()):.4g} "
                f"(layer {layer}, head {head}): give method {self.name} a lower threshold"
            )
        return heads

    def branch_inputs(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Return the same inputs."""
        return dict(batch.inputs)

    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Decoding:
        """Run a second pass (`sira_cli.methods.second_pass`) in which the image heads are silenced."""
        from sira_cli.methods.second_pass import second_pass

        silent = self._silent_inputs(model)
        return second_pass(model, prompts, branch, self.rule, within=lambda: _silenced(silent))

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check the model's structure, and that the calibration fits it."""
        self._silent_inputs(model)

    def stand_in(self, model: Any) -> dict[str, Tensor]:
        """Return calibration tensors with one image head per layer."""
        import torch

        _, layers, heads = _structure(model)
        mass = torch.full((layers, heads), 0.1)
        mass[torch.arange(layers), torch.arange(layers) % heads] = 0.9
        return {MASS: mass}

    def _silent_inputs(self, model: Any) -> list[tuple[Any, Tensor]]:
        """Return each `o_proj` whose layer has image heads, with the mask `[H * D]` of their inputs."""
        projections, layers, heads = _structure(model)
        silent = self.image_heads()  # [L, H]
        if silent.shape != (layers, heads):
            made_for = " x ".join(map(str, silent.shape))
            raise SettingsError(
                f"{self.calibration}: made for a model of {made_for} heads (layers x heads), but this one has "
                f"{layers} x {heads}: sira calibrate {self.name} makes one for it"
            )
        return [
            (projection, row.repeat_interleave(projection.in_features // heads))
            for projection, row in zip(projections, silent, strict=True)
            if bool(row.any())
        ]


def usual_threshold(heads: int) -> float:
    """Return the z-score above which a head is an image head, for layers with this number of heads.

    It is 2.5 for 32 heads, as in LLaVA-1.5-7B. No z-score of H numbers exceeds
    sqrt(H - 1): for fewer heads, the threshold is the same share of this bound.
    """
    return THRESHOLD * math.sqrt(min(1.0, (heads - 1) / (HEADS - 1)))


def z_scores(mass: Tensor) -> Tensor:
    """Return each head's z-score within its layer, `[L, H]`; 0 where all heads of a layer are equal."""
    import torch

    mass = mass.double()
    apart = mass - mass.mean(dim=1, keepdim=True)  # [L, H]
    spread = mass.std(dim=1, correction=0, keepdim=True)  # [L, 1]
    return torch.where(spread > 1e-9, apart / spread.clamp(min=1e-9), 0.0)  # smaller values are rounding


def _structure(model: Any) -> tuple[list[Any], int, int]:
    """Return the `o_proj` of each layer, and the numbers of layers and of heads in each."""
    from sira_cli.core.families import output_projections

    projections = output_projections(model)
    return projections, len(projections), model.config.get_text_config(decoder=True).num_attention_heads


@contextmanager
def _silenced(silent: Sequence[tuple[Any, Tensor]]) -> Iterator[None]:
    """Zero the output of silent heads, `[..., H * D]` before `o_proj`, inside this context."""

    def silence(inputs: Tensor, projection: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0].masked_fill(inputs.to(args[0].device), 0.0), *args[1:])

    with ExitStack() as hooks:
        for projection, inputs in silent:
            hooks.callback(projection.register_forward_pre_hook(functools.partial(silence, inputs)).remove)
        yield
