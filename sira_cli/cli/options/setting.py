"""The option --set: any key of the preset, and any setting of the method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def read(settings: Sequence[str] | None, methods: Sequence[Method]) -> dict[str, dict[str, Any]]:
    """Return the values of --set by method: settings of all methods that have them, and keys of presets."""
    found: dict[str, dict[str, Any]] = {method.name: {} for method in methods}
    for given in settings or ():
        target, equals, text = given.partition("=")
        if not equals or not target:
            raise SettingsError(f"--set {given}: expected KEY=VALUE, such as generation.top_p=0.9 or noise_step=700")
        for name, values in _values(target, text, methods, given).items():
            if repeated := next(iter(values.keys() & found[name].keys()), None):
                raise SettingsError(f"--set {given}: {repeated} is given twice")
            found[name] |= values
    return found


def _values(target: str, text: str, methods: Sequence[Method], given: str) -> Mapping[str, dict[str, Any]]:
    """Return the value of one --set, by method and name."""
    only, _, name = target.rpartition(".")
    chosen = [method for method in methods if only in ("", method.name)]
    if having := [method for method in chosen if name in method.all_settings()]:
        _check_heeded(having, methods, name, f"--set {given}")
        return {method.name: method.parse_settings({name: text}) for method in having}
    if chosen and only:
        chosen[0].parse_settings({name: text})  # raises: it has no such setting
    from sira_cli.models.preset import full_key, read_value
    from sira_cli.models.preset import keys as preset_keys

    try:
        key = full_key(target)
    except SettingsError as error:
        several = any(each.rpartition(".")[2] == target for each in preset_keys())
        raise SettingsError(f"--set {given}: {error if several else _unknown(target, methods)}") from error
    if key in ("sira.k", "sira.alpha", "sira.beta"):
        raise SettingsError(f"--set {given}: {_lacking(name, methods)}")
    return {method.name: {key: read_value(key, text)} for method in methods}


def _check_heeded(having: Sequence[Method], methods: Sequence[Method], name: str, given: str) -> None:
    """Check that one of several methods uses a setting: greedy has K only for commands that show both streams."""
    if len(methods) > 1 and not any(name in each.deciding or name in each.own_settings() for each in having):
        raise SettingsError(f"{given}: {_lacking(name, methods)}")


def of_option(name: str, methods: Sequence[Method]) -> Sequence[Method]:
    """Return the methods that have the setting of an option such as --alpha."""
    having = [method for method in methods if name in method.all_settings()]
    if not having:
        raise SettingsError(f"--{name}: {_lacking(name, methods)}")
    _check_heeded(having, methods, name, f"--{name}")
    return having


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
    found, dumped = {}, preset.model_dump(mode="json")
    for key in keys():
        section, _, name = key.rpartition(".")
        if section in METHODS and name in METHODS[section].own_settings():
            value = getattr(preset.method(section), name)
        else:
            value = (dumped[section] if section else dumped)[name]
        plain = "none" if value is None else value
        found[key] = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return found


def is_set(name: str) -> bool:
    """Return whether a parameter of the library is a key of presets without an option of its own."""
    from sira_cli.models.preset import keys as preset_keys

    return name not in OPTIONS and any(name in (key, key.rpartition(".")[2]) for key in preset_keys())


def spelled(option: str) -> str | None:
    """Return the --set for an unknown option, such as `num-beams`; None if --set does not take it either."""
    name = option.lstrip("-").replace("-", "_")
    names = (name, name.removeprefix("no_"))
    found = [key for name in names for key in keys() if key.rpartition(".")[2] == name]
    return f"--set {found[0]}=VALUE" if found else None
