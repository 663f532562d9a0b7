"""Presets in files, the shipped ones and your own, and calibrations of models next to them.

Errors name the file, the key and the nearest valid name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from platformdirs import user_cache_path, user_config_path
from yaml.error import MarkedYAMLError

from sira_cli.errors import NotCalibratedError, SettingsError
from sira_cli.files import from_home
from sira_cli.methods.base import Method
from sira_cli.methods.calibrated import Calibrated
from sira_cli.models.preset import Preset, Prompts, nearest, validate
from sira_cli.pictures.names import is_utf8

DEEPEST = 20  # values inside each other in a file; a preset has 5
# In the wheel the presets are inside the package, in a checkout next to it.
_PACKAGE = Path(__file__).parents[1]
SHIPPED = next(folder for folder in (_PACKAGE / "shipped_presets", _PACKAGE.parent / "presets") if folder.is_dir())
DEFAULT = "qwen2.5-vl-7b"
BUNDLED = "bundled"  # as `model`: the checkpoint that comes with the package
BUNDLED_FOLDER = _PACKAGE / "demo" / "model"
SHIPPED_CALIBRATIONS = _PACKAGE / "demo" / "calibrations"  # the bundled model's


class _Loader(yaml.SafeLoader):
    """YAML of a preset: keys are words, also `yes` and `no`; no aliases, and no more levels than a preset may have.

    A few lines of aliases stand for a value without an end, and thousands of brackets end Python's stack.
    """

    _level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _mistake(event, f"write the value out instead of the alias *{event.anchor}")
        if self._level > DEEPEST:
            raise _mistake(event, f"more than {DEEPEST} values inside each other")
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = self.DEFAULT_SCALAR_TAG
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # 2026-99-99, thousands of digits, !!int of a word
            kind = node.tag.rpartition(":")[2]
            raise _mistake(node, f"cannot be read as {kind}") from None
        if isinstance(value, str) and not is_utf8(value):
            raise _mistake(node, "holds half of a surrogate pair")
        return value


def _mistake(part: Any, problem: str) -> MarkedYAMLError:
    """Return the error of a node or an event."""
    return MarkedYAMLError(problem=problem, problem_mark=part.start_mark)


def for_model(model: str, like: Preset | None = None) -> Preset:
    """Return a preset for a model id or folder, with sizes, system prompt and look of another one (`shipped_for`)."""
    like = like or Preset(model=model)
    prompts = Prompts(system=like.prompts.system)
    return Preset(model=model, image=like.image, prompts=prompts, verify=like.verify)


def shipped_for(model: str) -> Preset | None:
    """Return the shipped preset of a model id, or the one with the shortest name of several: others are variants."""
    return next((preset for preset in shipped() if preset.model == model), None)


def shipped() -> Iterator[Preset]:
    """Yield the shipped presets, those with short names first."""
    return map(read, sorted(SHIPPED.glob("*.yaml"), key=lambda path: (len(path.stem), path.stem)))


def read(path: Path) -> Preset:
    """Read the preset in a YAML file."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SettingsError(f"{path}:{where} not valid YAML for a preset: {problem}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: a preset is a mapping with at least `model: ...`")
    values.setdefault("name", path.stem)
    preset = validate(values, str(path))
    if preset.model.startswith(("./", "../", ".\\", "..\\", "~")):
        folder = (path.parent / from_home(preset.model)).resolve()
        preset = preset.model_copy(update={"model": str(folder)})
    return preset


def find(name: str) -> Preset:
    """Return the preset of a name or path, looked up as a path, among the user's presets, among the shipped ones."""
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        path = from_home(name)
        if not path.is_file():
            raise SettingsError(f"preset file {name} does not exist (a model id or a folder goes to `model=`)")
        return read(path)
    if name in (known := available()):
        return read(known[name])
    others = "`sira presets list` shows all (a model id or a folder goes to `model=`)"
    raise SettingsError(f"no preset named {name!r}{nearest(name, known)}; {others}")


def resolve(source: str) -> Preset:
    """Return the preset for the `source` of `load`: a preset's name or file, a checkpoint folder, or a hub model id."""
    if source.endswith((".yaml", ".yml")) or source in available():
        return find(source)
    if "/" in source or from_home(source).is_dir():
        return for_model(source, shipped_for(source))
    return find(source)  # raises, with the nearest name


def available() -> dict[str, Path]:
    """Return every preset file by name; the user's own replace shipped ones of the same name."""
    folders, patterns = (SHIPPED, home() / "presets"), ("*.yaml", "*.yml")
    return {path.stem: path for each in folders for pattern in patterns for path in sorted(each.glob(pattern))}


def home() -> Path:
    """Return the user's folder for presets: `$SIRA_HOME`, else the system's folder for settings."""
    return Path(os.environ.get("SIRA_HOME") or user_config_path("sira"))


def cache() -> Path:
    """Return the folder for files that `sira` makes and can make again."""
    return Path(os.environ["SIRA_HOME"]) / "cache" if os.environ.get("SIRA_HOME") else user_cache_path("sira")


def to_yaml(preset: Preset) -> str:
    """Return the preset as a YAML file, without the defaults."""
    values = preset.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def calibration_path(kind: str, model: str, revision: str) -> Path:
    """Return the path of a model's calibration: `$SIRA_HOME/calibrations/ict/MODEL@REVISION.safetensors`."""
    return home() / "calibrations" / kind / f"{Path(model).name}@{_short(revision)}.safetensors"


def find_calibration(kind: str, revision: str) -> Path | None:
    """Return a model's calibration, even if its folder has moved; the user's own comes before a shipped one."""
    folders = (home() / "calibrations", SHIPPED_CALIBRATIONS)
    paths = (path for each in folders for path in sorted((each / kind).glob(f"*@{_short(revision)}.safetensors")))
    return next(paths, None)


def calibrated(method: Method, model: str, revision: str) -> Method:
    """Return a method with the calibration of a model, if it needs one; a given file is checked."""
    if not isinstance(method, Calibrated):
        return method
    how = f"sira calibrate {method.name} -m {model}"
    if method.calibration is None:
        if (path := find_calibration(method.name, revision)) is None:
            raise NotCalibratedError(
                f"method {method.name} needs a calibration of {model}, which is made once: see `{how} -h`"
            )
        method = replace(method, calibration=str(path))
    origin = method.read().origin
    if origin.revision != revision:
        made = f"made for {origin.model} ({origin.revision}), not for {model} ({revision}): make one with `{how}`"
        raise SettingsError(f"{method.calibration}: {made}")
    return method


def _short(revision: str) -> str:
    return revision.removeprefix("folder-")[:12]
