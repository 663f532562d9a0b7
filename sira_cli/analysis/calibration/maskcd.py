"""Which heads look at the image: the calibration of `maskcd`.

For a few dozen pictures the model writes its own caption, greedily and without SIRA. With the attention weights A of
head h in layer l, and r over the rows of a caption's tokens, its mass on image tokens, 0 to 1, is

    mass[l, h] = mean over pictures of the mean over r of the sum over image columns c of A[r, c]

The rows are those of all tokens but the last, which predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli._version import __version__
from sira_cli.analysis.experiment import Events, Units, check_finite, run_stage
from sira_cli.core.families import find_backbone, output_projections, text_stack
from sira_cli.core.hooks import attached_hooks
from sira_cli.core.upstream import attention_of, set_attention
from sira_cli.errors import PictureError
from sira_cli.methods import find
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.maskcd import MASS, usual_threshold, z_scores
from sira_cli.models.model import LoadedModel
from sira_cli.pictures.picture import Picture
from sira_cli.run.events import StageStarted
from sira_cli.run.items import Batch, Task
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import hash_of
from sira_cli.run.reports import Table


class ImageMass(NamedTuple):
    """The heads' mass on the image while one caption was written."""

    mass: Tensor  # float64 `[L, H]`, mean attention mass on image tokens over the caption's rows
    rows: int
    image_sha256: str  # of the picture's file


class MeasuredMass(Task[ImageMass]):
    """The heads' mass on the image while the model writes a caption."""

    def answers(self, lvlm: LoadedModel, batch: Batch[ImageMass], on_text: Any = None) -> list[ImageMass]:
        """Return the masses of each picture: the mean over the rows of its caption, without padding."""
        inputs = lvlm.to_device(batch.inputs)
        with recorded_mass(lvlm.model, lvlm.find_image) as steps:
            texts = [lvlm.ends.until_end(row) for row in lvlm.generate(inputs).tolist()]
        measured = []
        for row, (text, item) in enumerate(zip(texts, batch.items, strict=True)):
            if len(text) < 2:
                raise PictureError(f"{item.picture.label}: its caption is empty")
            mass = torch.stack([step[row] for step in steps[: len(text) - 1]]).cpu().double().mean(dim=0)  # [L, H]
            check_finite(mass, item.picture.label)
            measured.append(ImageMass(mass, len(text) - 1, item.sha256))
        return measured


def measure_mass(lvlm: Lvlm, pictures: Sequence[Picture], units: Units[ImageMass], batch_size: int = 1) -> Events:
    """Measure every picture, keep its masses in `units` by its number, and yield events."""
    speaker = lvlm.under(find("greedy"), lvlm.preset.with_values(temperature=0.0, num_beams=1))
    prompt = speaker.preset.prompts.caption
    asked = [picture.known(prompt=prompt, id=str(number)) for number, picture in enumerate(pictures)]
    yield StageStarted("pictures", len(pictures))
    yield from run_stage(speaker, MeasuredMass(), asked, units, batch_size)


def calibrate(lvlm: Lvlm, units: Units[ImageMass]) -> Calibration:
    """Return the calibration that `measure_mass` found on at least one picture."""
    measured = list(units.values())
    if not measured:
        raise PictureError("no picture could be measured: no calibration is written")
    made_from = {
        "pictures": len(measured),
        "pictures_sha256": hash_of(pictures=sorted(picture.image_sha256 for picture in measured)),
        "rows": sum(picture.rows for picture in measured),
        "prompt": lvlm.preset.prompts.caption,
        "max_new_tokens": lvlm.preset.generation.max_new_tokens,
        "dtype": lvlm.dtype,
        "quantization": lvlm.quantization,
    }
    mass = torch.stack([picture.mass for picture in measured]).mean(dim=0)  # [L, H]
    return Calibration(Origin("maskcd", lvlm.preset.model, lvlm.revision, made_from, __version__), {MASS: mass.float()})


def table(calibration: Calibration) -> Iterator[Table | str]:
    """Yield the heads that stand out, layer by layer."""
    mass = calibration.tensors[MASS]  # [L, H]
    made_from = calibration.origin.made_from
    z = z_scores(mass)
    threshold = usual_threshold(mass.shape[1])
    rows = []
    for layer, (masses, scores) in enumerate(zip(mass, z, strict=True)):
        heads = (scores > threshold).nonzero().flatten().tolist()
        named = ", ".join(f"{head} ({float(masses[head]):.2f})" for head in heads)
        rows.append([str(layer), f"{float(masses.mean()):.2f}", f"{float(scores.max()):.2f}", named or "-"])
    yield Table((), ("layer", "mean mass", "largest z"), [rows], words=("image heads",))
    count = int((z > threshold).sum())
    pictures = "1 picture" if made_from["pictures"] == 1 else f"{made_from['pictures']} pictures"
    yield (
        f"{pictures}, {made_from['rows']:,} tokens; {count} of {mass.numel()} heads "
        f"have a z-score above {threshold:.4g} within their layer (in brackets: attention mass on the image)"
    )
    if not count:
        yield f"no head stands out: use --set threshold=N with N below {float(z.max()):.4g}"


@contextmanager
def recorded_mass(model: Any, find_image: Any) -> Iterator[list[Tensor]]:
    """Yield a list that gets, at each decoding step inside this context, all heads' mass on image tokens, `[B, L, H]`.

    Only eager attention gives its weights. It is switched on for decoding steps, whose weights are one row per head,
    and off for the prompt; at the end, also after an error, the model is as before.
    """
    output_projections(model)  # refuses what has no heads
    backbone = find_backbone(model)
    modules: list[Any] = [mixer.module for mixer in backbone.mixers]
    usual: dict[int, tuple[Any, Any]] = {}  # each config once, with its attention
    for part in (text_stack(model), *modules):
        usual[id(part.config)] = (part.config, attention_of(part.config))
    steps: list[Tensor] = []
    layers: list[Tensor] = []
    image = torch.empty(0)  # [B, S + steps] bool
    decoding = False  # whether this pass is a decoding step

    def begin(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal image, decoding
        ids: Tensor = kwargs["input_ids"]
        decoding = ids.shape[1] == 1
        image = F.pad(image, (0, 1)) if decoding else find_image(ids)  # a new token is text
        layers.clear()
        if not decoding:
            steps.clear()
        for config, implementation in usual.values():
            set_attention(config, "eager" if decoding else implementation)

    def add(attention: Any, args: Any, output: Any) -> None:
        if decoding:
            weights: Tensor = output[1]  # [B, H, 1, kv]; a sliding window has the last kv positions
            columns = image[:, -weights.shape[-1] :].to(weights.device)
            layers.append((weights[:, :, 0].float() * columns[:, None]).sum(dim=-1).cpu())  # [B, H]

    def end(model: Any, args: Any, output: Any) -> None:
        if decoding:
            steps.append(torch.stack(layers, dim=1))

    with attached_hooks(model, backbone.norm) as handles:
        try:
            handles.append(model.register_forward_pre_hook(begin, with_kwargs=True))
            for module in modules:
                handles.append(module.register_forward_hook(add))
            handles.append(model.register_forward_hook(end))
            yield steps
        finally:
            for config, implementation in usual.values():
                set_attention(config, implementation)
