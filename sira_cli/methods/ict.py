"""`ict`: trained directions that are added to the output of attention (Chen et al. 2025, arXiv:2411.15268)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import DataError, SettingsError, UnsupportedModelError
from sira_cli.methods.base import Inputs
from sira_cli.methods.calibrated import Calibrated
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.arguments import Args, Kwargs

WIDTH = 32  # width of a slice; o_proj's output of LLaVA-1.5-7B has 32 layers of 128 slices
SHARE = 256 / (32 * 128)  # share of all slices that a level changes: the published 256 of that model
LEVELS = ("image", "object")
# Tensors of a level, named `LEVEL.NAME` in the file: unit vectors [L, H, WIDTH], spreads and accuracies [L, H].
TENSORS = ("direction", "spread", "accuracy")


@dataclass(frozen=True)
class Ict(Calibrated):
    """z, with strength * sigma * d added to the best slices of o_proj's output, at the last position of every pass.

    A calibration has, for each slice of each level, the direction d from degraded to clean pictures, the standard
    deviation sigma of the outputs along it, and the accuracy of a probe that separates the two: the most accurate
    slices are changed. If both levels change a slice, both add to it.
    """

    name = "ict"
    strength: float = setting(8.0, "factor on the directions", low=0)
    slices: int | None = setting(
        None, "slices that each level changes (none: 1/16 of all, 256 of LLaVA-1.5-7B)", kind=int, low=1, optional=True
    )
    level: str | None = setting(
        None, "directions to add (none: all of the calibration)", kind=str, choices=("both", *LEVELS), optional=True
    )

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put a hook after `o_proj` of each changed layer."""
        from sira_cli.core.families import find_backbone, output_projections
        from sira_cli.core.hooks import attached_hooks

        projections = output_projections(model)
        vectors = self.vectors(self.read().tensors, *_shape(model))  # [L, d]
        with attached_hooks(model, find_backbone(model).norm) as handles:
            handles.append(model.register_forward_pre_hook(_check_pass, with_kwargs=True))
            for projection, vector in zip(projections, vectors, strict=True):
                if bool(vector.any()):
                    handles.append(projection.register_forward_hook(_adding(vector)))
            yield

    def vectors(self, tensors: Mapping[str, Tensor], layers: int, slices: int) -> Tensor:
        """Return the vectors added to o_proj's output of each layer, float32 `[L, d]`."""
        import torch

        total = layers * slices
        count = max(1, round(SHARE * total)) if self.slices is None else self.slices
        if count > total:
            raise SettingsError(f"slices of method {self.name} must be {total} or less with this model; got {count}")
        added = torch.zeros(total, WIDTH)
        for level in self._levels(tensors):
            try:
                direction, spread, accuracy = (tensors[f"{level}.{name}"] for name in TENSORS)
            except KeyError as error:
                raise DataError(f"{self.calibration}: has no {error.args[0]}: make it again") from None
            if direction.shape != (layers, slices, WIDTH):
                made_for = " x ".join(map(str, direction.shape[:2]))
                raise SettingsError(
                    f"{self.calibration}: made for a model of {made_for} slices (layers x slices of {WIDTH}), "
                    f"but this one has {layers} x {slices}: sira calibrate {self.name} makes one for it"
                )
            best = accuracy.flatten().argsort(descending=True, stable=True)[:count]  # the first of equals
            sigma = spread.flatten()[best, None]
            added[best] += self.strength * sigma * direction.flatten(0, 1)[best]
        return added.view(layers, slices * WIDTH)

    def _levels(self, tensors: Mapping[str, Tensor]) -> list[str]:
        has = [level for level in LEVELS if any(name.startswith(f"{level}.") for name in tensors)]
        if self.level is None and has:
            return has
        wanted = [level for level in LEVELS if self.level in (level, "both", None)]
        for level in wanted:
            if level not in has:
                raise SettingsError(
                    f"{self.calibration}: has no {level} level, only {' and '.join(has) or 'nothing'}: leave out "
                    f"`level=`, or make a calibration with object positions"
                )
        return wanted

    def stand_in(self, model: Any) -> dict[str, Tensor]:
        """Return random directions of both levels."""
        import torch

        generator = torch.Generator().manual_seed(0)
        shape = _shape(model)
        made = {}
        for level in LEVELS:
            direction = torch.randn(*shape, WIDTH, generator=generator)
            made[f"{level}.direction"] = direction / direction.norm(dim=-1, keepdim=True)
            made[f"{level}.spread"] = torch.full(shape, 1e-3)
            made[f"{level}.accuracy"] = torch.rand(shape, generator=generator)
        return made


def slices_of(width: int) -> int:
    """Return the number of slices of o_proj's output of this width."""
    if width % WIDTH:
        raise UnsupportedModelError(f"method ict cuts layers into slices of {WIDTH}, which do not fit into {width}")
    return width // WIDTH


def _shape(model: Any) -> tuple[int, int]:
    """Return the number of layers, and of slices per layer."""
    from sira_cli.core.families import output_projections

    width = model.config.get_text_config(decoder=True).hidden_size
    return len(output_projections(model)), slices_of(width)


def _adding(vector: Tensor) -> Callable[..., Tensor]:
    """Return a hook that adds a vector `[d]` to the last position of a module's output `[B, S, d]`."""

    def add(module: Any, args: Any, output: Tensor) -> Tensor:
        nonlocal vector
        vector = vector.to(output)  # to the layer's device, once
        output[:, -1] += vector
        return output

    return add


def _check_pass(model: Any, args: Args, kwargs: Kwargs) -> None:
    """Check that this pass uses only the last position to predict a token."""
    from sira_cli.core.arguments import cache_of  # brings torch

    ids = kwargs.get("input_ids", args[0] if args else None)
    new = ids if ids is not None else kwargs.get("inputs_embeds")
    cache = cache_of(args, kwargs)
    seen = 0 if cache is None else int(cache.get_seq_length())
    if seen and new is not None and new.shape[1] != 1:
        raise UnsupportedModelError(
            f"{new.shape[1]} new tokens arrived on a cache that already holds {seen}: method ict does not follow "
            "chunked prefill, assisted generation and continued conversations"
        )
    if kwargs.get("use_cache") is False:
        raise UnsupportedModelError("method ict changes a token once and keeps it in the cache: leave use_cache on")
