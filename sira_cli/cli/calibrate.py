"""`sira calibrate`: what a method or a score must know about a model, found once. A command is a function and a row."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sira_cli.cli.help import Command, Variadic
from sira_cli.cli.loading import engine_of, load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.groups import (
    EngineOptions,
    FewOptions,
    Images,
    Objects,
    Overwrite,
    QuestionImages,
    QuestionScenes,
    Quiet,
    ReportOptions,
    ResearchModelOptions,
    Verbose,
    option,
    with_options,
)
from sira_cli.cli.research.sweep import NOT_BOTH, questions_of
from sira_cli.cli.terminal.console import Progress, note, resumable, run_records, say, set_verbosity, show_stages
from sira_cli.cli.terminal.output import check_file, check_preset_file, print_tables, save_preset, show_report
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.analysis.calibration.support import ControlsReport, SupportReport
    from sira_cli.analysis.questions import QuestionSet
    from sira_cli.methods.calibrated import Calibration
    from sira_cli.models.preset import Preset
    from sira_cli.run.lvlm import Lvlm

FILE_QUESTIONS, SCENE_QUESTIONS, QUESTION_BATCH = 1500, 600, 32  # of ict; the batch is of scenes
PICTURES, PICTURE_BATCH = 32, 16  # of maskcd
SCENES = 600  # of support


@dataclass(frozen=True)
class CalibrationOptions:
    """Where a calibration goes, and amount of output."""

    title: ClassVar[str] = "Options"

    output: Path | None = option(None, "Target (default: where --method finds it).", "-o", "--output", metavar="FILE")
    write_preset: Path | None = option(None, "Write a preset that names the calibration.", metavar="FILE.yaml")
    overwrite: Overwrite = False
    quiet: Quiet = False
    verbose: Verbose = 0

    def check(self) -> None:
        """Set the verbosity, and check the files to write, before anything is measured."""
        set_verbosity(self.quiet, self.verbose)
        check_file("--output", self.output, self.overwrite)
        check_preset_file(self.write_preset, self.overwrite)

    def check_place(self, kind: str, lvlm: Lvlm) -> None:
        """Check that the new calibration would not replace the user's own one."""
        from sira_cli.models.presets import calibration_path

        path = calibration_path(kind, lvlm.preset.model, lvlm.revision)
        if self.output is None and path.exists() and not self.overwrite:
            raise SettingsError(f"{path}: exists: replace it with --overwrite, or give another file with --output")

    def save(self, calibration: Calibration, preset: Preset) -> None:
        """Write a calibration where `load` finds it, or to `output`, and a preset that names it."""
        from sira_cli.models.presets import calibration_path

        kind, origin = calibration.origin.kind, calibration.origin
        path = self.output or calibration_path(kind, origin.model, origin.revision)
        calibration.write(path)
        by_hand = f"use it with --method {kind} --set calibration={path}"
        note(f"{path}: {f'--method {kind} finds it by the model' if self.output is None else by_hand}")
        if self.write_preset is not None:
            own = {**preset.methods.get(kind, {}), "calibration": str(path.resolve())}
            preset = preset.model_copy(update={"methods": {**preset.methods, kind: own}})
            save_preset(preset, self.write_preset, f"with a calibration for {kind}", f"the calibration for {kind}")


@dataclass(frozen=True)
class IctOptions:
    """The questions to ask."""

    title: ClassVar[str] = "Options"

    questions: list[Path] | None = option(None, "Labelled yes/no questions in POPE's format.", metavar="FILE...")
    images: QuestionImages = None
    annotations: Path | None = option(None, "COCO's instances, for the object level.", metavar="PATH")
    scenes: QuestionScenes = False
    limit: int | None = option(
        None,
        f"First N questions of each file (default: {FILE_QUESTIONS} in all), or scenes ({SCENE_QUESTIONS}).",
        metavar="N",
        min=2,
    )
    batch_size: int | None = option(
        *(None, "Questions asked together (default: 1; for scenes 32).", "-b", "--batch-size"), metavar="N", min=1
    )


