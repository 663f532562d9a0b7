"""From answers to figures: ask the model or read files, print the report, write the files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.eval.options import EvalOptions, Format
from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import ALL, able, choose_each, choose_preset, method_names, note_idle
from sira_cli.cli.options.common import ModelOptions
from sira_cli.cli.options.decoding import DecodingOptions
from sira_cli.cli.options.verifying import note_threshold, with_objects
from sira_cli.cli.terminal.console import note, resumable, say
from sira_cli.cli.terminal.output import save_report
from sira_cli.cli.terminal.stages import show_stages
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.eval.answers.read import AnswerFiles
    from sira_cli.eval.answers.texts import Answers
    from sira_cli.eval.base import Benchmark
    from sira_cli.eval.evaluation import Evaluation
    from sira_cli.eval.report import EvalReport
    from sira_cli.methods.base import Method
    from sira_cli.models.loading.preset import Preset
    from sira_cli.models.look.verify import Verify
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.pictures.picture import Picture


def ask_or_read(
    benchmark: Benchmark,
    sources: Sequence[AnswerFiles],
    options: EvalOptions,
    model: ModelOptions,
    decoding: DecodingOptions,
) -> None:
    """Ask the model, or read answers; print figures and write files.

    Args:
        benchmark: with its questions.
        sources: the files to score; empty if the model is to be asked.
        options, model, decoding: the command line's.

    Raises:
        typer.Exit: with 3 if pictures failed, 130 if interrupted.
        SiraError: the run could not start or continue.
    """
    from sira_cli.eval.report import EvalReport

    _check_report(benchmark, options)
    if sources:
        answers, paper = _read(benchmark, sources, options, model)
    else:
        answers, paper = _ask(benchmark, options, model, decoding)
    if options.shard is not None:
        note(f"shard {options.shard} is done: when all are, score them: --answers {options.output}")
        if any(one.failures for one in answers):
            raise typer.Exit(3)
        return
    report = EvalReport.of(benchmark, answers, paper)
    _write(benchmark, answers, report, options)
    _print(report, "json" if options.json else options.format)
    if report.failures:
        failed = {failure.picture for failure in report.failures}
        say(f"{len(failed)} picture{'s' * (len(failed) > 1)} failed; their questions are left out of all figures")
        raise typer.Exit(3)


def _check_report(benchmark: Benchmark, options: EvalOptions) -> None:
    """Check that a report in the output folder, which will be replaced, is of the same benchmark."""
    if options.output is None or options.overwrite or not (path := options.output / "report.json").exists():
        return
    try:
        there = json.loads(path.read_bytes())["benchmark"]
    except (OSError, ValueError, KeyError, TypeError):
        there = "something else"
    if there != benchmark.name:
        raise SettingsError(f"--output: {path} holds the report of {there}: give another folder")


def _read(
    benchmark: Benchmark, sources: Sequence[AnswerFiles], options: EvalOptions, model: ModelOptions
) -> tuple[list[Answers], str]:
    """Read the answers in files, and return them with the paper's model, if its figures are asked for."""
    from sira_cli.eval.answers.read import read_each
    from sira_cli.eval.paper import find_model

    if options.export is not None:
        folders = [_folder_name(source.label) for source in sources]
        for source, folder in zip(sources, folders, strict=True):
            if folders.count(folder) > 1:
                raise SettingsError(
                    f"--export: {source.label!r} and another label would both go to {folder}: rename one"
                )
    answers = read_each(benchmark, sources, not options.no_controls)
    if not options.paper:
        return answers, ""
    known = {(str(one.settings["preset"]), str(one.settings["model"])) for one in answers if one.settings}
    if model.preset is not None or model.model is not None:
        preset = choose_preset(model)
        known = {(preset.name, preset.model)}
    if len(known) != 1:
        raise SettingsError("--paper: the answers' model is unknown: give -p PRESET")
    return answers, find_model(known.pop())


