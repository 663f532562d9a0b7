"""`sira calibrate ict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.calibrate.saving import Output, WritePreset, check_place, check_targets, save
from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.common import Overwrite, QuestionImages, QuestionScenes, Quiet, ResearchModelOptions, Verbose
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.terminal.console import note, say, set_verbosity
from sira_cli.cli.terminal.stages import show_stages
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.ict import IctTraining
    from sira_cli.analysis.calibration.questions import LabelledQuestions

SCENE_BATCH = 32
FILE_QUESTIONS, SCENE_QUESTIONS = 1500, 600

EXAMPLES = """
sira calibrate ict -p llava-1.5-7b --questions coco_pope_popular.json --images val2014/ --annotations annotations/
sira calibrate ict -p demo --scenes
"""


@with_options()
def ict(
    *,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="Labelled yes/no questions in POPE's format."),
    ] = None,
    images: QuestionImages = None,
    annotations: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="COCO's instances, for the object level."),
    ] = None,
    scenes: QuestionScenes = False,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help=f"First N questions of each file (default: {FILE_QUESTIONS} in all), or scenes ({SCENE_QUESTIONS}).",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "-b",
            "--batch-size",
            metavar="N",
            min=1,
            help="Questions asked together (default: 1; for scenes 32).",
        ),
    ] = None,
    model: ResearchModelOptions,
    output: Output = None,
    write_preset: WritePreset = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Find the directions that method ict adds, once per model, from labelled yes/no questions about pictures.

    Each question is asked three times, one prefill each: about the picture, about the picture blurred (or with the
    wrong answer), and about the picture with the object blacked out. Without --annotations the last is left out:
    the calibration has the image level only.
    """
    set_verbosity(quiet, verbose)
    from sira_cli.models.presets import BUNDLED

    check_targets(output, write_preset, overwrite)
    preset = choose_preset(model)
    drawn = scenes or (not questions and preset.model == BUNDLED)
    asked = _questions(questions or [], images, annotations, drawn, limit)

    from sira_cli.pictures.sources import located

    files = () if drawn else (located(str(Path(asked.folder, name))) for name in asked.pictures)
    lvlm = load_model(preset, model, "greedy", pictures=files)
    check_place("ict", lvlm, output, overwrite)
    from sira_cli.analysis.calibration.ict import IctTraining

    training = IctTraining(asked, lvlm, batch_size=batch_size or (SCENE_BATCH if drawn else 1))
    show_stages(training.events())
    _summarize(training)
    save(training.calibration(), preset, output, write_preset)
    if training.failures:
        say(f"{len(training.failures)} of {len(asked.pictures)} pictures failed")
        raise typer.Exit(3)


def _questions(
    paths: list[Path], images: Path | None, annotations: Path | None, scenes: bool, limit: int | None
) -> LabelledQuestions:
    """Return the questions. A missing picture is found before a model is loaded."""
    if scenes:
        if paths or images is not None or annotations is not None:
            raise SettingsError("give question files with their --images, or --scenes, not both")
        from sira_cli.demo.labelled import labelled_questions

        return labelled_questions(limit or SCENE_QUESTIONS)
    if not paths or images is None:
        raise SettingsError(
            "give --questions FILE... with --images FOLDER, or --scenes (-p demo: the bundled model on drawn scenes)"
        )
    from sira_cli.analysis.calibration.questions import from_files
    from sira_cli.pictures.find import check_images

    found = from_files(paths, images, limit or FILE_QUESTIONS // len(paths), annotations)
    check_images(images, found.pictures)
    if annotations is None:
        note("without --annotations the places of objects are unknown: the image level only")
    return found


def _summarize(training: IctTraining) -> None:
    """Print how well the slices separate clean from degraded runs."""
    for level, accuracy in training.accuracy.items():
        note(
            f"{level} level: {training.counts[level]} questions; the best of {accuracy.numel()} slices separates "
            f"{100 * float(accuracy.max()):.1f} % of clean and degraded runs, the median "
            f"{100 * float(accuracy.median()):.1f} %"
        )
