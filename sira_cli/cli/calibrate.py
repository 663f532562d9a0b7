"""`sira calibrate`: what a method or a score must know about a model, found once. A command is a function and a row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.help import register
from sira_cli.cli.loading import engine_of, load_model
from sira_cli.cli.options import groups
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.groups import ResearchModelOptions, argument, option, with_options
from sira_cli.cli.research import NOT_BOTH, are_drawn
from sira_cli.cli.terminal.console import Progress, note, run_records, say, show_stages
from sira_cli.cli.terminal.output import check_file, check_preset_file, print_tables, save_preset, show_report
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.analysis.calibration.support import SupportReport
    from sira_cli.analysis.calibration.vti import CaptionPairs
    from sira_cli.methods.calibrated import Calibration
    from sira_cli.models.preset import Preset
    from sira_cli.run.lvlm import Lvlm
    from sira_cli.run.output import Files

FILE_QUESTIONS = 1500  # of ict
SCENE_QUESTIONS = 600  # of ict, about drawn scenes
QUESTION_BATCH = 32  # of ict, about drawn scenes
PICTURES = 32  # of maskcd
PICTURE_BATCH = 16  # of maskcd and vti, of drawn scenes
PAIRS = 70  # of vti
SCENES = 600  # of support


@dataclass(frozen=True)
class CalibrationOptions(groups.Group):
    """Where a calibration goes."""

    output: Path | None = option(None, "Target (default: where --method finds it).", "-o", "--output", metavar="FILE")
    write_preset: Path | None = option(None, "Write a preset that names the calibration.", metavar="FILE.yaml")
    overwrite: groups.Overwrite = False

    def __post_init__(self) -> None:
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

        origin = calibration.origin
        kind = origin.kind
        path = self.output or calibration_path(kind, origin.model, origin.revision)
        calibration.write(path)
        if self.output is None:
            note(f"{path}: --method {kind} finds it by the model")
        else:
            note(f"{path}: use it with --method {kind} --set calibration={path}")
        if self.write_preset is not None:
            own = {**preset.methods.get(kind, {}), "calibration": str(path.resolve())}
            preset = preset.model_copy(update={"methods": {**preset.methods, kind: own}})
            save_preset(preset, self.write_preset, f"with a calibration for {kind}", f"the calibration for {kind}")


@with_options(
    """
sira calibrate ict -p llava-1.5-7b --questions coco_pope_popular.json --images val2014/ --annotations annotations/
sira calibrate ict -p demo --scenes
"""
)
def ict(
    *,
    questions: list[Path] | None = option(None, "Labelled yes/no questions in POPE's format.", metavar="FILE..."),
    images: groups.QuestionImages = None,
    annotations: Path | None = option(None, "COCO's instances, for the object level.", metavar="PATH"),
    scenes: groups.QuestionScenes = False,
    limit: int | None = option(
        *(None, f"First N questions of each file (default: {FILE_QUESTIONS} in all), or scenes ({SCENE_QUESTIONS})."),
        metavar="N",
        min=2,
    ),
    batch_size: int | None = option(
        *(None, "Questions asked together (default: 1; for scenes 32).", "-b", "--batch-size"), metavar="N", min=1
    ),
    model: ResearchModelOptions,
    files: CalibrationOptions,
) -> None:
    """Find the directions that method ict adds, once per model, from labelled yes/no questions about pictures.

    Each question is asked three times, one prefill each: about the picture, about the picture blurred (or with the
    wrong answer), and about the picture with the object blacked out. Without --annotations the last is left out:
    the calibration has the image level only.
    """
    from sira_cli.analysis.calibration.ict import calibration, summary, train
    from sira_cli.analysis.experiment import Units
    from sira_cli.analysis.questions import with_places
    from sira_cli.cli.terminal.fetching import check_or_fetch, images_folder
    from sira_cli.demo.labelled import labelled_questions

    preset = choose_preset(model)

    drawn = are_drawn(preset, questions, images, scenes, "--questions FILE...")
    if drawn and annotations is not None:
        raise SettingsError(NOT_BOTH)
    if drawn:
        asked = labelled_questions(limit or SCENE_QUESTIONS)
    else:
        most = limit or FILE_QUESTIONS // len(questions or [])
        folder = images_folder(images)
        asked = with_places(questions or [], folder.path, most, annotations)
        check_or_fetch(folder, asked.pictures)
    if asked.outlines is None:
        note("without --annotations the places of objects are unknown: the image level only")
    lvlm = load_model(preset, model, "greedy", pictures=() if drawn else asked.files())
    files.check_place("ict", lvlm)
    outputs = Units["Tensor"]()
    tensors = dict[str, "Tensor"]()
    events = train(lvlm, asked, outputs, tensors, batch_size or (QUESTION_BATCH if drawn else 1))
    failures = show_stages(events, len(asked.pictures))
    made = calibration(lvlm, asked, outputs, tensors)
    for line in summary(made):
        note(line)
    files.save(made, preset)
    if failures:
        raise typer.Exit(3)


@with_options(
    """
