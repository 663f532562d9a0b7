"""How far counterfactual references stray from the full stream: the paper's Figure 4, for any model.

The paper (Section "Alignment of the Internal Counterfactual Reference") compares the CF stream with the
model on a blurred and on a patch-shuffled picture. It prints no formula for drift; here it is, after each
decoder layer and at the last prompt position, from which the next token is predicted,

    drift(i) = 1 - cos(h_full^i, h_ref^i),  i = 1..L

and the next-token KL is KL(p_full || p_ref) in nats. Up to h^b, b = L - K, the CF stream equals the full one.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sira_cli.analysis.experiment import ModelReport, Table, Units, run_missing
from sira_cli.analysis.perturb import Perturbations, blur, shuffle_patches
from sira_cli.analysis.plots import STYLES, new_figure
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
from sira_cli.run.batch import Batch, Item
from sira_cli.run.events import Advanced, FailedPicture, Halved, StageStarted
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCES = {"cf": "SIRA's CF stream", "blur": "Gaussian blur", "shuffle": "patch shuffle"}
HATCHES = ("", "///", "...")  # of bars, which are distinct in grey
ROWS = 16  # in the table; more layers share rows


@dataclass(frozen=True)
class LastRow:
    """The model's values at the last prompt position: float32, on the CPU.

    Attributes:
        hidden: `[L, d]`, h^1..h^L, the outputs of the decoder layers (before the final norm).
        logits: `[V]`.
    """

    hidden: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Divergence:
    """One reference against the full stream, for one picture and prompt.

    Attributes:
        drift: `[L]`, 1 - cosine similarity after each decoder layer, 0 to 2.
        kl: KL(full || reference) of the next token, in nats.
    """

    drift: tuple[float, ...]
    kl: float


@torch.no_grad()
def last_rows(model: nn.Module, inputs: Mapping[str, Any], config: SiraConfig) -> tuple[LastRow, LastRow]:
    """Return the last row of the full and of the CF stream, from one prefill of one prompt."""
    q = inputs["input_ids"].shape[1]
    full: list[Tensor] = []
    cf: list[Tensor] = []

    def keep(layer: nn.Module, args: tuple[Any, ...], hidden: Tensor) -> None:
        # Layers 0..b-1 give [1, q, d], so that both are the same row; the late ones [1, q + T, d] (see fork.py).
        full.append(hidden[0, q - 1].float().cpu())
        cf.append(hidden[0, -1].float().cpu())

    steps: list[Step] = []
    handles: list[torch.utils.hooks.RemovableHandle] = []
    with attach(model, config, on_step=steps.append):
        try:
            for layer in find_backbone(model).decoder_layers:
                handles.append(layer.register_forward_hook(keep))
            model(**inputs, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
    (step,) = steps
    return LastRow(torch.stack(full), step.full[0].cpu()), LastRow(torch.stack(cf), step.cf[0].cpu())


def diverge(full: LastRow, reference: LastRow) -> Divergence:
    """Return drift after every layer, and next-token KL."""
    drift = cosine_distance(full.hidden, reference.hidden)  # [L]
    log_p, log_q = (row.logits.float().log_softmax(-1) for row in (full, reference))  # [V]
    return Divergence(tuple(drift.tolist()), float(kl_divergence(log_p, log_q)))


def cosine_distance(full: Tensor, reference: Tensor) -> Tensor:
    """Return 1 - cosine similarity of rows, `[L, d]`, `[L, d]` -> `[L]`, in float32.

    It is computed as half the squared distance of the rows at length 1. That is the same number, exactly 0 for equal
    rows, never negative, and small angles lose no digits.
    """
    apart = F.normalize(full.float(), dim=-1) - F.normalize(reference.float(), dim=-1)  # [L, d]
    return apart.square().sum(dim=-1) / 2


def measure_drift(
    lvlm: LoadedModel, image: Image.Image, prompt: str, how: Perturbations | None = None
) -> dict[str, Divergence]:
    """Compare each of `REFERENCES` with the full stream, for one picture: three prefills."""
    require(lvlm.decoder, Ability.TRACES, "drift")
    lvlm.check_prompt(prompt)
    how = how or Perturbations()
    (width, height), cells = image.size, how.patches
    if min(width, height) < cells:
        raise PictureSettingsError(
            f"{width} x {height} pixels cannot be cut into {cells} x {cells} patches: ask for fewer"
        )
    shown = (image, blur(image, how.blur), shuffle_patches(image, how.patches, how.seed))
    inputs = (lvlm.to_device(lvlm.prepare([each], [prompt])) for each in shown)
    (full, cf), (blurred, _), (shuffled, _) = (last_rows(lvlm.model, each, lvlm.sira) for each in inputs)
    found = dict(zip(REFERENCES, (diverge(full, other) for other in (cf, blurred, shuffled)), strict=True))
    if not all(math.isfinite(value) for each in found.values() for value in (*each.drift, each.kl)):
        raise PictureSettingsError(f"the model computes numbers out of range of {lvlm.model.dtype}: try another dtype")
    return found


@dataclass(frozen=True)
class DriftTask(Task[dict[str, Divergence]]):
    """The divergences of each picture, one picture at a time."""

    how: Perturbations

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[Any]], images: Sequence[Any]) -> Any:
        """Return the pictures' samples."""
        return images

    def answers(self, lvlm: LoadedModel, batch: Batch[Any], on_text: Any = None) -> list[dict[str, Divergence]]:
        """Return the divergences of each picture."""
        pairs = zip(batch.inputs, batch.items, strict=True)
        return [measure_drift(lvlm, image, item.prompt, self.how) for image, item in pairs]


