"""From options to a preset and a method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.groups import DecodingOptions, ModelOptions, ResearchModelOptions
from sira_cli.cli.terminal.console import note, spell
from sira_cli.errors import SettingsError, SiraError
from sira_cli.methods import METHODS, find
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from sira_cli.models.preset import Preset
    from sira_cli.run.lvlm import Lvlm

ALL = "all"  # as --method: every method
LOADING = ("dtype", "quantization", "max_pixels")  # options that are settings of a preset's model


def method_names(text: str) -> list[str]:
    """Split names of methods with commas between them; `all` stands for every method."""
    return list(METHODS) if text.strip() == ALL else [name.strip() for name in text.split(",")]


def able(
    lvlm: Lvlm, chosen: Mapping[str, tuple[Preset, Method]], *refusals: type[SiraError]
) -> dict[str, tuple[Preset, Method]]:
    """Return the methods, each with its preset, that a loaded model can run; report why the others cannot."""
    found = {}
    for name, (preset, method) in chosen.items():
        try:
            lvlm.under(method, preset)
        except SiraError as error:
            if isinstance(error, refusals or SiraError):
                note(f"{name} is left out: {error}")
                continue
        found[name] = preset, method
    return found


def choose(model: ResearchModelOptions, decoding: DecodingOptions, **settings: Any) -> tuple[Preset, Method]:
    """Return the preset and the method in force, changed by the options."""
    (found,) = choose_each([decoding.method], model, decoding, **settings).values()
    return found


def choose_each(
    names: Sequence[str], model: ResearchModelOptions, decoding: DecodingOptions, **settings: Any
) -> dict[str, tuple[Preset, Method]]:
    """Return preset and method for each of several methods; each takes the settings that it has."""
    methods = [find(name) for name in names]
    if not isinstance(model, ModelOptions):  # no options of their own, so that messages name --set
        spell(dict.fromkeys(LOADING, "--set"))
    given, preset = set_option.read(model.settings, methods, k=decoding.k, alpha=decoding.alpha), _preset(model)
    options = {name: value for name, value in vars(decoding).items() if name not in ("method", "k", "alpha")} | settings
    chosen = {}
    for method in methods:
        own = {name: value for name, value in given[method.name].items() if method.owns(name)}
        keys = {name: value for name, value in given[method.name].items() if name not in own}
        chosen[method.name] = _changed(preset, model, keys, **options), preset.method(method.name).with_values(**own)
    return chosen


def choose_preset(model: ResearchModelOptions, **settings: Any) -> Preset:
    """Return the preset in force for commands that are about SIRA alone; settings are those of `with_settings`."""
    return choose(model, DecodingOptions(), **settings)[0]


def _preset(model: ResearchModelOptions) -> Preset:
    if model.preset is not None and model.model is not None:
        raise SettingsError("give --preset or --model, not both")
    from sira_cli.models import presets

    if model.model is not None:
        name, revision = with_revision(model.model)
        preset, shipped = presets.for_model(name), presets.shipped_for(name)
        taken = presets.to_yaml(preset).splitlines()[1:]
        if shipped is not None and taken:
            note(f"--model {name} takes {'; '.join(taken)} from the preset {shipped.name}")
        return preset.with_settings(revision=revision)
    return presets.find(model.preset or os.environ.get("SIRA_PRESET") or presets.DEFAULT)


def with_revision(model: str) -> tuple[str, str | None]:
    """Split MODEL@REVISION; a folder may have an @ in its name."""
    name, at, revision = model.rpartition("@")
    return (name, revision) if at and name and revision and not Path(model).exists() else (model, None)


def _changed(preset: Preset, model: ResearchModelOptions, keys: Mapping[str, Any], **options: Any) -> Preset:
    """Return a preset with the values of options, and with the keys that --set gives."""
    from sira_cli.models.preset import full_key

    options |= {name: getattr(model, name) for name in LOADING if hasattr(model, name)}
    given = {full_key(name): name for name, value in options.items() if value is not None}
    for key in map(full_key, keys):
        if key in given:
            raise SettingsError(f"--{given[key].replace('_', '-')} and --set {key}: give one of them")
    return preset.with_settings(**options).with_values(**keys)
