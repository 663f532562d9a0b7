"""`sira calibrate support`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.calibrate import controls as by_controls
from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.common import AsJson, Overwrite, Quiet, ReportFile, ResearchModelOptions, Verbose
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.options.verifying import Objects
from sira_cli.cli.terminal.console import note, set_verbosity
from sira_cli.cli.terminal.output import check_file, check_preset_file, save_preset, show_report, table_console
from sira_cli.cli.terminal.progress import Progress
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.controls import ControlsReport
    from sira_cli.analysis.calibration.support import SupportReport
    from sira_cli.models.preset import Preset

SCENES = 600
FEW = 20  # hallucinated objects; with fewer, the threshold is uncertain

EXAMPLES = """
sira calibrate support captions.jsonl --labels annotations/ -p llava-1.5-7b --write-preset mine.yaml
sira calibrate support captions.jsonl --labels objects.json
sira calibrate support captions.jsonl --controls -p llava-1.5-7b --write-preset mine.yaml
"""


@with_options()
def support(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Records with a second look; with --controls any captions.",
            show_default=False,
        ),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option("--controls", help="Find it without labels, by objects of other captions."),
    ] = False,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="With --controls: keep the answers, to resume."),
    ] = None,
    objects: Objects = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help='Folder of COCO annotations, or FILE.json: {"a.jpg": ["dog"], ...}, all objects.'
        ),
    ] = None,
    scenes: Annotated[
        bool,
        typer.Option("--scenes", help="Caption drawn scenes (default with the bundled model)."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"First N scenes (default: {SCENES}), or captions with --controls (default: all).",
        ),
    ] = None,
    model: ResearchModelOptions,
    output: ReportFile = None,
    write_preset: Annotated[
        Path | None, typer.Option("--write-preset", metavar="FILE.yaml", help="Write a preset with the threshold.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Find the threshold of support (--min-support), from captions with labels, or with --controls without them.

    With labels it is the highest threshold that marks at most 3 % of the real objects as unsupported.
    The records hold the support of every object that the captions name; the labels are the ground truth. A few hundred
    named objects are enough, if some are hallucinated. With --controls the model is also asked about objects that only
    captions of other pictures name, and the threshold is above 98 % of these answers; a few hundred captions are
    enough.
    """
    set_verbosity(quiet, verbose)
    check_file("--output", output, overwrite)
    check_preset_file(write_preset, overwrite)
    report: SupportReport | ControlsReport
    failed = 0
    if controls:
        if labels is not None:
            raise SettingsError("--controls needs no labels: leave out --labels")
        preset = choose_preset(model)
        if paths:
            if scenes:
                raise SettingsError("give captions, or --scenes, not both")
            where = (answers, overwrite, objects)
            report = found = by_controls.from_captions(paths, limit, preset, model, *where)
        else:
            if (answers, objects) != (None, None):
                raise SettingsError("--answers and --objects need PATH: captions")
            _check_scenes(scenes, preset, "captions, such as those that `sira caption -o captions.jsonl` writes")
            lvlm = load_model(preset, model, "sira", pictures=())
            report = found = by_controls.from_scenes(limit or SCENES, lvlm)
        failed = found.failed
    else:
        if (answers, objects) != (None, None):
            raise SettingsError("--answers and --objects are for --controls: records hold their answers already")
        preset = choose_preset(model)
        report = _from_labels(paths or [], labels, scenes, limit, preset, model)
    if write_preset is not None and report.source.model != preset.model:
        raise SettingsError(
            f"--write-preset: the records are of {report.source.model}, the preset is for {preset.model}: "
            "give the records' model with --preset or --model"
        )
    show_report(report, _print, as_json, output)
    if write_preset is not None:
        verify = preset.verify.model_copy(update={"min_support": report.threshold})
        how = f"min_support by sira calibrate support{' --controls' * controls} on {report.pictures} pictures"
        save_preset(
            preset.model_copy(update={"verify": verify}), write_preset, how, f"min_support = {report.threshold:g}"
        )
    if failed:
        raise typer.Exit(3)


def _from_labels(
    paths: list[str],
    labels: Path | None,
    scenes: bool,
    limit: int | None,
    preset: Preset,
    model: ResearchModelOptions,
) -> SupportReport:
    if paths:
        if scenes or limit is not None:
            raise SettingsError("--scenes and --limit are for drawn scenes: leave out the records, or these")
        return _from_files([Path(path) for path in paths], labels)
    if labels is not None:
        raise SettingsError("--labels is for records: also give PATH")
    _check_scenes(scenes, preset, "files of records, which `sira caption --verify flag -o captions.jsonl` writes")
    lvlm = load_model(preset, model, "sira", pictures=())
    from sira_cli.demo.labelled import scene_report

    with Progress.shown("scenes", limit or SCENES) as progress:
        return scene_report(lvlm, limit or SCENES, progress.reach)


def _from_files(records: list[Path], labels: Path | None) -> SupportReport:
    if labels is None:
        raise SettingsError("give the ground truth: --labels PATH, a folder of COCO's annotations or a FILE.json")
    from sira_cli.analysis.calibration.support import SupportReport, from_coco, from_labels, read_captions

    source, captions = read_captions(records)
    if labels.is_dir():
        labelled, unknown = from_coco(captions, labels)
    else:
        labelled, unknown = from_labels(captions, labels), 0
    pictures = len({caption.file_name for caption in captions})
    return SupportReport.of(source, pictures, labelled, unknown)


def _check_scenes(scenes: bool, preset: Preset, instead: str) -> None:
    from sira_cli.models.presets import BUNDLED

    if not scenes and preset.model != BUNDLED:
        raise SettingsError(f"name {instead}, or give --scenes (-p demo: the bundled model on drawn scenes)")


def _print(report: SupportReport | ControlsReport) -> None:
    """Print the effect of several thresholds, and the threshold found."""
    from sira_cli.analysis.calibration.controls import ControlsReport

    if isinstance(report, ControlsReport):
        by_controls.print_report(report)
        return
    shares = {threshold: (f"{there:.1%}", f"{absent:.0%}") for threshold, (there, absent) in report.below.items()}
    by_controls.print_thresholds(("below it: real objects", "hallucinated"), shares, report.threshold)
    out = table_console()
    out.print(
        f"{report.pictures:,} pictures, {report.there:,} real objects named, {report.absent:,} hallucinated"
        + (f", {report.unknown:,} without a label" if report.unknown else "")
    )
    if report.auroc is not None:
        out.print(f"AUROC of support: {report.auroc} (100: perfect separation, 50: chance)")
    out.print(f"min_support = {report.threshold:g}: at most {report.false_alarms:.1%} of real objects are below it")
    if report.absent < FEW:
        note(f"only {report.absent} hallucinated objects: the share of them below the threshold is uncertain")
