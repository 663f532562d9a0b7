"""From options to a preset and a method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sira_cli.cli.console import note
from sira_cli.cli.decoding_options import DecodingOptions
from sira_cli.cli.options import ModelOptions
from sira_cli.errors import SettingsError, SiraError
from sira_cli.methods import METHODS, find
from sira_cli.methods.base import Method

if TYPE_CHECKING:
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.models.preset import Preset

ALL = "all"  # as --method: every method
# Options whose names are those of settings of methods.
METHOD_OPTIONS = ("k", "alpha", "beta")


def method_names(text: str) -> list[str]:
    """Split names of methods with commas between them; `all` stands for every method."""
    return list(METHODS) if text.strip() == ALL else [name.strip() for name in text.split(",")]


def able(
    lvlm: Lvlm, chosen: Mapping[str, tuple[Preset, Method]], *refusals: type[SiraError]
) -> dict[str, tuple[Preset, Method]]:
    """Return the methods, each with its preset, that a loaded model can run; report why the others cannot.

    Args:
        lvlm: the loaded model.
        chosen: preset and method by name.
        *refusals: the errors for which a method is left out (default: all); others appear when it runs.
    """
    left_out = refusals or (SiraError,)
    found = {}
    for name, (preset, method) in chosen.items():
        try:
            lvlm.under(method, preset)
        except left_out as error:
            note(f"{name} is left out: {error}")
            continue
        except SiraError:
            pass
        found[name] = preset, method
    return found


def choose(model: ModelOptions, decoding: DecodingOptions, **settings: Any) -> tuple[Preset, Method]:
    """Return the preset and the method in force, changed by the options.

    Args:
        model, decoding: the options; `decoding.method` is one name.
        **settings: of the preset, such as prompt.

    Raises:
        SettingsError: --preset and --model together, an unknown method, or an unknown or wrong setting.
    """
    method = find(decoding.method)
    given = method_settings(decoding, [method])[method.name]
    return _with_settings(_preset(model), method, model, decoding, given, **settings)


def choose_each(
    names: Sequence[str], model: ModelOptions, decoding: DecodingOptions, **settings: Any
) -> dict[str, tuple[Preset, Method]]:
    """Return preset and method for each of several methods; each takes the settings that it has.

    Args:
        names: of the methods.
        model, decoding: the options.
        **settings: of the preset, such as prompt.

    Raises:
        SettingsError: as `choose`; or none of the methods has a setting.
    """
    methods = [find(name) for name in names]
    preset = _preset(model)
    return {
        method.name: _with_settings(preset, method, model, decoding, given, **settings)
        for method, given in zip(methods, method_settings(decoding, methods).values(), strict=True)
    }


def choose_preset(model: ModelOptions, **settings: Any) -> Preset:
    """Return the preset in force for commands that are about SIRA alone; settings are those of `with_settings`.

    Raises:
        SettingsError: --preset and --model together, or a value is wrong.
    """
    return _preset(model).with_settings(**_own_settings(model), **settings)


def method_settings(decoding: DecodingOptions, methods: Sequence[Method]) -> dict[str, dict[str, Any]]:
    """Return the settings that --k, --alpha, --beta and --set give each method, by its name.

    A setting goes to every method that has it; `--set METHOD.NAME=VALUE` to that method only.

    Raises:
        SettingsError: none of the methods has a setting, it is given twice, or it is not of the right type.
    """
    found: dict[str, dict[str, Any]] = {method.name: {} for method in methods}
    for name in METHOD_OPTIONS:
        if (value := getattr(decoding, name)) is not None:
            for method in _having(methods, name, f"--{name}"):
                found[method.name][name] = value
    for given in decoding.settings or ():
        target, equals, text = given.partition("=")
        only, dot, name = target.rpartition(".")
        if not equals or not name or (dot and only not in found):
            raise SettingsError(f"--set {given}: expected NAME=VALUE or METHOD.NAME=VALUE, such as noise_step=700")
        chosen = [method for method in methods if only in ("", method.name)]
        for method in _having(chosen, name, f"--set {given}"):
            if name in found[method.name]:
                raise SettingsError(f"--set {given}: {name} is given twice")
            found[method.name] |= method.parse_settings({name: text})
    return found


def _having(methods: Sequence[Method], name: str, option: str) -> list[Method]:
    """Return the methods that have a setting; a single method without it raises its own error."""
    having = [method for method in methods if name in method.all_settings()]
    if len(methods) == 1 and not having:
        methods[0].parse_settings({name: ""})
    # Greedy accepts K, but only for commands that show both streams.
    if not any(name in method.deciding or name in method.own_settings() for method in having) and len(methods) > 1:
        raise SettingsError(f"{option}: none of the methods has it: {', '.join(method.name for method in methods)}")
    return having


def _preset(model: ModelOptions) -> Preset:
    if model.preset is not None and model.model is not None:
        raise SettingsError("give --preset or --model, not both")
    from sira_cli.models import presets

    if model.model is not None:
        preset, shipped = presets.for_model(model.model), presets.shipped_for(model.model)
        taken = presets.to_yaml(preset).splitlines()[1:]
        if shipped is not None and taken:
            note(f"--model {model.model} takes {'; '.join(taken)} from the preset {shipped.name}")
        return preset
    return presets.find(model.preset or os.environ.get("SIRA_PRESET") or presets.DEFAULT)


def _own_settings(model: ModelOptions) -> dict[str, Any]:
    """Return the preset settings that the model options change."""
    return {name: getattr(model, name) for name in ("revision", "dtype", "max_pixels", "min_pixels")}


def _with_settings(
    preset: Preset,
    method: Method,
    model: ModelOptions,
    decoding: DecodingOptions,
    given: dict[str, Any],
    **settings: Any,
) -> tuple[Preset, Method]:
    """Separate the method's settings from the preset's, and apply both."""
    chosen = preset.method(method.name).with_values(**{name: given[name] for name in given if method.owns(name)})
    rest = {name: given[name] for name in given if not method.owns(name)}
    generation = {
        field.name: getattr(decoding, field.name)
        for field in fields(decoding)
        if field.name not in ("method", "settings", *METHOD_OPTIONS)
    }
    changed = preset.with_settings(**_own_settings(model), **generation, **settings)
    return changed.with_values(**rest), chosen


def note_idle(decoding: DecodingOptions, preset: Preset) -> None:
    """Report options that have no effect under any of the methods."""
    seeded = any(find(name).uses_seed for name in method_names(decoding.method))
    idle = ["--top-p"] * (decoding.top_p is not None) + ["--seed"] * (decoding.seed is not None and not seeded)
    if preset.generation.temperature == 0 and idle:
        note(f"{' and '.join(idle)} {'change' if idle[1:] else 'changes'} nothing at temperature 0")
