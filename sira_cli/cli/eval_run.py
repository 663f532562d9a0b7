"""From answers to figures: ask the model or read files, print the report, write the files."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.choosing import ALL, able, choose_each, choose_preset, method_names, note_idle
from sira_cli.cli.console import note, note_halved, resumable, say
from sira_cli.cli.decoding_options import DecodingOptions
from sira_cli.cli.eval_options import EvalOptions, Format
from sira_cli.cli.loading import load_model
from sira_cli.cli.options import ModelOptions
from sira_cli.cli.output import save_report
from sira_cli.cli.progress import Progress
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.eval.answers.read import AnswerFiles
    from sira_cli.eval.answers.texts import Answers
    from sira_cli.eval.base import Benchmark
    from sira_cli.eval.evaluation import Evaluation
    from sira_cli.eval.report import EvalReport
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.pictures.picture import Picture


def evaluate(
    benchmark: Benchmark,
    sources: Sequence[AnswerFiles],
    model: ModelOptions,
    decoding: DecodingOptions,
    options: EvalOptions,
) -> None:
    """Ask the model, or read answers; print figures and write files.

    Raises:
        typer.Exit: with 3 if pictures failed, 130 if interrupted.
        SiraError: the run could not start or continue.
    """
    from sira_cli.eval.report import EvalReport

    _check_report(benchmark, options)
    if sources:
        answers, not_run = _read(benchmark, sources, options)
        paper = _paper_model(_models(answers, model)) if options.paper else ""
    else:
        evaluation, lvlm = _evaluation(benchmark, model, decoding, options)
        preset = evaluation.preset
        note_idle(decoding, preset)
        paper = _paper_model([preset.name, preset.model]) if options.paper else ""
        _ask(evaluation, model, options, lvlm)
        answers, not_run = evaluation.answers, evaluation.not_run
        if options.shard is not None:
            note(f"shard {options.shard} is done: when all are, score them: --answers {options.output}")
            if any(one.failures for one in answers):
                raise typer.Exit(3)
            return
    report = EvalReport.of(benchmark, answers, not_run=not_run, paper=paper)
    _write(benchmark, answers, report, options)
    _print(report, "json" if options.json else options.format)
    if report.failures:
        failed = {failure.picture for failure in report.failures}
        say(f"{len(failed)} picture{'s' * (len(failed) > 1)} failed; their questions are left out of all figures")
        raise typer.Exit(3)


def _check_report(benchmark: Benchmark, options: EvalOptions) -> None:
    """Check that a report in the output folder is of the same benchmark: it will be replaced.

    Raises:
        SettingsError: it is another benchmark's, or something else.
    """
    if options.output is None or options.overwrite or not (path := options.output / "report.json").exists():
        return
    try:
        there = json.loads(path.read_bytes())["benchmark"]
    except (OSError, ValueError, KeyError, TypeError):
        there = "something else"
    if there != benchmark.name:
        raise SettingsError(f"--output: {path} holds the report of {there}: give another folder")


def _evaluation(
    benchmark: Benchmark, model: ModelOptions, decoding: DecodingOptions, options: EvalOptions
) -> tuple[Evaluation, Lvlm | None]:
    """Turn the options into an evaluation, checked before the model is loaded.

    With --method all, the model is loaded to find the methods that it can run, and is also returned.
    """
    from sira_cli.eval.evaluation import Evaluation, with_controls
    from sira_cli.pictures.find import Shard

    assert options.images is not None
    names = with_controls(method_names(decoding.method), not options.no_controls)
    chosen = choose_each(names, model, decoding)
    make = functools.partial(
        Evaluation,
        benchmark,
        options.images,
        output=options.output,
        overwrite=options.overwrite,
        retry_errors=options.retry_errors,
        batch_size=options.batch_size,
        shard=None if options.shard is None else Shard.parse(options.shard),
        settings={} if decoding.max_new_tokens is None else {"max_new_tokens": decoding.max_new_tokens},
    )
    if decoding.method.strip() != ALL:
        return make(chosen), None
    preset, greedy = chosen["greedy"]
    pictures = make({"greedy": (preset, greedy)}).pictures
    lvlm = load_model(preset, model, greedy, pictures=pictures)
    return make(able(lvlm, chosen)), lvlm


def _ask(evaluation: Evaluation, model: ModelOptions, options: EvalOptions, lvlm: Lvlm | None) -> None:
    """Ask all questions, and show the progress.

    Raises:
        typer.Exit: with 130 if interrupted.
    """
    with resumable(options.output is not None), evaluation.opened() as files:
        for path in files:
            if options.details is not None and options.details.resolve() == path.resolve():
                raise SettingsError(f"--details {path}: answers are kept in this file: give another")
        listen(evaluation, lvlm or loaded_for(evaluation, model, evaluation.pictures))


def loaded_for(evaluation: Evaluation, model: ModelOptions, pictures: Sequence[Picture]) -> Lvlm | None:
    """Load the model if an open evaluation has something left to ask.

    Args:
        evaluation: in `opened`.
        model: the command line's options.
        pictures: that will be asked about, for a note about the bundled model.
    """
    if evaluation.nothing_left(dtype=model.dtype, trust_remote_code=model.trust_remote_code):
        return None
    preset, method = evaluation.first
    return load_model(preset, model, method, pictures=pictures)


def listen(evaluation: Evaluation, lvlm: Lvlm | None) -> None:
    """Show a bar per method and part, and report each failed picture once."""
    from sira_cli.eval.evaluation import PartStarted
    from sira_cli.runs.events import Failed, Halved, Skipped

    said: set[str] = set()
    with ExitStack() as bars, closing(evaluation.events(lvlm)) as events:
        progress = Progress("", 0, silent=True)
        for event in events:
            if isinstance(event, PartStarted):
                bars.close()
                said.clear()
                progress = bars.enter_context(Progress.shown(f"{event.method} {event.part}", event.total))
            elif isinstance(event, Halved):
                note_halved(event)
            else:
                failed = isinstance(event, Failed)
                if isinstance(event, Failed) and event.picture.location not in said:
                    said.add(event.picture.location)
                    say(event.record.error)
                progress.advance(error=failed, worked=not isinstance(event, Skipped))


def _read(
    benchmark: Benchmark, sources: Sequence[AnswerFiles], options: EvalOptions
) -> tuple[list[Answers], dict[str, str]]:
    """Read the answers in files. Greedy's also stand for greedy+apc, if their decoding makes the two equal."""
    from sira_cli.eval.answers.read import read_answers

    if options.export is not None:
        folders = [_folder_name(source.label) for source in sources]
        for source, folder in zip(sources, folders, strict=True):
            if folders.count(folder) > 1:
                raise SettingsError(
                    f"--export: {source.label!r} and another label would both go to {folder}: rename one"
                )
    answers = [read_answers(benchmark, source) for source in sources]
    names = [one.name for one in answers]
    first = answers[0]
    plain = (first.settings.get("method"), first.settings.get("temperature"), first.settings.get("num_beams"))
    if options.no_controls or "greedy+apc" in names or plain != ("greedy", 0, 1) or first.name != "greedy":
        return answers, {}
    return [first, first.under("greedy+apc"), *answers[1:]], {"greedy+apc": "greedy"}


