"""How far counterfactual references stray from the full stream: the paper's Figure 4, for any model.

The paper (Section "Alignment of the Internal Counterfactual Reference") compares the CF stream with the
model on a blurred and on a patch-shuffled picture. It prints no formula for drift; here it is, after each
decoder layer and at the last prompt position, from which the next token is predicted,

    drift(i) = 1 - cos(h_full^i, h_ref^i),  i = 1..L

and the next-token KL is KL(p_full || p_ref) in nats. Up to h^b, b = L - K, the CF stream equals the full one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.nn import functional as F

from sira_cli.analysis.experiment import Events, ModelReport, Units, draw_line, new_figure, run_stage
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from sira_cli.core.rules import kl_divergence
from sira_cli.core.streams import Step
from sira_cli.errors import PictureSettingsError
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.model import LoadedModel
from sira_cli.pictures.picture import Picture
from sira_cli.run.events import StageStarted
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.reports import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCES = {"cf": "SIRA's CF stream", "blur": "Gaussian blur", "shuffle": "patch shuffle"}
HATCHES = ("", "///", "...")  # of bars, which are distinct in grey
# The paper names both perturbations, but no strengths: a share of the shorter side, and patches along each side.
BLUR = 0.05
PATCHES = 8
SEED = 0


def shuffle_patches(image: Image.Image, patches: int = PATCHES, seed: int = SEED) -> Image.Image:
    """Put the patches of a grid in random order."""
    if min(image.size) < patches:
        size = f"{image.width} x {image.height}"
        raise PictureSettingsError(f"{size} pixels cannot be cut into {patches} x {patches} patches: ask for fewer")
    pixels = np.array(image)  # [H, W, 3]
    height = image.height // patches  # h, pixels of a patch
    width = image.width // patches  # w
    grid = pixels[: patches * height, : patches * width]  # shares memory with the result
    cut = grid.reshape(patches, height, patches, width, 3).swapaxes(1, 2)  # [P, P, h, w, 3]
    order = np.random.default_rng(seed).permutation(patches**2)
    shuffled = cut.reshape(patches**2, height, width, 3)[order]  # [P P, h, w, 3]
    grid[:] = shuffled.reshape(patches, patches, height, width, 3).swapaxes(1, 2).reshape(grid.shape)
    return Image.fromarray(pixels)


class LastRow(NamedTuple):
    """The last prompt position, float32 on the CPU: `[L, d]` outputs of the decoder layers, h^1..h^L, `[V]` logits."""

    hidden: Tensor
    logits: Tensor


class Divergence(NamedTuple):
    """One reference against the full stream, for one picture: `[L]` drift, 0 to 2, and the next token's KL."""

    drift: tuple[float, ...]
    kl: float


@torch.no_grad()
def last_rows(model: nn.Module, inputs: Mapping[str, Any], config: SiraConfig) -> tuple[LastRow, LastRow]:
    """Return the last row of the full and of the CF stream, from one prefill of one prompt."""
    q = inputs["input_ids"].shape[1]
    rows: list[Tensor] = []
    steps: list[Step] = []

    def keep(layer: nn.Module, args: tuple[Any, ...], hidden: Tensor) -> None:
        # Layers 0..b-1 give [1, q, d], so that both are the same row; the late ones [1, q + T, d] (see fork.py).
        rows.append(hidden[0, [q - 1, -1]].float().cpu())  # [2, d]

    with attach(model, config, on_step=steps.append), ExitStack() as hooks:
        for layer in find_backbone(model).decoder_layers:
            hooks.callback(layer.register_forward_hook(keep).remove)
        model(**inputs, use_cache=False)
    (step,) = steps
    full, cf = torch.stack(rows, dim=1)  # [2, L, d]
    return LastRow(full, step.full[0].cpu()), LastRow(cf, step.cf[0].cpu())


def diverge(full: LastRow, reference: LastRow) -> Divergence:
    """Return drift after every layer, and next-token KL."""
    drift = cosine_distance(full.hidden, reference.hidden)  # [L]
    log_p = full.logits.float().log_softmax(-1)  # [V]
    log_q = reference.logits.float().log_softmax(-1)  # [V]
    return Divergence(tuple(drift.tolist()), float(kl_divergence(log_p, log_q)))


