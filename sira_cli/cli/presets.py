"""`sira presets` and `sira doctor`."""

from __future__ import annotations

import math
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.help import register
from sira_cli.cli.loading import load_model
from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.choosing import choose_preset, with_revision
from sira_cli.cli.options.groups import AsJson, Offline, ResearchModelOptions, argument, option, with_options
from sira_cli.cli.terminal.console import note, say, waiting
from sira_cli.cli.terminal.output import new_list, show_report, table_console
from sira_cli.errors import ModelNotFoundError, SettingsError

if TYPE_CHECKING:
    from sira_cli.models.preset import Preset

SCENE = 1  # seed of the drawn scene of a proof
WIDE, WIDEST = 90, 160  # columns of a terminal that has room for the models, and for descriptions


@with_options("sira presets list", loudness="")
def list_presets() -> None:
    """List every preset by family, yours and the shipped ones."""
    from sira_cli.models import presets

    families: dict[str, list[Preset]] = {}
    for _, path in sorted(presets.available().items()):
        try:
            preset = presets.read(path).model_copy(update={"name": path.stem})
        except SettingsError as error:
            say(str(error))
        else:
            families.setdefault(preset.family, []).append(preset)
    out = table_console()
    table = new_list("preset", "K", "download", "memory", "model", "", edge=False)
    for family in sorted(families, key=lambda name: (not name, name.lower())):
        table.add_row(family or "others", style="bold")
        for each in families[family]:
            fraction = each.sira.k_fraction or 0.5
            k = str(each.sira.k or ("L/2" if fraction == 0.5 else f"{fraction:g} L"))
            table.add_row("  " + each.name, k, *shown_sizes(each), each.model, each.description)
    if out.width < WIDEST:
        table.columns.pop()  # the description
    if out.width < WIDE:
        table.columns.pop()  # the model
    for column in table.columns:
        column.no_wrap = True
    out.print(table)
    note("memory: weights, caches, one photograph; `sira doctor` shows what fits")


def shown_sizes(preset: Preset) -> tuple[str, str]:
    """Return the download and the memory needed, as far as known."""
    from sira_cli.models.presets import BUNDLED
    from sira_cli.models.sizes import needed

    if preset.download_gb is None:
        return ("none", "") if preset.model == BUNDLED else ("", "")
    memory = needed(preset)
    return f"{preset.download_gb:.1f} GB", "" if memory is None else f"{math.ceil(memory / 1e9)} GB"


@with_options("sira presets show llava-1.5-7b\nsira presets show mine.yaml --all", loudness="")
def show(
    name: str = argument("NAME", "Preset name or file.", required=True),
    every: bool = option(False, "Print every key that --set takes, with its value.", "--all"),
) -> None:
    """Print a preset as YAML, without the defaults."""
    from sira_cli.models import presets

    preset = presets.find(name)
    lines = (f"{key}={value}\n" for key, value in set_option.values(preset).items())
    print("".join(lines) if every else presets.to_yaml(preset), end="")


@with_options(
    """
sira presets check mine.yaml
sira presets check -m Qwen/Qwen3-VL-8B-Instruct
sira presets check -p llava-1.5-7b --json
""",
    loudness="",
)
def check(
    *,
    file: str | None = argument("FILE", "Preset file."),
    as_json: bool = option(False, "Print one JSON object; needs --model or -p.", "--json"),
    model: ResearchModelOptions,
) -> None:
    """Check a preset file; or, with --model or --preset, prove that SIRA decodes a model as in Algorithm 1.

    The proof loads the model, decodes a few tokens about a drawn scene, and compares both streams with a slow
    reference: full passes with masks and without caches. Exit codes: 0 exact, 1 not exact or not proven, 2 refused.
    """
    named = model.model is not None or model.preset is not None
    if named == (file is not None):
        raise SettingsError("give a preset file, or --model or --preset")
    if file is not None:
        if as_json:
            raise SettingsError("--json is for a model: give --model or --preset")
        _check_file(file)
        return
    preset = choose_preset(model)
    if preset.load.trust_remote_code:
        raise SettingsError("code of a checkpoint cannot be proven: leave out `trust_remote_code=`")
    lvlm = load_model(preset, model, "sira", pictures=())
    with waiting("comparing with a direct implementation of Algorithm 1"):
        from sira_cli.analysis.proof import prove
        from sira_cli.demo.scenes import make_scene, render

        proof = prove(lvlm, render(make_scene(SCENE))[0])
    show_report(proof, as_json)
    if proof.verdict != "exact":
        raise typer.Exit(1)


def _check_file(file: str) -> None:
    """Check a preset file, also against a model whose config.json is on this machine."""
    from sira_cli.models import presets
    from sira_cli.models.hub import find_config

    preset = presets.read(Path(file))
    with suppress(ModelNotFoundError):  # the preset may be for another machine
        folder = find_config(preset, offline=True)
        from sira_cli.models.load import check_structure  # imports torch

        try:
            check_structure(folder, preset.with_settings(trust_remote_code=True))  # nothing runs: such are not checked
        except SettingsError as error:
            raise SettingsError(f"{file}: {error}") from error
    fork = f"k = {preset.sira.k}" if preset.sira.k else f"k = {preset.sira.k_fraction or 0.5:g} L"
    print(f"{file}: ok ({preset.name}: {preset.model}, {fork}, alpha = {preset.sira.alpha:g})")


@with_options("sira presets new ./my-checkpoint\nsira presets new llava-hf/llava-1.5-13b-hf > mine.yaml", loudness="")
def new(
    model: str = argument("MODEL", "Hugging Face model id, ID@REVISION, or folder.", required=True),
    offline: Offline = False,
) -> None:
    """Print a preset for a model: K = L/2, its image tokens, its size."""
    from sira_cli.files import from_home
    from sira_cli.models import presets
    from sira_cli.models.load import inspect_model
    from sira_cli.models.preset import Preset, SiraSettings

    is_folder = from_home(model).is_dir()
    if is_folder:
        model = str(from_home(model).resolve())  # so that the preset works from anywhere
    model, revision = with_revision(model)
    preset = Preset(model=model, revision=revision or "main")
    facts = inspect_model(preset, offline=offline)
    name = re.sub(r"[^a-z0-9.]+", "-", Path(model).name.lower()).strip("-")
    about = f"{Path(model).name}; K = L/2 is the paper's rule of thumb, not measured"
    size = None if is_folder else round(facts.gigabytes, 1) or None
    own = {"name": name, "description": about, "download_gb": size, "sira": SiraSettings(k=facts.k)}
    print(presets.to_yaml(preset.model_copy(update=own)), end="")
    note(f"{facts.layers} decoder layers, image token id {facts.image_token}")
    place = presets.home() / "presets" / f"{name}.yaml"
    if sys.stdout.isatty():
        note(f"not saved: to use it as --preset {name}, save it as {place}")
    else:
        note(f"to use it as --preset {name}, save it as {place}; or give the file to --preset")


@with_options("sira doctor\nsira doctor --json > doctor.json", loudness="")
def doctor(*, as_json: AsJson = False) -> None:
    """Show this machine: versions, device, installed extras, presets that fit, and what to type next.

    Memory is computed from each model's shape: weights, caches of both streams, one photograph. Nothing is downloaded.
    """
    with waiting("looking"):
        from sira_cli.analysis.doctor import examine

        found = examine()
    show_report(found, as_json)


app = typer.Typer(help="List, show, check and make presets.", no_args_is_help=True)
for command in (list_presets, show, check, new):
    register(app, command)