def _models(answers: Sequence[Answers], model: ModelOptions) -> list[str]:
    """Return the known names of the model that answered."""
    if model.preset is not None or model.model is not None:
        preset = choose_preset(model)
        return [preset.name, preset.model]
    known = {(str(one.settings["preset"]), str(one.settings["model"])) for one in answers if one.settings}
    if len(known) != 1:
        raise SettingsError("--paper: the answers' model is unknown: give -p PRESET")
    return list(known.pop())


def _paper_model(names: Sequence[str]) -> str:
    """Return the paper's model of one of these names.

    Raises:
        SettingsError: the paper has none of them.
    """
    from sira_cli.eval.paper import paper_models

    models = paper_models()  # ids and their presets' names
    for name in names:
        if (found := models.get(name, name)) in models.values():
            return found
    known = ", ".join(models.values())
    raise SettingsError(f"--paper: the paper has no figures for {names[0] or names[1]}, only for {known} (-p)")


def _write(benchmark: Benchmark, answers: Sequence[Answers], report: EvalReport, options: EvalOptions) -> None:
    """Write report.json, the answers in the official scripts' format, and the details of counting."""
    from sira_cli.files import make_folder, replacing

    if options.output is not None:
        make_folder(options.output)
        save_report(report, options.output / "report.json")
    if options.details is not None:
        with replacing(options.details) as file:
            for one in answers:
                for part in benchmark.parts:
                    for row in benchmark.details(part, one.texts.get(part.name, {})):
                        record = {"method": one.name, "part": part.name, **row}
                        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    if options.export is None or options.output is None:
        return
    for one in answers:
        if one.failures:
            note(f"{one.name}: not exported, because pictures failed: official scripts need all answers")
            continue
        folder = options.output / "official" / _folder_name(one.name)
        make_folder(folder)
        benchmark.export(one.texts, folder)


def _folder_name(label: str) -> str:
    return re.sub(r"[^\w+.-]", "_", label).lstrip(".") or "_"


def _print(report: EvalReport, form: Format) -> None:
    if form == "json":
        print(report.to_json())
    elif form == "table":
        from sira_cli.cli.eval_table import print_report

        print_report(report)
    else:
        from sira_cli.eval.formats import to_csv, to_latex

        print(to_csv(report) if form == "csv" else to_latex(report), end="")
