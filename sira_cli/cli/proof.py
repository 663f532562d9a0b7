"""`sira presets check --model`: a proof on the user's own model, printed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.common import ResearchModelOptions
from sira_cli.cli.terminal.console import waiting
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.proof import Proof
    from sira_cli.analysis.proof.compared import Compared

SCENE = 1  # seed of the drawn scene


def check_model(model: ResearchModelOptions, exact: bool, as_json: bool) -> bool:
    """Make the proof and print it; return whether the model is exact."""
    preset = choose_preset(model)
    if preset.load.trust_remote_code:
        raise SettingsError("code of a checkpoint cannot be proven: leave out `trust_remote_code=`")
    from sira_cli.analysis.proof import prove
    from sira_cli.demo.scenes import make_scene, render

    with waiting("comparing with a direct implementation of Algorithm 1"):
        proof = prove(
            preset,
            render(make_scene(SCENE))[0],
            exact=exact,
            offline=model.offline,
            device=model.device,
        )
    print(proof.to_json() if as_json else "\n".join(_lines(proof)))
    return proof.verdict == "exact"


def _lines(proof: Proof) -> list[str]:
    """Return the block that can be pasted into a bug report."""
    seen = proof.seen
    ends = ", ".join(f"{token!r} ({number})" for number, token in seen.end_tokens.items()) or "none"
    generation = ", ".join(f"{name}={value!r}" for name, value in seen.generation.items()) or "none"
    rows = {
        "model": f"{proof.model}, revision {proof.revision}",
        "family": proof.family,
        "layers": f"L = {proof.layers}, b = {proof.b}, K = {proof.k}, alpha = {proof.alpha:g}",
        "image tokens": f"{seen.image_tokens} of {seen.prompt_tokens} tokens ({seen.image_token})",
        "prompt": repr(seen.prompt),
        "end tokens": ends,
        "its settings": generation,
        "in force": f"none in sira; with `attach`: {', '.join(seen.in_force) or 'none'}",
        "abilities": ", ".join(proof.abilities),
        "twin": _shown(proof.twin, proof.no_twin),
    }
    if proof.real is not None:
        real = proof.real
        ratio = real.seconds_sira / real.seconds_greedy
        rows["real weights"] = f"{_shown(real.compared)}; {real.dtype} on {real.device}"
        rows["text"] = repr(real.text)
        rows["time"] = f"{real.seconds_sira:.3g} s, {ratio:.2f} of greedy's {real.seconds_greedy:.3g} s"
    rows["versions"] = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    unproven = proof.verdict == "not proven" and proof.real is None
    rows["verdict"] = f"{proof.verdict} without --exact" if unproven else proof.verdict
    return [f"{name:<14}{value}" for name, value in rows.items()]


def _shown(compared: Compared | None, reason: str | None = None) -> str:
    if compared is None:
        return f"none could be built and run: {reason}"
    if not math.isfinite(compared.worst_full + compared.worst_cf):
        return "nothing was compared: some logits are no finite numbers (are the weights damaged?)"
    same = "the reference's" if compared.equal_tokens else "NOT the reference's"
    return (
        f"{compared.tokens} tokens, {same}; logits differ by {compared.worst_full:.1e} (full), "
        f"{compared.worst_cf:.1e} (CF), limit {compared.limit:.1e}; the streams by {compared.gap:.2g}"
        + ": nothing was compared"
        * (compared.verdict == "not proven")
    )
