"""`sira sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.console import note, say, set_verbosity
from sira_cli.cli.options import (
    DecodingOptions,
    ModelOptions,
    Verbose,
    check_file,
    choose_preset,
    load_model,
    with_options,
)
from sira_cli.cli.output import save_plot
from sira_cli.cli.progress import Progress
from sira_cli.cli.sweep_table import print_report
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.sweep.benchmark import Benchmark
    from sira_cli.analysis.sweep.cells import Grid
    from sira_cli.analysis.sweep.report import Failure, SweepReport
    from sira_cli.analysis.sweep.units import Units
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.models.presets import Preset

SCENE_BATCH = 32


class By(StrEnum):
    """What the best setting has most of."""

    ACCURACY = "accuracy"
    F1 = "F1"


@with_options(model=ModelOptions)
def sweep(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="POPE's question files, a split each.", show_default=False),
    ] = None,
    images: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the files' images are.")] = None,
    scenes: Annotated[
        bool, typer.Option("--scenes", help="Drawn validation scenes, no files; default with the bundled model.")
    ] = False,
    k: Annotated[
        str | None, typer.Option("--k", help="all, or as 1,2,4 or 1-7. Default about 6 values, L/2 among them.")
    ] = None,
    alpha: Annotated[str, typer.Option(help="Contrast strengths.")] = "0.25,0.5,0.75,1,1.5,2",
    captions: Annotated[
        bool, typer.Option("--captions", help="Of scenes: captions too, for a choice that spares coverage.")
    ] = False,
    by: Annotated[
        By, typer.Option(case_sensitive=False, help="Of which the best setting has the highest mean over the splits.")
    ] = By.ACCURACY,
    suffix: Annotated[
        str | None,
        typer.Option(help="After each question; default for files ' Please answer this question with one word.'"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only N questions of each file, or N scenes (default 200).")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("-b", "--batch-size", metavar="N", min=1, help="Questions at once; default 1, of scenes 32."),
    ] = None,
    model: ModelOptions,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.jsonl", help="Keeps every answer, to go on where a run stopped."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew; replace a preset.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .pdf, .svg (extra `plot`).")
    ] = None,
    write_preset: Annotated[
        Path | None, typer.Option("--write-preset", metavar="FILE.yaml", help="The preset with the best setting.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Measure SIRA over K and alpha on yes/no questions, and pick the best (the paper's Figure 3).

    An answer is its first token, at temperature 0, read by POPE's rule: "no" if it is No, not or no. So
    one prefill a question gives all settings. The best of many is flattered by chance: check it on
    questions that did not choose it.
    """
    set_verbosity(quiet, verbose)
    from sira_cli.analysis.sweep.cells import parse_alphas, parse_ks
    from sira_cli.models.presets import BUNDLED

    given = None if k is None or k == "all" else parse_ks(k)
    alphas = parse_alphas(alpha)
    _check_targets(output, plot, write_preset, overwrite)
    preset = choose_preset(model, DecodingOptions(k=given[-1] if given else None))
    benchmark = _benchmark(files or [], images, scenes or (not files and preset.model == BUNDLED), suffix, limit)
    if captions and not benchmark.scenes:
        raise SettingsError("--captions: what is in the pictures is only known of scenes: leave it or the files out")

    from sira_cli.analysis.sweep.units import Units, decisive

    units = Units(output, overwrite=overwrite)
    try:
        known = decisive(preset, benchmark, alphas, captions) | {"quantization": model.quantization}
        units.check(known | ({"k": list(given)} if given else {}))
        lvlm = load_model(preset, model, "sira")
        grid = _grid(lvlm, benchmark, given, alphas, every=k == "all")
        units.begin(known | {"k": list(grid.ks), "checkpoint": lvlm.revision, "dtype": str(lvlm.model.dtype)})
        size = batch_size or (SCENE_BATCH if benchmark.scenes else 1)
        failures = _measure(lvlm, benchmark, grid, units, size, captions)
        from sira_cli.analysis.sweep.report import SweepReport

        report = None
        if len(units):
            report = SweepReport.of(lvlm, benchmark, grid, units, captions=captions, score=by.value, failures=failures)
    except KeyboardInterrupt:
        if output is None:
            raise
        say("interrupted; what is finished is kept: run the same command again to go on")
        raise typer.Exit(130) from None
    finally:
        units.close()
    if report is not None:
        if as_json:
            print(report.to_json())
        else:
            print_report(report)
        if plot is not None:
            from sira_cli.analysis.sweep.plot import draw

            save_plot(draw, report, plot)
        if write_preset is not None:
            _write_preset(report, preset, write_preset)
    if failures:
        raise typer.Exit(3)