def _ask(
    benchmark: Benchmark, options: EvalOptions, model: ModelOptions, decoding: DecodingOptions
) -> tuple[list[Answers], str]:
    """Ask the model all questions, and return its answers with the paper's model, if its figures are asked for.

    Raises:
        typer.Exit: with 130 if interrupted.
    """
    from sira_cli.eval.evaluation import Evaluation, pictures_of
    from sira_cli.eval.paper import find_model
    from sira_cli.pictures.find import Shard

    assert options.images is not None
    pictures = pictures_of(benchmark, options.images)
    methods, lvlm = choose_methods(model, decoding, not options.no_controls, pictures)
    evaluation = Evaluation(
        benchmark,
        options.images,
        methods,
        output=options.output,
        overwrite=options.overwrite,
        retry_errors=options.retry_errors,
        batch_size=options.batch_size,
        shard=None if options.shard is None else Shard.parse(options.shard),
        settings={} if decoding.max_new_tokens is None else {"max_new_tokens": decoding.max_new_tokens},
        looks=looks(options, decoding, methods),
    )
    preset = evaluation.preset
    paper = find_model((preset.name, preset.model)) if options.paper else ""
    with resumable(options.output is not None, options.overwrite), evaluation.opened() as files:
        for path in files:
            if options.details is not None and options.details.resolve() == path.resolve():
                raise SettingsError(f"--details {path}: answers are kept in this file: give another")
        ask(evaluation, model, lvlm)
    return evaluation.answers, paper


def choose_methods(
    model: ModelOptions, decoding: DecodingOptions, controls: bool, pictures: Sequence[Picture]
) -> tuple[dict[str, tuple[Preset, Method]], Lvlm | None]:
    """Return the methods to be asked, the controls first, each with its preset.

    With --method all, these are the methods that the model can run; to find them, it is loaded, and also returned.

    Args:
        model, decoding: the command line's options.
        controls: whether to add them.
        pictures: pictures of the questions, for a note about the bundled model.
    """
    from sira_cli.eval.evaluation import with_controls

    chosen = choose_each(with_controls(method_names(decoding.method), controls), model, decoding)
    note_idle(decoding, next(iter(chosen.values()))[0])
    if decoding.method.strip() != ALL:
        return chosen, None
    preset, greedy = chosen["greedy"]
    lvlm = load_model(preset, model, greedy, pictures=pictures)
    return able(lvlm, chosen), lvlm


def looks(
    options: EvalOptions, decoding: DecodingOptions, methods: Mapping[str, tuple[Preset, Method]]
) -> dict[str, Verify]:
    """Return the second look of --verify for each of the methods that --method names; none without the option.

    Raises:
        SettingsError: it does not fit a method that is named.
    """
    if options.verify is None:
        return {}
    from sira_cli.models.look.verify import Verify

    look, found = Verify(mode=options.verify), {}
    named = [name for name in method_names(decoding.method) if name in methods]
    note_threshold(look, methods[named[0]][0])
    for name in named:
        preset, method = methods[name]
        try:
            look.check(method, preset.generation.num_beams, words=False, choices=False, compiled=False)
        except SettingsError as error:
            if decoding.method.strip() != ALL:
                raise
            note(f"{name} has no second look: {error}")
            continue
        found[name] = with_objects(look, None, preset)
    return found


def ask(evaluation: Evaluation, model: ModelOptions, lvlm: Lvlm | None) -> Lvlm | None:
    """Load the model if an open evaluation has something left to ask, ask, and return the model.

    Args:
        evaluation: in `opened`.
        model: the command line's options.
        lvlm: the model, if it is loaded.
    """
    if lvlm is None and not evaluation.nothing_left(dtype=model.dtype, trust_remote_code=model.trust_remote_code):
        preset, method = evaluation.first
        lvlm = load_model(preset, model, method, pictures=evaluation.pictures)
    show_stages(evaluation.events(lvlm))
    return lvlm


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
        from sira_cli.cli.eval.table import print_report

        print_report(report)
    else:
        from sira_cli.eval.formats import to_csv, to_latex

        print(to_csv(report) if form == "csv" else to_latex(report), end="")