def measure_pictures(
    lvlm: Lvlm, pictures: Sequence[Picture], prompt: str, units: Units[dict[str, Divergence]], how: Perturbations
) -> Generator[StageStarted | Advanced | FailedPicture | Halved, None, None]:
    """Measure every picture, and yield events."""
    yield StageStarted("pictures", len(pictures))
    items = (Item[dict[str, Divergence]](picture, picture.name_in(None), prompt) for picture in pictures)
    yield from run_missing(lvlm, DriftTask(how), items, units, batch_size=1)


@dataclass(frozen=True)
class Estimate:
    """A mean over pictures, and its standard error (None if there is only one picture)."""

    mean: float
    stderr: float | None

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """Make an estimate of `[N]`, a value per picture, N >= 1."""
        count = len(values)
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else None)

    def __format__(self, digits: str) -> str:
        """Format as `0.12 ±0.03`."""
        return f"{self.mean:{digits}}" + ("" if self.stderr is None else f" ±{self.stderr:{digits}}")


@dataclass(frozen=True)
class Profile:
    """One reference, over pictures.

    Attributes:
        drift: `[L]`, after each decoder layer (Figure 4a).
        early: mean drift of h^1..h^b, which the two streams of SIRA share (Figure 4c).
        late: mean drift of h^(b+1)..h^L (Figure 4c).
        kl: of the next token, in nats (Figure 4b).
    """

    drift: tuple[Estimate, ...]
    early: Estimate
    late: Estimate
    kl: Estimate

    @classmethod
    def of(cls, pictures: Sequence[Divergence], boundary: int) -> Profile:
        """Make a profile of at least one picture; `boundary` is b."""
        drift = np.array([picture.drift for picture in pictures])  # [N, L]
        return cls(
            drift=tuple(map(Estimate.of, drift.T)),
            early=Estimate.of(drift[:, :boundary].mean(axis=1)),
            late=Estimate.of(drift[:, boundary:].mean(axis=1)),
            kl=Estimate.of(np.array([picture.kl for picture in pictures])),
        )


@dataclass(frozen=True)
class FailedFile:
    """A picture that could not be measured, and why."""

    file_name: str
    error: str