def _check_targets(output: Path | None, plot: Path | None, write_preset: Path | None, overwrite: bool) -> None:
    """Before anything is measured."""
    from sira_cli.analysis.plots import check_format

    for option, file in (("--output", output), ("--plot", plot), ("--write-preset", write_preset)):
        check_file(option, file, overwrite or option != "--write-preset")
    if plot is not None:
        check_format(plot)
    if write_preset is not None and write_preset.suffix not in (".yaml", ".yml"):
        raise SettingsError(f"--write-preset {write_preset}: expected a name that ends in .yaml")


def _benchmark(
    paths: Sequence[Path], images: Path | None, scenes: bool, suffix: str | None, limit: int | None
) -> Benchmark:
    """The questions. That there is no picture is known before a model is loaded."""
    if scenes and (paths or images is not None):
        raise SettingsError("give question files with their --images, or --scenes, not both")
    if not scenes and (not paths or images is None):
        raise SettingsError(
            "give POPE's question files with --images FOLDER, or --scenes (-p demo: the bundled model on drawn scenes)"
        )
    from sira_cli.analysis.sweep import benchmark
    from sira_cli.eval.base import ONE_WORD
    from sira_cli.pictures.sources import check_images

    if images is None:
        return benchmark.scenes(limit, suffix or "")
    found = benchmark.files(paths, images, limit, ONE_WORD if suffix is None else suffix)
    check_images(images, found.pictures)
    return found


def _grid(
    lvlm: Lvlm, benchmark: Benchmark, given: tuple[int, ...] | None, alphas: tuple[float, ...], every: bool
) -> Grid:
    """All settings. Which K there are, and what must not be asked, depends on the model."""
    from sira_cli.analysis.sweep.cells import Grid, spread
    from sira_cli.core.families import find_backbone
    from sira_cli.runs.batch import check_prompts

    largest = lvlm.layers - find_backbone(lvlm.model).first_boundary
    ks = given or (tuple(range(1, largest + 1)) if every else spread(lvlm.layers, largest))
    check_prompts(lvlm, ((asked.text, asked.picture) for asked in benchmark.questions))
    return Grid(ks, alphas)


def _measure(
    lvlm: Lvlm, benchmark: Benchmark, grid: Grid, units: Units, batch_size: int, captions: bool
) -> list[Failure]:
    """Every answer that is missing; pictures that fail are said once, and the others go on."""
    from sira_cli.analysis.sweep.grid import answer_questions, caption_scenes
    from sira_cli.analysis.sweep.report import Failure

    failures: dict[str, Failure] = {}
    with Progress.shown("questions", len(benchmark.questions)) as progress:

        def fail(picture: str, error: str) -> None:
            if picture not in failures:
                say(error)
                progress.advance(0, error=True)
                failures[picture] = Failure(picture, error)

        answer_questions(lvlm, benchmark, grid, units, batch_size, progress.advance, fail)
    if captions:
        with Progress.shown("captions", len(benchmark.scenes) * len(grid.cells())) as progress:
            caption_scenes(lvlm, benchmark.scenes, grid, units, batch_size, progress.advance)
    if failures and len(benchmark.pictures) > 1:
        say(f"{len(failures)} of {len(benchmark.pictures)} pictures failed")
    return list(failures.values())


def _write_preset(report: SweepReport, preset: Preset, path: Path) -> None:
    from sira_cli.files import replacing
    from sira_cli.models import presets

    folder = Path(preset.model).expanduser()
    how = f"by sira sweep: {report.by} on {report.pictures if report.captions else report.questions} "
    how += "scenes" if report.captions else "questions"
    if report.by_default:
        how = "of the paper: no setting of sira sweep fulfilled its rule"
    changes = {
        "name": path.stem,
        "description": f"K and alpha {how}",
        "model": str(folder.resolve()) if folder.is_dir() else preset.model,  # so that it works from anywhere
    }
    best = preset.with_settings(k=report.best.k, alpha=report.best.alpha).model_copy(update=changes)
    with replacing(path) as file:
        file.write(presets.to_yaml(best).encode())
    note(f"{path}: K = {report.best.k}, alpha = {report.best.alpha:g}; use it with --preset {path}")