@with_options()
def ict(*, given: IctOptions, model: ResearchModelOptions, files: CalibrationOptions) -> None:
    """Find the directions that method ict adds, once per model, from labelled yes/no questions about pictures.

    Each question is asked three times, one prefill each: about the picture, about the picture blurred (or with the
    wrong answer), and about the picture with the object blacked out. Without --annotations the last is left out:
    the calibration has the image level only.
    """
    files.check()
    from sira_cli.analysis.calibration.ict import calibration, summary, train
    from sira_cli.analysis.experiment import Units
    from sira_cli.analysis.questions import with_places
    from sira_cli.demo.labelled import labelled_questions

    preset, limit, annotations = choose_preset(model), given.limit, given.annotations

    def draw() -> QuestionSet:
        if annotations is not None:
            raise SettingsError(NOT_BOTH)
        return labelled_questions(limit or SCENE_QUESTIONS)

    questions = questions_of(
        *(preset, given.questions or [], given.images, given.scenes, draw),
        lambda paths, images: with_places(paths, images, limit or FILE_QUESTIONS // len(paths), annotations),
        "--questions FILE...",
    )
    if questions.outlines is None:
        note("without --annotations the places of objects are unknown: the image level only")
    drawn = not questions.folder
    lvlm = load_model(preset, model, "greedy", pictures=() if drawn else questions.files())
    files.check_place("ict", lvlm)
    outputs, tensors = Units["Tensor"](), dict[str, "Tensor"]()
    events = train(lvlm, questions, outputs, tensors, given.batch_size or (QUESTION_BATCH if drawn else 1))
    failures = show_stages(events, len(questions.pictures))
    made = calibration(lvlm, questions, outputs, tensors)
    for line in summary(made):
        note(line)
    files.save(made, preset)
    if failures:
        raise typer.Exit(3)


@dataclass(frozen=True)
class SupportOptions:
    """The captions, and how objects are known to be in their pictures."""

    title: ClassVar[str] = "Options"

    controls: bool = option(False, "Find it without labels, by objects of other captions.", "--controls")
    answers: Path | None = option(None, "With --controls: keep the answers, to resume.", metavar="FILE.jsonl")
    objects: Objects = None
    labels: Path | None = option(
        None, 'Folder of COCO annotations, or FILE.json: {"a.jpg": ["dog"], ...}, all objects.', metavar="PATH"
    )
    scenes: bool = option(False, "Caption drawn scenes (default with the bundled model).", "--scenes")
    limit: int | None = option(
        None, f"First N scenes (default: {SCENES}), or captions with --controls (default: all).", metavar="N", min=1
    )
    write_preset: Path | None = option(None, "Write a preset with the threshold.", metavar="FILE.yaml")


@with_options()
def support(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Records with a second look; with --controls any captions.", show_default=False
        ),
    ] = None,
    given: SupportOptions,
    model: ResearchModelOptions,
    target: ReportOptions,
) -> None:
    """Find the threshold of support (--min-support), from captions with labels, or with --controls without them.

    With labels it is the highest threshold that marks at most 3 % of the real objects as unsupported.
    The records hold the support of every object that the captions name; the labels are the ground truth. A few hundred
    named objects are enough, if some are hallucinated. With --controls the model is also asked about objects that only
    captions of other pictures name, and the threshold is above 98 % of these answers; a few hundred captions are
    enough.
    """
    target.check()
    check_preset_file(given.write_preset, target.overwrite)
    controls, labels, write_preset = given.controls, given.labels, given.write_preset
    answered, labelled = given.answers is not None or given.objects is not None, labels is not None
    scenes = given.scenes or (given.limit is not None and not controls)
    truth = "--labels PATH, a folder of COCO's annotations or a FILE.json"
    refusals = {
        "--controls needs no labels: leave out --labels": controls and labelled,
        "--controls is for captions, such as `sira caption -o FILE` writes: give PATH": controls and not paths,
        "--answers and --objects are for --controls: records hold their answers already": answered and not controls,
        "--scenes and --limit are for drawn scenes: leave out PATH, or these": paths and scenes,
        "--labels is for records: also give PATH": labelled and not paths,
        f"give the ground truth: {truth}": paths and not controls and not labelled,
    }
    for message, is_refused in refusals.items():
        if is_refused:
            raise SettingsError(message)
    preset = choose_preset(model)
    report: SupportReport | ControlsReport
    if paths and labels is not None:
        from sira_cli.analysis.calibration.support import from_files

        report = from_files([Path(path) for path in paths], labels)
    elif paths:
        report = _by_controls(paths, given, preset, model, target.overwrite)
    else:
        from sira_cli.models.presets import BUNDLED

        if not given.scenes and preset.model != BUNDLED:
            raise SettingsError(
                "name files of records, which `sira caption --verify flag -o captions.jsonl` writes, or give --scenes "
                "(-p demo: the bundled model on drawn scenes)"
            )
        lvlm = load_model(preset, model, "sira", pictures=())
        from sira_cli.demo.labelled import scene_report

        with Progress.shown("scenes", given.limit or SCENES) as progress:
            report = scene_report(lvlm, given.limit or SCENES, progress.reach)
    if write_preset is not None and report.source.model != preset.model:
        raise SettingsError(
            f"--write-preset: the records are of {report.source.model}, the preset is for {preset.model}: "
            "give the records' model with --preset or --model"
        )
    show_report(report, target.as_json, target.output)
    for doubt in () if target.as_json else report.doubts():
        note(doubt)
    if write_preset is not None:
        verify = preset.verify.model_copy(update={"min_support": report.threshold})
        how = f"min_support by sira calibrate support{' --controls' * controls} on {report.pictures} pictures"
        holds = f"min_support = {report.threshold:g}"
        save_preset(preset.model_copy(update={"verify": verify}), write_preset, how, holds)
    if failed := getattr(report, "failed", 0):
        say(f"{failed} of {report.pictures + failed} failed")
        raise typer.Exit(3)


