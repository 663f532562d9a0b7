"""`sira calibrate support --controls`: the threshold without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.cli.loading import engine_of
from sira_cli.cli.options.common import EngineOptions, ResearchModelOptions
from sira_cli.cli.terminal.console import note, resumable, say
from sira_cli.cli.terminal.output import new_table, table_console
from sira_cli.cli.terminal.progress import Progress, run_records
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.analysis.calibration.controls import ControlsReport
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.lvlm import Lvlm
    from sira_cli.run.run import Engine

FEW = 500  # controls; with fewer, a percentile is uncertain


def from_captions(
    paths: Sequence[str],
    limit: int | None,
    preset: Preset,
    model: ResearchModelOptions,
    answers: Path | None,
    overwrite: bool,
    objects: str | None,
) -> ControlsReport:
    """Ask about the things that captions name and about controls, and find the threshold."""
    from sira_cli.pictures.captions import check_pictures, find_captions

    captions = find_captions(paths, limit=limit)
    check_pictures(captions)
    engine = engine_of(model, EngineOptions(), captions.pictures)
    return _report(captions.pictures, preset, engine, answers, overwrite, objects)


def from_scenes(count: int, lvlm: Lvlm) -> ControlsReport:
    """Let the bundled model caption drawn scenes, and find the threshold by controls."""
    from sira_cli.demo.labelled import captioned_scenes
    from sira_cli.run.run import Local

    with Progress.shown("scenes", count) as progress:
        pictures = captioned_scenes(lvlm, count, progress.reach)

    return _report(pictures, lvlm.preset, Local(lvlm))


def _report(
    pictures: Sequence[Picture],
    preset: Preset,
    engine: Engine,
    answers: Path | None = None,
    overwrite: bool = False,
    objects: str | None = None,
) -> ControlsReport:
    from sira_cli.analysis.calibration.controls import ControlsReport, WithControls
    from sira_cli.look.noun_phrases import find_words
    from sira_cli.look.verify import ObjectFinder, Verify
    from sira_cli.run.check import Check
    from sira_cli.run.output import Files, Output
    from sira_cli.run.run import run

    verify = Verify(words=find_words(objects))
    finder = ObjectFinder(verify, preset)
    if finder.asks:
        raise SettingsError("--controls needs a list of objects: give --objects FILE")
    words = WithControls(finder.words, [picture.caption or "" for picture in pictures])
    task = Check.under(preset, replace(verify, words=words)).about(pictures)
    with (
        Output(task, pictures, Files(answers, overwrite=overwrite, retry_errors=True)) as written,
        closing(run(task, pictures, engine, written)) as events,
    ):
        next(events)  # the model is ready
        with resumable(written.any, overwrite), Progress.shown("captions", len(pictures)) as progress:
            return ControlsReport.of([record for _, record in run_records(events, written, progress)])


def print_report(report: ControlsReport) -> None:
    """Print the effect of several thresholds, and the threshold found."""
    shares = {threshold: (f"{named:.1%}", f"{controls:.1%}") for threshold, (named, controls) in report.below.items()}
    print_thresholds(("below it: named objects", "controls"), shares, report.threshold)
    out = table_console()
    out.print(f"{report.pictures:,} captions, {report.named:,} objects named, {report.controls:,} controls")
    named, controls = report.yes
    out.print(f"the model says yes to {named:.1%} of the named objects and to {controls:.1%} of the controls")
    out.print(f"min_support = {report.threshold:g}: {report.percentile:g} % of the controls are below it")
    low, high = report.interval
    more = 4 * report.pictures  # widths of such intervals fall with the root of the number
    out.print(f"95 % interval: {low:g} to {high:g}, by bootstrap over pictures; about {more:,} captions halve it")
    if report.is_doubtful:
        note(
            f"support means little here: {report.below[report.threshold][0]:.0%} of the named objects are below this "
            "threshold. The model says yes too readily, or the captions leave out much of what is in the pictures: "
            "find it from labels"
        )
    if report.controls < FEW:
        note(f"only {report.controls} controls: the threshold is uncertain")
    if report.failed:
        say(f"{report.failed} of {report.pictures + report.failed} failed")


def print_thresholds(heads: tuple[str, str], below: Mapping[float, tuple[str, str]], found: float) -> None:
    """Print the shares of two kinds of objects below several thresholds, and mark the threshold that was found."""
    table = new_table(figures=("threshold", *heads))
    table.add_column("")
    for threshold, shares in below.items():
        table.add_row(f"{threshold:g}", *shares, "found" if threshold == found else "")
    table_console().print(table)
