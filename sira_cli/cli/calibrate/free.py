"""`sira calibrate free`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sira_cli.cli.calibrate.labels import Annotations, FalseAlarms, Labels, labelling
from sira_cli.cli.calibrate.pictures import SCENE_BATCH, BatchSize, Scenes, drawn_scenes, measured
from sira_cli.cli.calibrate.saving import Output, check_place
from sira_cli.cli.calibrate.support import print_report
from sira_cli.cli.choosing import choose_preset, chosen_pictures, load_model, method_names
from sira_cli.cli.console import note, set_verbosity
from sira_cli.cli.option_groups import with_options
from sira_cli.cli.options import Images, ModelOptions, Overwrite, Quiet, SelectionOptions, Verbose
from sira_cli.cli.output import check_file, table_console
from sira_cli.errors import PictureError, SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.free_support import Labelling
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.picture import Picture

SCENES = 600

EXAMPLES = """
sira calibrate free val2014/ --annotations annotations/ -p llava-1.5-7b --limit 1000 -b 8
sira calibrate free photos/ --labels there.json -m ./my-checkpoint --method sira
"""


@with_options(model=ModelOptions, selection=SelectionOptions)
def free(
    *,
    paths: Images = None,
    annotations: Annotations = None,
    labels: Labels = None,
    scenes: Scenes = False,
    method: Annotated[
        str, typer.Option(metavar="NAMES", help="Methods whose captions are scored, with commas between.")
    ] = "greedy,sira",
    false_alarms: FalseAlarms = 3.0,
    batch_size: BatchSize = None,
    model: ModelOptions,
    selection: SelectionOptions,
    output: Output = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Fit the weights of --verify free, from pictures with labels.

    The model captions the pictures under each method. A logistic regression finds how six numbers that decoding has at
    hand tell the things that are there from the others; the labels say which are which. About 1,000 pictures are
    needed. The line is the highest below which at most 3 % (--false-alarms) of the things fall that are there.
    """
    set_verbosity(quiet, verbose)
    check_file("--output", output, overwrite)
    preset = choose_preset(model).with_values(on_loop=None, num_beams=1)
    pictures, labelling = _chosen(paths, selection, scenes, annotations, labels, preset)
    names = method_names(method)
    from sira_cli.methods import require
    from sira_cli.methods.base import Ability

    for name in names:
        require(preset.method(name), Ability.TRACES, "sira calibrate free")
    drawn = annotations is None and labels is None
    lvlm = load_model(preset, model, names[0], pictures=() if drawn else pictures)
    from sira_cli.analysis.calibration.free_support import calibrate, measure_numbers
    from sira_cli.models.free_support import KIND

    check_place(KIND, lvlm, output, overwrite)
    found: dict[str, Any] = {}
    failures: list[str] = []
    for name in names:
        under = lvlm.under(preset.method(name))
        what = measure_numbers(under, pictures, batch_size or (SCENE_BATCH if drawn else 1))
        captions = list(measured(what, len(pictures), lambda picture, error: failures.append(error)))
        if not captions:
            raise PictureError("no picture could be captioned, so there are no weights")
        found[name] = under, captions
    calibration, reports = calibrate(found, labelling, false_alarms / 100)
    for name, report in reports.items():
        table_console().print(f"captions of {name}:")
        print_report(report)
    from sira_cli.models.calibrations import place

    path = output or place(KIND, lvlm.preset.model, lvlm.revision)
    calibration.write(path)
    note(f"{path}: --verify free finds it by the model" if output is None else f"{path}: written")
    if failures:
        raise typer.Exit(3)


def _chosen(
    paths: Sequence[str] | None,
    selection: SelectionOptions,
    scenes: bool,
    annotations: Path | None,
    labels: Path | None,
    preset: Preset,
) -> tuple[list[Picture], Labelling]:
    """Return the pictures, and what says which things are there.

    Raises:
        SettingsError: labels are missing, or there are several.
        PictureError: none of the pictures exists.
    """
    from sira_cli.models.presets import BUNDLED

    named = bool(paths) or selection.files_from is not None
    if scenes or (not named and preset.model == BUNDLED):
        if named or annotations is not None or labels is not None:
            raise SettingsError("--scenes brings pictures and labels: leave out these, or --scenes")
        from sira_cli.demo.labelled_captions import label_scenes

        return drawn_scenes(selection, SCENES), label_scenes
    label = labelling(annotations, labels)
    return chosen_pictures(paths or [], selection), lambda captions: label(captions)[0]
