"""`sira sweep`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

EXAMPLES = """
sira sweep -p demo --scenes --captions
sira sweep coco_pope_*.json --images val2014/ --write-preset best.yaml
"""


@with_options()
def sweep(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="POPE's question files, one per split.", show_default=False),
    ] = None,
    images: QuestionImages = None,
    scenes: QuestionScenes = False,
    k: Annotated[str | None, typer.Option(help="Values of K: all, 1,2,4 or 1-7 (default: about 6 values).")] = None,
    alpha: Annotated[str, typer.Option(help="Contrast strengths, alpha.")] = "0.25,0.5,0.75,1,1.5,2",
    captions: Annotated[
        bool, typer.Option("--captions", help="Also measure captions of scenes, and choose the setting by them.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="First N questions of each file, or scenes (default: 200)."),
    ] = None,
    batch_size: Annotated[
        Any, batch_size_option("Questions at once (default: auto on a GPU, else 1; scenes 32).")
    ] = None,
    model: ResearchModelOptions,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.jsonl", help="Keep every answer here, to resume a stopped run."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing answers, figures and presets.")
    ] = False,
    plot: Plot = None,
    write_preset: Annotated[
        Path | None, typer.Option("--write-preset", metavar="FILE.yaml", help="Write a preset with the best setting.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Measure SIRA over K and alpha on yes/no questions, and pick the best (the paper's Figure 3).

    Only the first token of each answer is decoded, greedily, and read by POPE's rule: "no" if it is No, not or no.
    So one prefill per question is enough for all settings. The best of many settings looks better than it is:
    check it on other questions.
    """
    set_verbosity(quiet, verbose)
    from sira_cli.analysis.experiment import Units
    from sira_cli.analysis.sweep import Grid, SweepReport, decisive, parse_alphas, parse_ks
    from sira_cli.analysis.sweep import sweep as measure
    from sira_cli.models.presets import BUNDLED

    ks = () if k is None or k == "all" else parse_ks(k)
    alphas = parse_alphas(alpha)
    check_file("--output", output)  # a sweep resumes in its file, and its figure is drawn again
    check_plot(plot, overwrite or output is not None)
    check_preset_file(write_preset, overwrite)
    preset = choose_preset(model, k=ks[-1] if ks else None)
    drawn = scenes or (not files and preset.model == BUNDLED)
    questions = _questions(files or [], images, drawn, limit)
    if captions and questions.count_caption is None:
        raise SettingsError("--captions is for scenes, whose content is known: leave out --captions or the files")

    with resumable(output is not None, overwrite), closing(Units[list[str]](output, overwrite=overwrite)) as units:
        known = decisive(preset, questions, alphas, captions) | {"quantization": preset.load.quantization}
        units.check(known | ({"k": list(ks)} if ks else {}))
        lvlm = load_model(preset, model, "sira", pictures=() if drawn else questions.files())
        grid, batch_size = Grid.of(lvlm, k, alphas), batch_size or (SCENE_BATCH if drawn else None)
        events = measure(lvlm, questions, grid, units, captions=captions, batch_size=batch_size)
        show_stages(events, len(questions.pictures))
    if units:
        report = SweepReport.of(lvlm, questions, grid, units, captions)
        show_report(report, as_json)
        if plot is not None:
            save_plot(report, plot)
        if write_preset is not None:
            _write_preset(report, preset, write_preset)
    if units.failures:
        raise typer.Exit(3)


def _questions(paths: list[Path], images: Path | None, scenes: bool, limit: int | None) -> QuestionSet:
    """Return the questions. A missing picture is found before a model is loaded."""
    if scenes and (paths or images is not None):
        raise SettingsError("give question files with their --images, or --scenes, not both")
    if scenes:
        from sira_cli.demo.questions import validation_questions

        return validation_questions(limit)
    if not paths or images is None:
        raise SettingsError(
            "give POPE's question files with --images FOLDER, or --scenes (-p demo: the bundled model on drawn scenes)"
        )
    from sira_cli.analysis.questions import in_splits
    from sira_cli.eval.benchmark import ONE_WORD
    from sira_cli.pictures.find import check_images

    questions = in_splits(paths, images, limit, ONE_WORD)
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
