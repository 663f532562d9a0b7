"""A proof on the user's own model: does SIRA decode it as in Algorithm 1?

from sira_cli.analysis.proof import prove
from sira_cli.demo.scenes import make_scene, render
from sira_cli.models import presets

proof = prove(presets.resolve("Qwen/Qwen3-VL-8B-Instruct"), render(make_scene(1))[0])
print(proof.verdict, proof.to_json())
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image

from sira_cli._version import __version__
from sira_cli.analysis.proof.compared import Compared, compare
from sira_cli.analysis.proof.exact import Exact, compare_real
from sira_cli.analysis.proof.seen import Seen, check_layers, structure_of, what_is_seen
from sira_cli.analysis.proof.twin import Twin, build_twin
from sira_cli.core import fork
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import fork_place
from sira_cli.core.forward_pass import Step
from sira_cli.core.image_tokens import ImageTokenFinder
from sira_cli.errors import ImageTokenError, ModelNotFoundError, PictureError, UnsupportedModelError
from sira_cli.models.hub import find_described
from sira_cli.models.load import check_structure
from sira_cli.models.preset import Preset
from sira_cli.models.presets import BUNDLED, BUNDLED_FOLDER
from sira_cli.run.report import Report

TOKENS = 4  # decoded by the twin


@dataclass(frozen=True)
class Proof(Report):
    """The facts about a model, and whether SIRA decodes it as in Algorithm 1.

    Attributes:
        model, revision: as the preset has them.
        family: name of the family; for other types, whether they were compared with the reference.
        layers, b, k: L, the layer before which the model forks, and K.
        seen: the processor's inputs from a picture and the caption prompt.
        abilities: abilities of the model under SIRA.
        twin: the comparison on a tiny random twin; None: none could be built, for the reason in `no_twin`.
        real: the comparison with the real weights; None: not asked for.
    """

    schema = "sira.proof/1"

    model: str
    revision: str
    family: str
    layers: int
    b: int
    k: int
    alpha: float
    seen: Seen
    abilities: list[str]
    twin: Compared | None
    no_twin: str | None
    real: Exact | None
    versions: dict[str, str]

    @property
    def verdict(self) -> str:
        """`exact`, `not exact` or `not proven`."""
        real = None if self.real is None else self.real.compared
        found = {compared.verdict for compared in (self.twin, real) if compared is not None}
        if "not exact" in found:
            return "not exact"
        return "exact" if found == {"exact"} else "not proven"

    def to_json(self) -> str:
        """Return everything as one JSON object; figures that are not finite are null."""
        return self.as_json({"verdict": self.verdict})


def prove(
    preset: Preset,
    picture: Image.Image,
    *,
    exact: bool = False,
    offline: bool = False,
    device: str = "auto",
) -> Proof:
    """Judge a model without its weights, compare a tiny twin of it with the slow reference, and try its processor."""
    name = str(BUNDLED_FOLDER) if preset.model == BUNDLED else preset.model
    folder = find_described(name, preset.revision, offline=offline, judge=lambda place: _judge(place, preset))
    model = _judge(folder, preset)
    check_layers(folder, model)
    backbone, boundary = fork_place(model, preset.sira_config)
    layers = len(backbone.decoder_layers)
    try:
        seen, inputs, finder = what_is_seen(folder, model, preset, picture)
    except (ImageTokenError, ModelNotFoundError, PictureError) as error:  # the files exist, but are unusable
        raise UnsupportedModelError(str(error)) from error
    family, abilities = structure_of(model, preset, backbone.tested)
    compared, reason = _on_twin(model, boundary, finder, preset, inputs)
    real = compare_real(preset, picture, offline=offline, device=device) if exact else None
    return Proof(
        preset.model,
        preset.revision,
        family,
        layers,
        boundary,
        layers - boundary,
        preset.sira.alpha,
        seen,
        abilities,
        compared,
        reason,
        real,
        {
            "sira": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    )


def _on_twin(
    model: Any, boundary: int, finder: ImageTokenFinder, preset: Preset, inputs: dict[str, Any]
) -> tuple[Compared | None, str | None]:
    """Compare a twin on a model's inputs."""
    try:
        twin = build_twin(model, boundary, finder, inputs)
        with torch.no_grad():
            twin.model(**twin.inputs, use_cache=False)
    except Exception as error:  # transformers has hundreds of configurations, and as many ways to refuse a small one
        return None, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return compare_twin(twin, preset.sira.alpha, preset.sira.beta), None


def compare_twin(twin: Twin, alpha: float, beta: float | None = None) -> Compared:
    """Decode a twin with SIRA, and compare it with the reference."""
    steps: list[Step] = []
    config = SiraConfig(k=twin.k, alpha=alpha, beta=beta, image_tokens=twin.rule)
    with fork.attach(twin.model, config, on_step=steps.append):
        output = twin.model.generate(
            **twin.inputs, do_sample=False, max_new_tokens=TOKENS, suppress_tokens=list(twin.silent)
        )
    tokens = output[0, twin.inputs["input_ids"].shape[1] :].tolist()
    return compare(twin, config, tokens, steps, torch.float32)


def _judge(folder: Path, preset: Preset) -> Any:
    """Return the model without weights."""
    try:
        return check_structure(folder, preset)
    except ModelNotFoundError as error:  # the files exist, but are unusable
        raise UnsupportedModelError(str(error)) from error