@dataclass(frozen=True)
class DriftReport(ModelReport):
    """The measurements, and the settings that decided them.

    Attributes:
        prompt: the prompt about every picture.
        k, layers, boundary: K, L and b = L - K.
        pictures: number of measured ones, without failures.
        references: a profile for each of `REFERENCES`.
    """

    schema = "sira.drift/1"

    prompt: str
    k: int
    layers: int
    boundary: int
    perturbations: Perturbations
    pictures: int
    failures: tuple[FailedFile, ...]
    references: dict[str, Profile]

    @classmethod
    def of(cls, lvlm: Lvlm, prompt: str, how: Perturbations, units: Units[dict[str, Divergence]]) -> DriftReport:
        """Make the report on the results of `measure_drift` for at least one picture."""
        boundary = lvlm.layers - lvlm.k
        measured = [units[name] for name in units]
        return cls(
            **cls.fields_of(lvlm),
            prompt=prompt,
            k=lvlm.k,
            layers=lvlm.layers,
            boundary=boundary,
            perturbations=how,
            pictures=len(measured),
            failures=tuple(FailedFile(each.picture, each.error) for each in units.failures.values()),
            references={name: Profile.of([picture[name] for picture in measured], boundary) for name in REFERENCES},
        )

    @property
    def counted(self) -> str:
        """The number of pictures, in words."""
        return f"{self.pictures} picture" + "s" * (self.pictures != 1)

    def table(self) -> Iterator[Table | str]:
        """Yield the table: layers (no row spans the boundary), stages, KL; then the settings."""
        profiles, b = self.references.values(), self.boundary
        size, sections = -(-self.layers // ROWS), []
        for start, end in ((0, b), (b, self.layers)):
            rows = []
            for first in range(start, end, size):
                last = min(first + size, end)
                numbers = f"{first + 1}" if last == first + 1 else f"{first + 1}-{last}"
                means = [np.mean([layer.mean for layer in profile.drift[first:last]]) for profile in profiles]
                rows.append([numbers, *(f"{mean:.4f}" for mean in means)])
            sections.append(rows)
        early = [f"early, 1-{b}", *(f"{profile.early:.4f}" for profile in profiles)]
        late = [f"late, {b + 1}-{self.layers}", *(f"{profile.late:.4f}" for profile in profiles)]
        sections += [[early, late], [["next-token KL, nats", *(f"{profile.kl:.2g}" for profile in profiles)]]]
        yield Table(("drift after layer",), [REFERENCES[name] for name in self.references], sections)
        how = self.perturbations
        yield (
            f"{self.counted}; K = {self.k} of L = {self.layers}, fork at b = {b}; "
            f"blur {how.blur:g} of the shorter side, {how.patches} x {how.patches} patches"
            + "; ± standard error"
            * (self.pictures > 1)
        )

    def draw(self) -> Figure:
        """Draw Figure 4: (a) drift after every layer, (b) next-token KL, both with one standard error."""
        from matplotlib.ticker import MaxNLocator

        figure, numbers = new_figure(4), range(1, self.layers + 1)
        over_layers, bars = figure.subplots(1, 2, width_ratios=(2, 1))
        for (colour, marker), hatch, (name, profile) in zip(STYLES, HATCHES, self.references.items(), strict=False):
            label, mean = REFERENCES[name], np.array([layer.mean for layer in profile.drift])
            over_layers.plot(numbers, mean, color=colour, marker=marker, markersize=4, label=label)
            error = np.array([layer.stderr or 0.0 for layer in profile.drift])
            over_layers.fill_between(numbers, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "ecolor": "0.2", "capsize": 3}
            two_lines = [label.replace(" ", "\n", 1)]
            bar = bars.bar(two_lines, [profile.kl.mean], yerr=[profile.kl.stderr or 0.0], **look)
            bars.bar_label(bar, fmt="%.3g", padding=3)
        fork = f"fork after b = {self.boundary}"
        over_layers.axvline(self.boundary, color="0.3", linestyle="--", linewidth=1, label=fork)
        over_layers.set(
            title="(a) layer-wise drift", xlabel="decoder layer", ylabel="1 - cosine similarity to the full stream"
        )
        over_layers.set_xlim(0.5, self.layers + 0.5)
        over_layers.set_ylim(bottom=0)
        over_layers.xaxis.set_major_locator(MaxNLocator(integer=True))
        over_layers.legend()
        bars.margins(y=0.15)
        bars.set(title="(b) next-token KL", ylabel="KL(full || reference), nats")
        error_note = ", ± standard error" * (self.pictures > 1)
        model = self.preset or self.model
        figure.suptitle(f"{model}: K = {self.k} of {self.layers} layers, {self.counted}{error_note}")
        return figure
