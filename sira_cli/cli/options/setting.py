"""The option --set: any key of the preset, and any setting of the method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS

if TYPE_CHECKING:
    from sira_cli.methods.base import Method
    from sira_cli.models.preset import Preset

# Last parts of keys that are also options; all others are given by --set.
OPTIONS = {
    *("k", "alpha", "dtype", "quantization", "max_new_tokens", "max_pixels", "prefix", "prompt", "seed", "system"),
    *("temperature", "think", "top_p", "min_support", "verify"),
}


def read(settings: Sequence[str] | None, methods: Sequence[Method], **options: Any) -> dict[str, dict[str, Any]]:
    """Return the values of --set and of options such as --alpha by method: those that it has, and keys of presets."""
    found: dict[str, dict[str, Any]] = {method.name: {} for method in methods}
    for name, value in options.items():
        if value is not None:
            for method, values in _values(name, repr(value), methods, f"--{name}", f"--{name} {value:g}").items():
                found[method] |= values
    for given in settings or ():
        target, equals, text = given.partition("=")
        if not equals or not target:
            raise SettingsError(f"--set {given}: expected KEY=VALUE, such as generation.top_p=0.9 or noise_step=700")
        for method, values in _values(target, text, methods, f"--set {given}", f"--set {given}").items():
            for repeated in values.keys() & found[method].keys():
                if options.get(repeated) is not None:
                    raise SettingsError(f"--{repeated} and --set {repeated}: give one of them")
                raise SettingsError(f"--set {given}: {repeated} is given twice")
            found[method] |= values
    return found


def _values(target: str, text: str, methods: Sequence[Method], given: str, typed: str) -> dict[str, dict[str, Any]]:
    """Return one value by method and name; messages say what was `given`, those about the value how it was `typed`."""
    only, _, name = target.rpartition(".")
    chosen = [method for method in methods if only in ("", method.name)]
    having = [method for method in chosen if name in method.all_settings()]
    if having:
        # Greedy has K only for commands that show both streams.
        if len(methods) > 1 and not any(name in each.deciding or name in each.own_settings() for each in having):
            raise SettingsError(f"{given}: {_lacking(name, methods)}")
        return {method.name: {name: method.all_settings()[name].parse(name, text, typed)} for method in having}
    if chosen and only:
        raise SettingsError(_lacking(name, chosen[:1]))
    from sira_cli.models.preset import full_key, read_value
    from sira_cli.models.preset import keys as preset_keys

    try:
        key = full_key(target)
    except SettingsError as error:
        several = any(each.rpartition(".")[2] == target for each in preset_keys())
        raise SettingsError(f"{given}: {error if several else _unknown(target, methods)}") from error
    if key in ("sira.k", "sira.alpha", "sira.beta"):
        names = [method.name for method in methods if name in method.all_settings()]
        if names:
            raise SettingsError(f"{given}: the method is {' and '.join(names)}: write --set {name}=VALUE")
        raise SettingsError(f"{given}: {_lacking(name, methods)}")
    return {method.name: {key: read_value(key, text)} for method in methods}


def _lacking(name: str, methods: Sequence[Method]) -> str:
    if len(methods) > 1:
        return f"none of the methods has it: {', '.join(method.name for method in methods)}"
    has = ", ".join(methods[0].all_settings()) or "none"
    return f"method {methods[0].name!r} has no setting {name!r} (its settings: {has})"


def _unknown(target: str, methods: Sequence[Method]) -> str:
    """Return the message for a refused key: another method has it, or the nearest key."""
    from sira_cli.models.preset import nearest

    only, _, name = target.rpartition(".")
    others = [each for each, method in METHODS.items() if name in method.own_settings() and only in ("", each)]
    if others:
        return f"a setting of {' and '.join(others)}, but the method is {' and '.join(each.name for each in methods)}"
    known = [*keys(), *(key.rpartition(".")[2] for key in keys())]
    remark = nearest(target, known) or "; `sira presets show demo --all` lists them"
    return f"neither a key of presets nor a setting of methods{remark}"


def keys() -> list[str]:
    """Return everything that --set takes: keys of a preset, and settings of methods as `vcd.noise_step`."""
    from sira_cli.models.preset import keys as preset_keys

    return [*preset_keys(), *(f"{name}.{own}" for name, method in METHODS.items() for own in method.own_settings())]


def values(preset: Preset) -> dict[str, str]:
    """Return everything that --set takes, with the values under a preset, as they are typed."""
    found = {}
    dumped = preset.model_dump(mode="json")
    for key in keys():
        section, _, name = key.rpartition(".")
        if section in METHODS and name in METHODS[section].own_settings():
            value = getattr(preset.method(section), name)
        elif section:
            value = dumped[section][name]
        else:
            value = dumped[name]
        if value is None:
            found[key] = "none"
        else:
            found[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found


def is_set(name: str) -> bool:
    """Return whether a parameter of the library is a key of presets without an option of its own."""
    from sira_cli.models.preset import keys as preset_keys

    return name not in OPTIONS and any(name in (key, key.rpartition(".")[2]) for key in preset_keys())


def spelled(option: str) -> str | None:
    """Return the --set for an unknown option, such as `num-beams`; None if --set does not take it either."""
    name = option.lstrip("-").replace("-", "_")
    for target in (name, name.removeprefix("no_")):
        for key in keys():
            if key.rpartition(".")[2] == target:
                return f"--set {key}=VALUE"
    return None
