"""The server's facts for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sira_cli._version import __version__
from sira_cli.analysis.doubt import DOUBTED, STEPS
from sira_cli.language import function_words
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.settings import Setting
from sira_cli.models.lvlm import Lvlm
from sira_cli.serve.page.examples import examples_for


def page_settings(lvlm: Lvlm, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the form's fields and limits as JSON.

    Args:
        lvlm: the model, under the server's method.
        limits: of a request, by name: `bytes`, `pixels`, `tokens`.

    Returns:
        Among others the methods with their settings and current values, the borders of degrees of doubt
        (`sira_cli.analysis.doubt`), and pictures to try.
    """
    return {
        "version": __version__,
        "model": lvlm.preset.name or lvlm.preset.model,
        "layers": lvlm.layers,
        "method": lvlm.method,
        "prompt": lvlm.preset.prompts.caption,
        "min_support": lvlm.preset.verify.min_support,
        "doubt": {"steps": STEPS, "doubted": DOUBTED, "function_words": sorted(function_words())},
        "examples": examples_for(lvlm.preset),
        "limits": dict(limits),
        "methods": [_described(lvlm.preset.method(name), lvlm) for name in METHODS],
    }


def _described(method: Method, lvlm: Lvlm) -> dict[str, Any]:
    """Return a method's name, abilities and settings, except text settings: they may name files."""
    values = {**lvlm.preset.sira.model_dump(), "k": lvlm.sira.layers_after_fork(lvlm.layers), **method.settings()}
    return {
        "name": method.name,
        "scores_words": Ability.TRACES in method.abilities,
        "settings": [
            _setting(name, declared, values[name], lvlm.layers)
            for name, declared in method.all_settings().items()
            if name != "k_fraction" and (declared.kind is not str or declared.choices)
        ],
    }


def _setting(name: str, declared: Setting, value: Any, layers: int) -> dict[str, Any]:
    high = layers - 1 if name == "k" else declared.high
    return {
        "name": name,
        "kind": declared.kind.__name__,
        "value": value,
        "low": declared.low if declared.low > -float("inf") else None,
        "high": high if high < float("inf") else None,
        "choices": declared.choices,
        "optional": declared.optional,
        "meaning": declared.meaning,
    }
