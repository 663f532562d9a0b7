"""`vti`: steered towards true captions and the features of masked pictures (Liu et al. 2025, arXiv:2410.15778)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import DataError, SettingsError
from sira_cli.methods.base import Inputs
from sira_cli.methods.calibrated import Calibrated
from sira_cli.methods.settings import setting
from sira_cli.methods.steering import find_mlps, steering_hook

if TYPE_CHECKING:
    from torch import Tensor

# Tensors of a calibration: unit vectors, float16.
TEXT = "text"  # [L, d], for each decoder layer
IMAGE = "image"  # [layers, tokens, d], for each layer of the tower and each of its tokens; only with `find_tower`
UNIT = 0.1  # length of the vector that strength 1 adds
IMAGE_STRENGTH = 0.9  # of the README's command, as for the text
# Types that show a picture to their tower once, so that a token has the same place in all pictures.
WHOLE_PICTURES = ("llava",)
CLIP = "clip_vision_model"


@dataclass(frozen=True)
class Vti(Calibrated):
    """z of a model in which every MLP's output x is |x| unit(unit(x) + 0.1 alpha d) in every row (shengliu66/VTI).

    In decoder layers alpha is `alpha_text` and d the layer's direction from hallucinated to true captions; in those of
    the image tower it is `alpha_image`, and d the direction of layer and token from a picture to its masked versions.
    """

    name = "vti"
    alpha_text: float = setting(0.9, "strength of the directions in the decoder", low=0)
    alpha_image: float | None = setting(
        None,
        "strength of those in the image tower (none: 0.9 if the calibration has them)",
        kind=float,
        low=0,
        optional=True,
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values, with the strength in the tower in force if the model is known."""
        settings = super().settings()
        if self.calibration is not None:
            settings["alpha_image"] = self.image_strength()
        return settings

    def image_strength(self) -> float:
        """Return the strength in the image tower in force: 0 if the calibration has no directions for it."""
        if self.alpha_image is not None:
            return self.alpha_image
        return IMAGE_STRENGTH if IMAGE in self.read().tensors else 0.0

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put a hook after each MLP of the decoder, and of the image tower."""
        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        steered = self._steered(model)
        with attached_hooks(model, find_backbone(model).norm) as handles:
            for mlp, vector in steered:
                handles.append(mlp.register_forward_hook(steering_hook(_constant(vector))))
            yield

    def stand_in(self, model: Any) -> dict[str, Tensor]:
        """Return random unit vectors."""
        import torch
        from torch.nn import functional as F

        generator = torch.Generator().manual_seed(0)
        shapes = {TEXT: _text_shape(model), IMAGE: _image_shape(model)}
        return {
            name: F.normalize(torch.randn(*shape, generator=generator), dim=-1).half()
            for name, shape in shapes.items()
            if shape
        }

    def _steered(self, model: Any) -> list[tuple[Any, Tensor]]:
        """Return each MLP that is steered, with what is added to its unit vectors, `[d]` or `[tokens, d]`."""
        text_shape = _text_shape(model)  # refuses layers without an MLP, whatever is steered
        steered: list[tuple[Any, Tensor]] = []
        if self.alpha_text:
            vectors = self._vectors(TEXT, text_shape, self.alpha_text)
            steered += zip(find_mlps(model, self.name), vectors, strict=True)
        if strength := self.image_strength():
            vectors = self._vectors(IMAGE, _image_shape(model), strength)
            steered += zip(tower_mlps(find_tower(model)), vectors, strict=True)
        return steered

    def _vectors(self, name: str, shape: tuple[int, ...], strength: float) -> Tensor:
        """Return 0.1 alpha d for each layer of a model, float32 `[layers, ..., d]`."""
        from torch.nn import functional as F

        directions = self.read().tensors.get(name)
        if directions is None and name == IMAGE:
            raise SettingsError(
                f"{self.calibration}: has no directions for the image tower, which only LLaVA-1.5's CLIP gets: leave "
                f"out `alpha_image=`, or set it to 0"
            )
        if directions is None or not bool(directions.isfinite().all()):
            raise DataError(f"{self.calibration}: has no finite {name} directions: make it again")
        if directions.shape != shape:
            made_for = " x ".join(map(str, directions.shape))
            here = " x ".join(map(str, shape))
            raise SettingsError(
                f"{self.calibration}: its {name} directions are made for {made_for} (layers x ... x width), but this "
                f"model has {here or 'no such tower'}: sira calibrate {self.name} makes one for it"
            )
        return UNIT * strength * F.normalize(directions.float(), dim=-1)


def find_tower(model: Any) -> Any:
    """Return the image tower if it is a CLIP whose tokens have the same places in all pictures, else None."""
    if model.config.model_type not in WHOLE_PICTURES or model.config.vision_config.model_type != CLIP:
        return None
    return model.get_encoder(modality="image")


def tower_mlps(tower: Any) -> list[Any]:
    """Return the MLP of each layer of a CLIP tower."""
    return [layer.mlp for layer in tower.encoder.layers]


def _text_shape(model: Any) -> tuple[int, ...]:
    """Return the number of decoder layers, and their width."""
    return len(find_mlps(model, Vti.name)), model.config.get_text_config(decoder=True).hidden_size


def _image_shape(model: Any) -> tuple[int, ...]:
    """Return the tower's numbers of layers and tokens, and its width; empty without a tower to steer."""
    tower = find_tower(model)
    if tower is None:
        return ()
    side = tower.config.image_size // tower.config.patch_size
    return len(tower_mlps(tower)), side**2 + 1, tower.config.hidden_size  # a class token


def _constant(vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that gives a vector on the device of its argument."""

    def shift(x: Tensor) -> Tensor:
        nonlocal vector
        vector = vector.to(x.device)  # to the layer's device, once
        return vector

    return shift
