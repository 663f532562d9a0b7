"""Experiments: `sira bench`, `sira sweep` and `sira drift`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sira_cli.analysis.bench import shape_names
from sira_cli.cli.loading import load_model
from sira_cli.cli.options import groups
from sira_cli.cli.options import setting as set_option
from sira_cli.cli.options.choosing import ALL, choose_preset, method_names
from sira_cli.cli.options.groups import PICTURES, ReportOptions, ResearchModelOptions, argument, option, with_options
from sira_cli.cli.terminal.console import Progress, note, resumable, show_stages, waiting
from sira_cli.cli.terminal.output import (
    check_file,
    check_plot,
    check_preset_file,
    save_preset,
    show_report,
)
from sira_cli.errors import NotCalibratedError, SettingsError, SiraError, UnsupportedModelError
from sira_cli.methods import find

if TYPE_CHECKING:
    from sira_cli.analysis.sweep_report import SweepReport
    from sira_cli.models.preset import Preset
    from sira_cli.run.lvlm import Lvlm

SCENE_BATCH = 32
NOT_BOTH = "give question files with their --images, or --scenes, not both"


@dataclass(frozen=True)
class BenchReportOptions(ReportOptions):
    """Target and form of a report whose rounds are kept until it is whole."""

    @property
    def units(self) -> Path | None:
        """The file of the rounds that are measured so far; it is removed at the end."""
        return None if self.output is None else self.output.with_suffix(".units.jsonl")

    def __post_init__(self) -> None:
        is_begun = self.units is not None and self.units.exists()
        check_file("--output", self.output, self.overwrite or is_begun)
        check_file("--output", self.units)


@with_options(
    """
sira bench -p llava-1.5-7b --method sira,vcd
sira bench --shape qwen2.5-vl-7b -o bench.json
"""
)
def bench(
    *,
    shape: str | None = option(
        None, f"Random weights in a real model's shape: {', '.join(shape_names())}.", metavar="NAME"
    ),
    method: str = option("sira,vcd", "Methods to measure besides greedy, or all.", metavar="NAME,..."),
    max_new_tokens: str = option("32,64,128", "Text lengths in tokens.", metavar="N,..."),
    batch_size: str = option("1", "Batch sizes.", "-b", "--batch-size", metavar="N,..."),
    image_tokens: int = option(600, "Image tokens per picture, if not fixed.", min=1, metavar="N"),
    runs: int = option(5, "Number of rounds, after one warm-up round.", min=1, metavar="N"),
    model: ResearchModelOptions,
    target: BenchReportOptions,
) -> None:
    """Measure what methods cost compared with greedy, on the same pictures and in turn.

    Prefill is the time from the image encoder to the first token, a step the time from one token to the next, a
    request the total. Ratios are to greedy's time in the same round: median, then minimum and maximum. End tokens
    are ignored, so every text reaches its full length. With -o, a stopped run goes on after its last round.
    """
    methods = [name for name in method_names(method) if name]
    for name in methods:
        find(name)
    lengths = _numbers("--max-new-tokens", max_new_tokens)
    batches = _numbers("--batch-size", batch_size)
    lvlm = _random_model(shape, model) if shape else load_model(choose_preset(model), model, "sira", pictures=())
    if method.strip() == ALL:
        refusals: tuple[type[SiraError], ...] = (UnsupportedModelError,)
        if shape is None:  # else a stand-in is the calibration
            refusals += (NotCalibratedError,)
        asked = {name: (lvlm.preset, find(name)) for name in methods}
        for name, reason in lvlm.unable(asked, refusals).items():
            note(f"{name} is left out: {reason}")
            methods.remove(name)
    from sira_cli.analysis.bench import measure
    from sira_cli.analysis.experiment import Units

    requests = (runs + 1) * len(batches) * len({measure.GREEDY, *methods})
    units = Units[list[Any]](target.units, overwrite=target.overwrite, experiment="bench")
    with (
        resumable(target.units is not None, target.overwrite),
        closing(units),
        Progress.on_terminal("requests", requests) as progress,
    ):
        for report in measure.bench(
            lvlm,
            methods,
            lengths=lengths,
            batches=batches,
            runs=runs,
            image_tokens=image_tokens,
            units=units,
            on_requests=lambda count, worked: progress.advance(count, worked=worked),
        ):
            if target.output is not None:
                report.save(target.output)
        units.complete()
    if target.units is not None:
        target.units.unlink()
    show_report(report, target.as_json)


def _numbers(name: str, given: str) -> list[int]:
    """Read numbers such as `1,8`, in order."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SettingsError(f"{name} {given!r}: expected whole numbers from 1 on, such as 1,8")
    return sorted({int(part) for part in parts})