sira calibrate support captions.jsonl --labels annotations/ -p llava-1.5-7b --write-preset mine.yaml
sira calibrate support captions.jsonl --labels objects.json
sira calibrate support captions.jsonl --controls -p llava-1.5-7b --write-preset mine.yaml
"""
)
def support(
    *,
    paths: list[str] | None = argument("PATH", "Records with a second look; with --controls any captions."),
    controls: bool = option(False, "Find it without labels, by objects of other captions.", "--controls"),
    answers: Path | None = option(None, "With --controls: keep the answers, to resume.", metavar="FILE.jsonl"),
    objects: groups.Objects = None,
    labels: Path | None = option(
        None, 'Folder of COCO annotations, or FILE.json: {"a.jpg": ["dog"], ...}, all objects.', metavar="PATH"
    ),
    scenes: bool = option(False, "Caption drawn scenes (default with the bundled model).", "--scenes"),
    limit: int | None = option(
        None, f"First N scenes (default: {SCENES}), or captions with --controls (default: all).", metavar="N", min=1
    ),
    write_preset: Path | None = option(None, "Write a preset with the threshold.", metavar="FILE.yaml"),
    model: ResearchModelOptions,
    target: groups.ReportOptions,
) -> None:
    """Find the threshold of support (--min-support), from captions with labels, or with --controls without them.

    With labels it is the highest threshold that marks at most 3 % of the real objects as unsupported.
    The records hold the support of every object that the captions name; the labels are the ground truth. A few hundred
    named objects are enough, if some are hallucinated. With --controls the model is also asked about objects that only
    captions of other pictures name, and the threshold is above 98 % of these answers; a few hundred captions are
    enough.
    """
    check_preset_file(write_preset, target.overwrite)
    _check_sources(paths, labels, controls, answers or objects, scenes or (limit and not controls))
    preset = choose_preset(model)
    if labels is not None:
        from sira_cli.analysis.calibration.support import from_files

        report = from_files([Path(path) for path in paths or ()], labels)
    elif paths:
        from sira_cli.run.output import Files

        files = Files(answers, overwrite=target.overwrite, retry_errors=True)
        report = _by_controls(paths, limit, objects, files, preset, model)
    else:
        report = _by_scenes(preset, model, limit or SCENES, scenes)
    if write_preset is not None and report.source.model != preset.model:
        raise SettingsError(
            f"--write-preset: the records are of {report.source.model}, the preset is for {preset.model}: "
            "give the records' model with --preset or --model"
        )
    show_report(report, target.as_json, target.output)
    if not target.as_json:
        for doubt in report.doubts():
            note(doubt)
    if write_preset is not None:
        verify = preset.verify.model_copy(update={"min_support": report.threshold})
        command = "sira calibrate support --controls" if controls else "sira calibrate support"
        how = f"min_support by {command} on {report.pictures} pictures"
        holds = f"min_support = {report.threshold:g}"
        save_preset(preset.model_copy(update={"verify": verify}), write_preset, how, holds)
    if report.failed:
        say(f"{report.failed} of {report.pictures + report.failed} failed")
        raise typer.Exit(3)


def _check_sources(
    paths: list[str] | None, labels: Path | None, controls: bool, for_controls: Path | str | None, drawn: int | None
) -> None:
    """Check that captions and the truth about them fit together: labels, controls, or drawn scenes."""
    for refused, message in (
        (controls and labels, "--controls needs no labels: leave out --labels"),
        (controls and not paths, "--controls is for captions, such as `sira caption -o FILE` writes: give PATH"),
        (
            for_controls and not controls,
            "--answers and --objects are for --controls: records hold their answers already",
        ),
        (paths and drawn, "--scenes and --limit are for drawn scenes: leave out PATH, or these"),
        (labels and not paths, "--labels is for records: also give PATH"),
        (
            paths and not controls and not labels,
            "give the ground truth: --labels PATH, a folder of COCO's annotations or a FILE.json",
        ),
    ):
        if refused:
            raise SettingsError(message)


def _by_scenes(preset: Preset, model: ResearchModelOptions, count: int, scenes: bool) -> SupportReport:
    """Caption drawn scenes, and find the threshold."""
    from sira_cli.models.presets import BUNDLED

    if not scenes and preset.model != BUNDLED:
        raise SettingsError(
            "name files of records, which `sira caption --verify flag -o captions.jsonl` writes, or give --scenes "
            "(-p demo: the bundled model on drawn scenes)"
        )
    lvlm = load_model(preset, model, "sira", pictures=())
    from sira_cli.demo.labelled import scene_report

    with Progress.on_terminal("scenes", count) as progress:
        return scene_report(lvlm, count, progress.reach)


def _by_controls(
    paths: list[str],
    limit: int | None,
    objects: str | None,
    files: Files,
    preset: Preset,
    model: ResearchModelOptions,
) -> SupportReport:
    """Ask about the things that captions name and about controls, and find the threshold."""
    from sira_cli.analysis.calibration.support import WithControls, from_controls
    from sira_cli.look.claims import ObjectFinder, Verify
    from sira_cli.look.finders import find_words
    from sira_cli.pictures.captions import find_captions
    from sira_cli.run.check import Check
    from sira_cli.run.output import Output
    from sira_cli.run.run import run

    pictures = find_captions(paths, limit=limit).pictures
    verify = Verify(words=find_words(objects))
    finder = ObjectFinder(verify, preset)
    if finder.asks:
        raise SettingsError("--controls needs a list of objects: give --objects FILE")
    words = WithControls(finder.words, [picture.caption or "" for picture in pictures])
    task = Check.under(preset, replace(verify, words=words)).about(pictures)
    with Output(task, pictures, files) as written:
        events = run(task, pictures, engine_of(model, groups.EngineOptions(), pictures), written)
        return from_controls(run_records(events, written, files.overwrite))


@with_options(
    """
