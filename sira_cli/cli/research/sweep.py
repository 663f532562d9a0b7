"""`sira sweep`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.groups import (
    AsJson,
    Plot,
    QuestionImages,
    QuestionScenes,
    Quiet,
    ResearchModelOptions,
    Verbose,
    batch_size_option,
    option,
    with_options,
)
from sira_cli.cli.terminal.console import resumable, set_verbosity, show_stages
from sira_cli.cli.terminal.output import check_file, check_plot, check_preset_file, save_plot, save_preset, show_report
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.questions import QuestionSet
    from sira_cli.analysis.sweep import SweepReport
    from sira_cli.models.preset import Preset

SCENE_BATCH = 32
NOT_BOTH = "give question files with their --images, or --scenes, not both"

EXAMPLES = """
sira sweep -p demo --scenes --captions
sira sweep coco_pope_*.json --images val2014/ --write-preset best.yaml
"""


@dataclass(frozen=True)
class SweepOptions:
    """The settings to measure, the questions, and the files to write."""

    title: ClassVar[str] = "Options"

    images: QuestionImages = None
    scenes: QuestionScenes = False
    k: str | None = option(None, "Values of K: all, 1,2,4 or 1-7 (default: about 6 values).")
    alpha: str = option("0.25,0.5,0.75,1,1.5,2", "Contrast strengths, alpha.")
    captions: bool = option(False, "Also measure captions of scenes, and choose the setting by them.", "--captions")
    limit: int | None = option(None, "First N questions of each file, or scenes (default: 200).", metavar="N", min=1)
    batch_size: Annotated[Any, batch_size_option("Questions at once (default: auto on a GPU, else 1; scenes 32).")] = (
        None
    )
    output: Path | None = option(
        *(None, "Keep every answer here, to resume a stopped run.", "-o", "--output"), metavar="FILE.jsonl"
    )
    overwrite: bool = option(False, "Replace existing answers, figures and presets.", "--overwrite")
    plot: Plot = None
    write_preset: Path | None = option(None, "Write a preset with the best setting.", metavar="FILE.yaml")
    as_json: AsJson = False
    quiet: Quiet = False
    verbose: Verbose = 0


@with_options()
def sweep(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="POPE's question files, one per split.", show_default=False),
    ] = None,
    given: SweepOptions,
    model: ResearchModelOptions,
) -> None:
    """Measure SIRA over K and alpha on yes/no questions, and pick the best (the paper's Figure 3).

    Only the first token of each answer is decoded, greedily, and read by POPE's rule: "no" if it is No, not or no.
    So one prefill per question is enough for all settings. The best of many settings looks better than it is:
    check it on other questions.
    """
    set_verbosity(given.quiet, given.verbose)
    from sira_cli.analysis import sweep as measured
    from sira_cli.analysis.experiment import Units
    from sira_cli.analysis.questions import in_splits
    from sira_cli.demo.questions import validation_questions
    from sira_cli.eval.benchmark import ONE_WORD

    ks, output = () if given.k in (None, "all") else measured.parse_ks(str(given.k)), given.output
    alphas = measured.parse_alphas(given.alpha)
    check_file("--output", output)  # a sweep resumes in its file, and its figure is drawn again
    check_plot(given.plot, given.overwrite or output is not None)
    check_preset_file(given.write_preset, given.overwrite)
    preset = choose_preset(model, k=ks[-1] if ks else None)
    questions = questions_of(
        *(preset, files or [], given.images, given.scenes),
        lambda: validation_questions(given.limit),
        lambda paths, images: in_splits(paths, images, given.limit, ONE_WORD),
    )
    drawn, captions = not questions.folder, given.captions
    if captions and questions.count_caption is None:
        raise SettingsError("--captions is for scenes, whose content is known: leave out --captions or the files")
    units = Units[list[str]](output, overwrite=given.overwrite)
    with resumable(output is not None, given.overwrite), closing(units):
        known = measured.decisive(preset, questions, alphas, captions) | {"quantization": preset.load.quantization}
        units.check(known | ({"k": list(ks)} if ks else {}))
        lvlm = load_model(preset, model, "sira", pictures=() if drawn else questions.files())
        grid, batch_size = measured.Grid.of(lvlm, given.k, alphas), given.batch_size or (SCENE_BATCH if drawn else None)
        events = measured.sweep(lvlm, questions, grid, units, captions=captions, batch_size=batch_size)
        show_stages(events, len(questions.pictures))
    if units:
        report = measured.SweepReport.of(lvlm, questions, grid, units, captions)
        show_report(report, given.as_json)
        if given.plot is not None:
            save_plot(report, given.plot)
        if given.write_preset is not None:
            _write_preset(report, preset, given.write_preset)
    if units.failures:
        raise typer.Exit(3)


def questions_of(
    preset: Preset,
    paths: list[Path],
    images: Path | None,
    scenes: bool,
    draw: Callable[[], QuestionSet],
    read: Callable[[list[Path], Path], QuestionSet],
    files: str = "POPE's question files",
) -> QuestionSet:
    """Return questions about drawn scenes, or those of files. A missing picture is found before a model is loaded."""
    from sira_cli.models.presets import BUNDLED
    from sira_cli.pictures.find import check_images

    if scenes or (not paths and preset.model == BUNDLED):
        if paths or images is not None:
            raise SettingsError(NOT_BOTH)
        return draw()
    if not paths or images is None:
        raise SettingsError(
            f"give {files} with --images FOLDER, or --scenes (-p demo: the bundled model on drawn scenes)"
        )
    questions = read(paths, images)
    check_images(images, questions.pictures)
    return questions


def _write_preset(report: SweepReport, preset: Preset, path: Path) -> None:
    if report.best is None:
        raise SettingsError(
            f"`write_preset=` {path}: is not written: no setting fulfils the rule, and the paper's was not measured: "
            "give other values of K and alpha"
        )
    measured = f"{report.pictures} scenes" if report.captions else f"{report.questions} questions"
    how = f"by sira sweep: {report.by} on {measured}"
    if report.by_default:
        how = "of the paper: no setting of sira sweep fulfilled its rule"
    best = preset.with_settings(k=report.best.k, alpha=report.best.alpha)
    save_preset(best, path, f"K and alpha {how}", report.best.name)