def _random_model(shape: str, model: ResearchModelOptions) -> Lvlm:
    settings = set_option.read(model.settings, [find("sira")])["sira"]
    if {*groups.given(model)} - {"device", "set"} or settings.keys() - {"k", "load.dtype"}:
        raise SettingsError("--shape is a model of its own: only --device, --set k and --set load.dtype go with it")
    with waiting(f"making random weights of {shape}"):
        from sira_cli.analysis.bench.random_models import load_shape

        return load_shape(shape, find("sira"), model.device, **settings)


@with_options(
    """
sira sweep -p demo --scenes --captions
sira sweep coco_pope_*.json --images val2014/ --write-preset best.yaml
"""
)
def sweep(
    *,
    files: list[Path] | None = argument("FILE", "POPE's question files, one per split."),
    images: groups.QuestionImages = None,
    scenes: groups.QuestionScenes = False,
    k: str | None = option(None, "Values of K: all, 1,2,4 or 1-7 (default: about 6 values)."),
    alpha: str = option("0.25,0.5,0.75,1,1.5,2", "Contrast strengths, alpha."),
    captions: bool = option(False, "Also measure captions of scenes, and choose the setting by them.", "--captions"),
    limit: int | None = option(None, "First N questions of each file, or scenes (default: 200).", metavar="N", min=1),
    batch_size: Any = groups.batches("Questions at once (default: auto on a GPU, else 1; scenes 32)."),
    output: Path | None = option(
        *(None, "Keep every answer here, to resume a stopped run.", "-o", "--output"), metavar="FILE.jsonl"
    ),
    overwrite: bool = option(False, "Replace existing answers, figures and presets.", "--overwrite"),
    plot: groups.Plot = None,
    write_preset: Path | None = option(None, "Write a preset with the best setting.", metavar="FILE.yaml"),
    as_json: groups.AsJson = False,
    model: ResearchModelOptions,
) -> None:
    """Measure SIRA over K and alpha on yes/no questions, and pick the best (the paper's Figure 3).

    Only the first token of each answer is decoded, greedily, and read by POPE's rule: "no" if it is No, not or no.
    So one prefill per question is enough for all settings. The best of many settings looks better than it is:
    check it on other questions.
    """
    from sira_cli.analysis import sweep as measured
    from sira_cli.analysis.experiment import Units
    from sira_cli.analysis.questions import in_splits
    from sira_cli.analysis.sweep_report import SweepReport
    from sira_cli.cli.terminal.fetching import check_or_fetch, images_folder
    from sira_cli.demo.questions import validation_questions
    from sira_cli.eval.benchmark import ONE_WORD

    ks = () if k in (None, "all") else measured.parse_ks(str(k))
    alphas = measured.parse_alphas(alpha)
    check_file("--output", output)  # a sweep resumes in its file, and its figure is drawn again
    check_plot(plot, overwrite or output is not None)
    check_preset_file(write_preset, overwrite)
    preset = choose_preset(model, k=ks[-1] if ks else None)
    drawn = are_drawn(preset, files, images, scenes)
    if captions and not drawn:
        raise SettingsError("--captions is for scenes, whose content is known: leave out --captions or the files")
    if drawn:
        questions = validation_questions(limit)
    else:
        folder = images_folder(images)
        questions = in_splits(files or [], folder.path, limit, ONE_WORD)
        check_or_fetch(folder, questions.pictures)
    units = Units[list[str]](output, overwrite=overwrite)
    with resumable(output is not None, overwrite), closing(units):
        known = measured.decisive(preset, questions, alphas, captions) | {"quantization": preset.load.quantization}
        units.check(known | ({"k": list(ks)} if ks else {}))
        lvlm = load_model(preset, model, "sira", pictures=() if drawn else questions.files())
        grid = measured.Grid.of(lvlm, k, alphas)
        together = batch_size or (SCENE_BATCH if drawn else None)
        events = measured.sweep(lvlm, questions, grid, units, captions=captions, batch_size=together)
        show_stages(events, len(questions.pictures))
    if units:
        report = SweepReport.of(lvlm, questions, grid, units, captions)
        show_report(report, as_json, plot=plot)
        if write_preset is not None:
            _write_preset(report, preset, write_preset)
    if units.failures:
        raise typer.Exit(3)