def cosine_distance(full: Tensor, reference: Tensor) -> Tensor:
    """Return 1 - cosine similarity of rows, `[L, d]`, `[L, d]` -> `[L]`, as half the squared distance at length 1.

    That is the same number, exactly 0 for equal rows, never negative, and small angles lose no digits.
    """
    apart = F.normalize(full.float(), dim=-1) - F.normalize(reference.float(), dim=-1)  # [L, d]
    return apart.square().sum(dim=-1) / 2


def measure_drift(lvlm: LoadedModel, image: Image.Image, prompt: str) -> dict[str, Divergence]:
    """Compare each of `REFERENCES` with the full stream, for one picture: three prefills."""
    require(lvlm.decoder, Ability.TRACES, "drift")
    lvlm.check_prompt(prompt)

    def rows_of(picture: Image.Image) -> tuple[LastRow, LastRow]:
        inputs = lvlm.to_device(lvlm.prepare([picture], [prompt]))
        return last_rows(lvlm.model, inputs, lvlm.sira)

    full, cf = rows_of(image)
    blur, _ = rows_of(image.filter(ImageFilter.GaussianBlur(BLUR * min(image.size))))  # Pillow's approximation
    shuffle, _ = rows_of(shuffle_patches(image))
    divergences = {}
    for name, reference in zip(REFERENCES, (cf, blur, shuffle), strict=True):
        divergence = diverge(full, reference)
        if not all(map(math.isfinite, (*divergence.drift, divergence.kl))):
            wrong = f"the model computes numbers out of range of {lvlm.model.dtype}"
            raise PictureSettingsError(f"{wrong}: try another dtype")
        divergences[name] = divergence
    return divergences


class DriftTask(Task[dict[str, Divergence]]):
    """The divergences of each picture, from its samples."""

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[Any]], images: Sequence[Any]) -> Any:
        """Return the pictures' samples."""
        return images

    def answers(self, lvlm: LoadedModel, batch: Batch[Any], on_text: Any = None) -> list[dict[str, Divergence]]:
        """Return the divergences of each picture."""
        pairs = zip(batch.inputs, batch.items, strict=True)
        return [measure_drift(lvlm, image, item.prompt) for image, item in pairs]


def measure_pictures(
    lvlm: Lvlm, pictures: Sequence[Picture], prompt: str, units: Units[dict[str, Divergence]]
) -> Events:
    """Measure every picture, and yield events."""
    yield StageStarted("pictures", len(pictures))
    asked = [picture.known(prompt=prompt) for picture in pictures]
    yield from run_stage(lvlm, DriftTask(), asked, units, batch_size=1)


@dataclass(frozen=True)
class Estimate:
    """A mean over pictures, and its standard error (None if there is only one picture)."""

    mean: float
    stderr: float | None

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """Make an estimate of `[N]`, a value per picture, N >= 1."""
        count = len(values)
        stderr = float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else None
        return cls(float(values.mean()), stderr)

    def __format__(self, digits: str) -> str:
        """Format as `0.12 ±0.03`."""
        if self.stderr is None:
            return f"{self.mean:{digits}}"
        return f"{self.mean:{digits}} ±{self.stderr:{digits}}"


@dataclass(frozen=True)
class Profile:
    """One reference, over pictures (Figures 4a to 4c)."""

    drift: tuple[Estimate, ...]  # `[L]`, after each decoder layer (4a)
    early: Estimate  # mean drift of h^1..h^b, which the two streams of SIRA share (4c)
    late: Estimate  # and of h^(b+1)..h^L
    kl: Estimate  # of the next token, in nats (4b)

    @classmethod
    def of(cls, pictures: Sequence[Divergence], boundary: int) -> Profile:
        """Make a profile of at least one picture; `boundary` is b."""
        drift = np.array([picture.drift for picture in pictures])  # [N, L]
        kl = np.array([picture.kl for picture in pictures])  # [N]
        return cls(
            drift=tuple(map(Estimate.of, drift.T)),
            early=Estimate.of(drift[:, :boundary].mean(axis=1)),
            late=Estimate.of(drift[:, boundary:].mean(axis=1)),
            kl=Estimate.of(kl),
        )