sira calibrate maskcd photos/ -p llava-1.5-7b
sira calibrate maskcd photos/ -m ./my-checkpoint --limit 50 --write-preset mine.yaml
"""
)
def maskcd(
    *,
    paths: list[str] | None = argument("IMAGE", groups.PICTURES),
    scenes: bool = option(False, "Draw scenes (default with the bundled model).", "--scenes"),
    batch_size: int | None = option(
        *(None, "Pictures measured together (default: 1; scenes 16).", "-b", "--batch-size"), metavar="N", min=1
    ),
    model: ResearchModelOptions,
    selection: groups.FewOptions,
    files: CalibrationOptions,
) -> None:
    """Find the heads that look at the image, for --method maskcd.

    The model captions a few dozen pictures (default: 32, see --limit), greedily and without SIRA. Each head's
    attention on image tokens is averaged; MaskCD silences the heads that stand out in their layer. No labels are
    needed; use pictures similar to yours.
    """
    preset = choose_preset(model)
    from sira_cli.models.presets import BUNDLED

    if scenes and paths:
        raise SettingsError("give pictures, or --scenes, not both")
    limit = selection.limit or PICTURES
    drawn = scenes or (not paths and preset.model == BUNDLED)
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
    together = batch_size or (PICTURE_BATCH if drawn else 1)
    failures = show_stages(measure_mass(lvlm, pictures, units, together), len(pictures))
    calibration = calibrate(lvlm, units)
    print_tables(table(calibration))
    files.save(calibration, preset)
    if files.output is None:
        where = f"-p {preset.name}" if preset.name else f"-m {preset.model}"
        note(f"now: sira caption PATH {where} --method maskcd")
    if failures:
        raise typer.Exit(3)


@with_options(
    """