def are_drawn(
    preset: Preset, paths: list[Path] | None, images: str | None, scenes: bool, files: str = "POPE's question files"
) -> bool:
    """Return whether questions are about drawn scenes; else check that files and the folder of images are given."""
    from sira_cli.models.presets import BUNDLED

    drawn = scenes or (not paths and preset.model == BUNDLED)
    if drawn and (paths or images is not None):
        raise SettingsError(NOT_BOTH)
    if not drawn and (not paths or images is None):
        raise SettingsError(
            f"give {files} with --images FOLDER, or --scenes (-p demo: the bundled model on drawn scenes)"
        )
    return drawn


def _write_preset(report: SweepReport, preset: Preset, path: Path) -> None:
    measured = f"{report.pictures} scenes" if report.captions else f"{report.questions} questions"
    how = f"by sira sweep: {report.by} on {measured}"
    if not report.fulfils:
        how += "; none of its settings fulfils the rule, this one misses it by the least"
    best = preset.with_settings(k=report.best.k, alpha=report.best.alpha)
    save_preset(best, path, f"K and alpha {how}", report.best.name)


@with_options(
    """
sira drift photo.jpg
sira drift photos/ --limit 20 --plot drift.png
"""
)
def drift(
    *,
    paths: list[str] | None = argument("IMAGE", PICTURES),
    question: groups.Question = None,
    k: int | None = option(None, "Number of layers after the fork, K (default: the preset's)."),
    plot: groups.Plot = None,
    model: ResearchModelOptions,
    selection: groups.FewOptions,
    target: ReportOptions,
) -> None:
    """Measure how far SIRA's CF stream and blurred or shuffled pictures diverge from the original (Figure 4).

    Two measures are shown: after every layer, 1 - cosine similarity to the full model, at the position that
    predicts the next token; and for the next token, KL(full || reference) in nats. A question (--question) shows more
    than a caption, whose first word may always be the same. The paper does not give the strength of its blur and
    shuffle: these are ours.
    """
    check_plot(plot, target.overwrite)
    pictures = selection.selected(paths).pictures()
    preset = choose_preset(model, k=k)
    prompt = preset.prompts.caption if question is None else preset.prompts.asking(question)
    lvlm = load_model(preset, model, "sira", pictures=pictures)
    from sira_cli.analysis.drift import Divergence, DriftReport, measure_pictures
    from sira_cli.analysis.experiment import Units

    units = Units[dict[str, Divergence]]()
    show_stages(measure_pictures(lvlm, pictures, prompt, units), len(pictures))
    if units:
        show_report(DriftReport.of(lvlm, prompt, units), target.as_json, target.output, plot)
    if units.failures:
        raise typer.Exit(3)