def _by_controls(
    paths: list[str], given: SupportOptions, preset: Preset, model: ResearchModelOptions, overwrite: bool
) -> ControlsReport:
    """Ask about the things that captions name and about controls, and find the threshold."""
    from sira_cli.analysis.calibration.support import ControlsReport, WithControls
    from sira_cli.look.verify import ObjectFinder, Verify
    from sira_cli.look.words import find_words
    from sira_cli.pictures.captions import check_pictures, find_captions
    from sira_cli.run.check import Check
    from sira_cli.run.output import Files, Output
    from sira_cli.run.run import run

    captions = find_captions(paths, limit=given.limit)
    check_pictures(captions)
    pictures, verify = captions.pictures, Verify(words=find_words(given.objects))
    engine, finder = engine_of(model, EngineOptions(), pictures), ObjectFinder(verify, preset)
    if finder.asks:
        raise SettingsError("--controls needs a list of objects: give --objects FILE")
    words = WithControls(finder.words, [picture.caption or "" for picture in pictures])
    task = Check.under(preset, replace(verify, words=words)).about(pictures)
    files = Files(given.answers, overwrite=overwrite, retry_errors=True)
    with Output(task, pictures, files) as written, closing(run(task, pictures, engine, written)) as events:
        next(events)  # the model is ready
        with resumable(written.any, overwrite), Progress.shown("captions", len(pictures)) as progress:
            return ControlsReport.of(record for _, record in run_records(events, written, progress))


@dataclass(frozen=True)
class MaskcdOptions:
    """The pictures to caption."""

    title: ClassVar[str] = "Options"

    scenes: bool = option(False, "Draw scenes (default with the bundled model).", "--scenes")
    batch_size: int | None = option(
        *(None, "Pictures measured together (default: 1; scenes 16).", "-b", "--batch-size"), metavar="N", min=1
    )


@with_options()
def maskcd(
    *,
    paths: Images = None,
    given: MaskcdOptions,
    model: ResearchModelOptions,
    selection: FewOptions,
    files: CalibrationOptions,
) -> None:
    """Find the heads that look at the image, for --method maskcd.

    The model captions a few dozen pictures (default: 32, see --limit), greedily and without SIRA. Each head's
    attention on image tokens is averaged; MaskCD silences the heads that stand out in their layer. No labels are
    needed; use pictures similar to yours.
    """
    files.check()
    preset = choose_preset(model)
    from sira_cli.models.presets import BUNDLED

    if given.scenes and paths:
        raise SettingsError("give pictures, or --scenes, not both")
    drawn, limit = given.scenes or (not paths and preset.model == BUNDLED), selection.limit or PICTURES
    if drawn:
        from sira_cli.demo.questions import validation_pictures

        pictures = list(islice(validation_pictures(), limit))
    else:
        pictures = selection.selected(paths).pictures()
        if len(pictures) > limit:
            note(f"taking the first {limit} of {len(pictures):,} pictures: --limit N takes N")
        pictures = pictures[:limit]
    lvlm = load_model(preset, model, "greedy", pictures=() if drawn else pictures)
    files.check_place("maskcd", lvlm)
    from sira_cli.analysis.calibration.maskcd import ImageMass, calibrate, measure_mass, table
    from sira_cli.analysis.experiment import Units

    units = Units[ImageMass]()
    batch_size = given.batch_size or (PICTURE_BATCH if drawn else 1)
    failures = show_stages(measure_mass(lvlm, pictures, units, batch_size), len(pictures))
    calibration = calibrate(lvlm, units)
    print_tables(table(calibration))
    files.save(calibration, preset)
    if files.output is None:
        where = f"-p {preset.name}" if preset.name else f"-m {preset.model}"
        note(f"now: sira caption PATH {where} --method maskcd")
    if failures:
        raise typer.Exit(3)


ICT = """
sira calibrate ict -p llava-1.5-7b --questions coco_pope_popular.json --images val2014/ --annotations annotations/
sira calibrate ict -p demo --scenes
"""
SUPPORT = """
sira calibrate support captions.jsonl --labels annotations/ -p llava-1.5-7b --write-preset mine.yaml
sira calibrate support captions.jsonl --labels objects.json
sira calibrate support captions.jsonl --controls -p llava-1.5-7b --write-preset mine.yaml
"""
MASKCD = """
sira calibrate maskcd photos/ -p llava-1.5-7b
sira calibrate maskcd photos/ -m ./my-checkpoint --limit 50 --write-preset mine.yaml
"""
app = typer.Typer(
    help="Fit a method's or score's parameters to a model (once per model).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command, kind, examples, line in (
    (ict, Variadic, ICT, "Directions of method ict, from labelled yes/no questions."),
    (support, Command, SUPPORT, "The second look's threshold of support, from captions with labels."),
    (maskcd, Command, MASKCD, "Image heads of method maskcd, from pictures without labels."),
):
    app.command(command.__name__, cls=kind, epilog=examples, short_help=line)(command)
