"""From options to a preset and a method."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.groups import DecodingOptions, ModelOptions, ResearchModelOptions
from sira_cli.cli.terminal.console import note, spell
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS, find
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from sira_cli.models.preset import Preset

ALL = "all"  # as --method: every method
LOADING = ("dtype", "quantization", "max_pixels")  # options that are settings of a preset's model
OF_METHODS = ("method", "k", "alpha")  # options that are no settings of a preset, or also those of a method


def method_names(text: str) -> list[str]:
    """Split names of methods with commas between them; `all` stands for every method."""
    return list(METHODS) if text.strip() == ALL else [name.strip() for name in text.split(",")]


def choose_preset(model: ResearchModelOptions, *, k: int | None = None) -> Preset:
    """Return the preset in force for commands that are about SIRA alone."""
    return choose(model, DecodingOptions(k=k))[0]


def choose(model: ResearchModelOptions, decoding: DecodingOptions) -> tuple[Preset, Method]:
    """Return the preset and the method in force, changed by the options."""
    (found,) = choose_each([decoding.method], model, decoding).values()
    return found


def choose_each(
    names: Sequence[str],
    model: ResearchModelOptions,
    decoding: DecodingOptions,
    *,
    prompt: str | None = None,
    prefix: str | None = None,
) -> dict[str, tuple[Preset, Method]]:
    """Return preset and method for each of several methods; each takes the settings that it has.

    `prompt` and `prefix` are those of captions and texts; None: the preset's.
    """
    from sira_cli.models.preset import full_key

    methods = [find(name) for name in names]
    options = {"prompt": prompt, "prefix": prefix} | vars(decoding)
    if isinstance(model, ModelOptions):
        options |= {name: getattr(model, name) for name in LOADING}
    else:  # no options of their own, so that messages name --set
        spell(dict.fromkeys(LOADING, "--set"))
    options = {name: value for name, value in options.items() if value is not None and name not in OF_METHODS}
    typed = {full_key(name): name.replace("_", "-") for name in options}
    given = set_option.read(model.settings, methods, k=decoding.k, alpha=decoding.alpha)
    preset = _preset(model)
    chosen = {}
    for method in methods:
        keys = dict(options)
        own = {}
        for name, value in given[method.name].items():
            if method.owns(name):
                own[name] = value
            elif full_key(name) in typed:
                key = full_key(name)
                raise SettingsError(f"--{typed[key]} and --set {key}: give one of them")
            else:
                keys[name] = value
        chosen[method.name] = preset.with_values(**keys), preset.method(method.name).with_values(**own)
    return chosen


def _preset(model: ResearchModelOptions) -> Preset:
    """Return the preset that is named, or that of a model, before any option changes it."""
    from sira_cli.models import presets

    if model.model is None:
        return presets.find(model.preset or os.environ.get("SIRA_PRESET") or presets.DEFAULT)
    if model.preset is not None:
        raise SettingsError("give --preset or --model, not both")
    name, revision = with_revision(model.model)
    shipped = presets.shipped_for(name)
    preset = presets.for_model(name, shipped)
    taken = presets.to_yaml(preset).splitlines()[1:]
    if shipped is not None and taken:
        note(f"--model {name} takes {'; '.join(taken)} from the preset {shipped.name}")
    return preset.with_settings(revision=revision)


def with_revision(model: str) -> tuple[str, str | None]:
    """Split MODEL@REVISION; a folder may have an @ in its name."""
    name, at, revision = model.rpartition("@")
    return (name, revision) if at and name and revision and not Path(model).exists() else (model, None)