@dataclass(frozen=True)
class DriftReport(ModelReport):
    """The measurements, and the settings that decided them."""

    schema = "sira.drift/1"

    prompt: str
    k: int
    layers: int
    boundary: int  # b = L - K
    perturbations: dict[str, float]
    pictures: int  # measured ones
    failures: tuple[dict[str, str], ...]
    references: dict[str, Profile]

    @classmethod
    def of(cls, lvlm: Lvlm, prompt: str, units: Units[dict[str, Divergence]]) -> DriftReport:
        """Make the report on the results of `measure_drift` for at least one picture."""
        boundary = lvlm.layers - lvlm.k
        references = {}
        for name in REFERENCES:
            divergences = [picture[name] for picture in units.values()]
            references[name] = Profile.of(divergences, boundary)
        failures = [{"file_name": name, "error": failure.error} for name, failure in units.failures.items()]
        return cls(
            **cls.fields_of(lvlm),
            prompt=prompt,
            k=lvlm.k,
            layers=lvlm.layers,
            boundary=boundary,
            perturbations={"blur": BLUR, "patches": PATCHES, "seed": SEED},
            pictures=len(units),
            failures=tuple(failures),
            references=references,
        )

    @property
    def counted(self) -> str:
        """The number of pictures, in words."""
        return "1 picture" if self.pictures == 1 else f"{self.pictures} pictures"

    def table(self) -> Iterator[Table | str]:
        """Yield the table: layers, stages, KL; then the settings."""
        b = self.boundary
        profiles = self.references.values()
        layers = []
        for layer in range(self.layers):
            layers.append([str(layer + 1), *(f"{profile.drift[layer].mean:.4f}" for profile in profiles)])
        early = [f"early, 1-{b}", *(f"{profile.early:.4f}" for profile in profiles)]
        late = [f"late, {b + 1}-{self.layers}", *(f"{profile.late:.4f}" for profile in profiles)]
        kl = ["next-token KL, nats", *(f"{profile.kl:.2g}" for profile in profiles)]
        sections = [layers[:b], layers[b:], [early, late], [kl]]
        yield Table(("drift after layer",), [REFERENCES[name] for name in self.references], sections)
        blur = f"blur {self.perturbations['blur']:g} of the shorter side"
        patches = self.perturbations["patches"]
        yield (
            f"{self.counted}; K = {self.k} of L = {self.layers}, fork at b = {b}; "
            f"{blur}, {patches} x {patches} patches{'; ± standard error' if self.pictures > 1 else ''}"
        )

    def draw(self) -> Figure:
        """Draw Figure 4: (a) drift after every layer, (b) next-token KL, both with one standard error."""
        from matplotlib.ticker import MaxNLocator

        figure = new_figure(4)
        over_layers, bars = figure.subplots(1, 2, width_ratios=(2, 1))
        for number, (name, profile) in enumerate(self.references.items()):
            drift = []
            for layer in profile.drift:
                error = layer.stderr or 0.0
                drift.append((layer.mean, layer.mean - error, layer.mean + error))
            colour = draw_line(over_layers, range(1, self.layers + 1), drift, REFERENCES[name], number)
            bar = bars.bar(
                [REFERENCES[name].replace(" ", "\n", 1)],
                [profile.kl.mean],
                yerr=[profile.kl.stderr or 0.0],
                color=colour,
                hatch=HATCHES[number],
                edgecolor="white",
                ecolor="0.2",
                capsize=3,
            )
            bars.bar_label(bar, fmt="%.3g", padding=3)
        fork = f"fork after b = {self.boundary}"
        over_layers.axvline(self.boundary, color="0.3", linestyle="--", linewidth=1, label=fork)
        over_layers.set_title("(a) layer-wise drift")
        over_layers.set_xlabel("decoder layer")
        over_layers.set_ylabel("1 - cosine similarity to the full stream")
        over_layers.set_xlim(0.5, self.layers + 0.5)
        over_layers.set_ylim(0, None)
        over_layers.xaxis.set_major_locator(MaxNLocator(integer=True))
        over_layers.legend()
        bars.margins(y=0.15)
        bars.set_title("(b) next-token KL")
        bars.set_ylabel("KL(full || reference), nats")
        bands = ", ± standard error" if self.pictures > 1 else ""
        title = f"{self.preset or self.model}: K = {self.k} of {self.layers} layers, {self.counted}{bands}"
        figure.suptitle(title)
        return figure