sira calibrate vti hallucination_vti_demos.jsonl --images train2014/ -p llava-1.5-7b
sira calibrate vti -p demo
"""
)
def vti(
    *,
    captions: Path | None = argument(
        "FILE.jsonl", "True and hallucinated captions: rows with image, question, value, h_value."
    ),
    images: groups.CaptionImages = None,
    limit: int | None = option(None, f"Take N pictures (default: {PAIRS}).", metavar="N", min=3),
    model: ResearchModelOptions,
    files: CalibrationOptions,
) -> None:
    """Find the directions that method vti steers by, once per model, from pairs of captions.

    FILE.jsonl has the form that VTI's authors publish. The model reads a true and a hallucinated caption of each
    picture; LLaVA-1.5's image tower also sees it 50 times with 99 % of its patches masked. Of a longer file, N rows
    are drawn. The bundled model needs no file: it gets drawn scenes.
    """
    from sira_cli.analysis.calibration.vti import Shift, calibrate, measure, summary
    from sira_cli.analysis.experiment import Units
    from sira_cli.models.presets import BUNDLED

    preset = choose_preset(model)
    drawn = captions is None and preset.model == BUNDLED
    source = _caption_pairs(captions, images, limit or PAIRS, preset, drawn=drawn)
    pictures = [pair.picture for pair in source.pairs]
    lvlm = load_model(preset, model, "greedy", pictures=() if drawn else pictures)
    files.check_place("vti", lvlm)
    units = Units[Shift]()
    together = PICTURE_BATCH if drawn else 1
    failures = show_stages(measure(lvlm, source.pairs, units, together), len(pictures))
    made = calibrate(lvlm, source, units)
    for line in summary(made):
        note(line)
    files.save(made, preset)
    if failures:
        raise typer.Exit(3)


def _caption_pairs(
    captions: Path | None, images: Path | None, count: int, preset: Preset, *, drawn: bool
) -> CaptionPairs:
    """Return pictures with pairs of captions: drawn scenes, or those of a file."""
    from sira_cli.analysis.calibration.vti import read_pairs
    from sira_cli.demo.labelled import caption_pairs
    from sira_cli.pictures.checks import check_any_exists, check_images

    if drawn:
        if images is not None:
            raise SettingsError("--images is for FILE.jsonl: name the file, or leave out --images for drawn scenes")
        return caption_pairs(preset.prompts.caption, count)
    if captions is None or images is None:
        raise SettingsError("give FILE.jsonl with --images FOLDER (-p demo: the bundled model on drawn scenes)")
    check_images(images, [])
    source = read_pairs(captions, images, count)
    check_any_exists([pair.picture for pair in source.pairs], ": is `images=` right?")
    return source


app = typer.Typer(
    help="Fit a method's or score's parameters to a model (once per model).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
register(app, ict, "Directions of method ict, from labelled yes/no questions.")
register(app, support, "The second look's threshold of support, from captions with labels.")
register(app, maskcd, "Image heads of method maskcd, from pictures without labels.")
register(app, vti, "Directions of method vti, from true and hallucinated captions.")
