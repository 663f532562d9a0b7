"""Which heads look at the image: the calibration of `maskcd`.

For a few dozen pictures the model writes its own caption, greedily and without SIRA. With the attention weights A of
head h in layer l, and r over the rows of a caption's tokens, its mass on image tokens, 0 to 1, is

    mass[l, h] = mean over pictures of the mean over r of the sum over image columns c of A[r, c]

The rows are those of all tokens but the last, which predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli._version import __version__
from sira_cli.core.families import find_backbone, output_projections, text_stack
from sira_cli.core.hooks import attached_hooks
from sira_cli.core.upstream import attention_of, set_attention
from sira_cli.errors import PictureError, SettingsError
from sira_cli.methods import find
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.maskcd import MASS
from sira_cli.models.model import LoadedModel
from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import Batch, Item
from sira_cli.run.events import Halved
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import hash_of
from sira_cli.run.runner import Runner
from sira_cli.run.task import Task


@dataclass(frozen=True)
class ImageMass:
    """The heads' mass on the image while one caption was written.

    Attributes:
        mass: float64 `[L, H]`, mean attention mass on image tokens over the caption's rows.
        rows: number of rows.
        image_sha256: of the picture's file.
    """

    mass: Tensor
    rows: int
    image_sha256: str


class MeasuredMass(Task[ImageMass]):
    """The heads' mass on the image while the model writes a caption."""

    def answers(self, lvlm: LoadedModel, batch: Batch[ImageMass], on_text: Any = None) -> list[ImageMass]:
        """Return the masses of each picture."""
        inputs = lvlm.to_device(batch.inputs)
        with recorded_mass(lvlm.model, lvlm.find_image) as steps:
            texts = [lvlm.ends.until_end(row) for row in lvlm.generate(inputs).tolist()]
        rows = enumerate(zip(texts, batch.items, strict=True))
        return [_mean(steps, row, len(text), item) for row, (text, item) in rows]


def measure_mass(
    lvlm: Lvlm, pictures: Iterable[Picture], batch_size: int = 1
) -> Iterator[tuple[Picture, ImageMass | PictureError] | Halved]:
    """Yield every picture with its image mass by head, or with its error; the others go on."""
    speaker = lvlm.under(find("greedy"), lvlm.preset.with_values(temperature=0.0, num_beams=1))
    items: Iterator[Item[ImageMass]] = (
        Item(picture, picture.shown, speaker.preset.prompts.caption) for picture in pictures
    )
    with closing(Runner(speaker, MeasuredMass(), batch_size).run(items)) as done:
        for item in done:
            if isinstance(item, Halved):
                yield item
            else:
                yield item.picture, PictureError(item.error) if item.result is None else item.result


def calibrate(lvlm: Lvlm, measured: Sequence[ImageMass]) -> Calibration:
    """Return the calibration that `measure_mass` found on at least one picture."""
    if not measured:
        raise SettingsError("no picture could be measured, so there is no calibration")
    made_from = {
        "pictures": len(measured),
        "pictures_sha256": hash_of(pictures=sorted(each.image_sha256 for each in measured)),
        "rows": sum(each.rows for each in measured),
        "prompt": lvlm.preset.prompts.caption,
        "max_new_tokens": lvlm.preset.generation.max_new_tokens,
        "dtype": lvlm.dtype,
        "quantization": lvlm.quantization,
    }
    mass = torch.stack([each.mass for each in measured]).mean(dim=0)  # [L, H]
    return Calibration(Origin("maskcd", lvlm.preset.model, lvlm.revision, made_from, __version__), {MASS: mass.float()})


def _mean(steps: Sequence[Tensor], row: int, tokens: int, item: Item[ImageMass]) -> ImageMass:
    """Return the mean over the rows of one caption in a batch, without padding."""
    if tokens < 2:
        raise PictureError(f"{item.picture.shown}: its caption is empty")
    mass = torch.stack([step[row] for step in steps[: tokens - 1]]).cpu().double().mean(dim=0)  # [L, H]
    if not bool(mass.isfinite().all()):
        raise PictureError(f"{item.picture.shown}: the model computes numbers out of range: try another dtype")
    return ImageMass(mass, tokens - 1, item.sha256)


@contextmanager
def recorded_mass(model: Any, find_image: Any) -> Iterator[list[Tensor]]:
    """Yield a list that gets, at each decoding step inside this context, all heads' mass on image tokens, `[B, L, H]`.

    Only eager attention gives its weights. It is switched on for decoding steps, whose weights are one row per head,
    and off for the prompt; at the end, also after an error, the model is as before.
    """
    output_projections(model)
    backbone = find_backbone(model)
    modules: list[Any] = [mixer.module for mixer in backbone.mixers]
    configs = {id(config): config for config in (text_stack(model).config, *(each.config for each in modules))}.values()
    kept = [(config, attention_of(config)) for config in configs]
    recorder = _Recorder(find_image)

    def begin(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        decoding = recorder.begin(kwargs["input_ids"])
        for config, implementation in kept:
            set_attention(config, "eager" if decoding else implementation)

    with attached_hooks(model, backbone.norm) as handles:
        try:
            handles.append(model.register_forward_pre_hook(begin, with_kwargs=True))
            handles.extend(each.register_forward_hook(recorder.add) for each in modules)
            handles.append(model.register_forward_hook(recorder.end))
            yield recorder.steps
        finally:
            for config, implementation in kept:
                set_attention(config, implementation)


class _Recorder:
    """Sums up attention weights pass by pass."""

    def __init__(self, find_image: Any) -> None:
        self.steps: list[Tensor] = []
        self._find_image = find_image
        self._image = torch.empty(0)  # [B, S + steps] bool
        self._layers: list[Tensor] = []
        self._decoding = False

    def begin(self, ids: Tensor) -> bool:
        """Before the model: return whether this pass is a decoding step, not a prompt."""
        self._decoding = ids.shape[1] == 1
        if self._decoding:
            self._image = F.pad(self._image, (0, 1))  # a new token is text
        else:
            self.steps.clear()
            self._image = self._find_image(ids)
        self._layers.clear()
        return self._decoding

    def add(self, attention: Any, args: Any, output: Any) -> None:
        """After a layer's attention: sum its newest row over image columns."""
        if self._decoding:
            weights: Tensor = output[1]  # [B, H, 1, kv]; a sliding window has the last kv positions
            image = self._image[:, -weights.shape[-1] :].to(weights.device)
            self._layers.append((weights[:, :, 0].float() * image[:, None]).sum(dim=-1).cpu())  # [B, H]

    def end(self, model: Any, args: Any, output: Any) -> None:
        """After the model: keep the masses of this step's layers."""
        if self._decoding:
            self.steps.append(torch.stack(self._layers, dim=1))
