"""From answers to figures: ask the model or read files, print the report, write the files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.eval.options import EvalOptions
from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import ALL, able, choose_each, choose_preset, method_names, note_idle
from sira_cli.cli.options.common import ModelOptions
from sira_cli.cli.options.decoding import DecodingOptions
from sira_cli.cli.options.verifying import note_threshold
from sira_cli.cli.terminal.console import note, resumable, say
from sira_cli.cli.terminal.output import save_report, table_console
from sira_cli.cli.terminal.stages import show_stages
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.eval.answers import Answers
    from sira_cli.eval.benchmark import AnswerFiles, Benchmark, Card
    from sira_cli.eval.evaluation import Evaluation
    from sira_cli.eval.report import EvalReport
    from sira_cli.look.verify import Verify
    from sira_cli.methods.base import Method
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.picture import Picture
    from sira_cli.run.lvlm import Lvlm


def ask_or_read(
    benchmark: Benchmark,
    sources: Sequence[AnswerFiles],
    options: EvalOptions,
    model: ModelOptions,
    decoding: DecodingOptions,
) -> None:
    """Ask the model, or read answers; print figures and write files."""
    if sources:
        _check_report(benchmark, options.output, options.overwrite)
        answers, paper = _read(benchmark, sources, options, model)
        _end([_show(benchmark, answers, paper, options.output, options)])
        return
    assert options.images is not None
    _ask([Asked(benchmark, options.images, options.output)], options, model, decoding)


def ask_each(
    cards: Sequence[Card],
    folder: Path,
    given: Mapping[str, Mapping[str, str]],
    options: EvalOptions,
    model: ModelOptions,
    decoding: DecodingOptions,
) -> None:
    """Ask one loaded model the benchmarks in a folder: `pope/`, with `repope/` if it is there, `coco/`, `amber/`."""
    from sira_cli.eval.benchmark import Asking

    found = []
    for card in cards:
        data, settings = folder / card.folder, dict(given[card.name])
        if not data.is_dir():
            raise SettingsError(
                f"{folder}: has no folder {card.folder} with {card.files}; to give {card.name}'s files themselves, add "
                "`images=` FOLDER to ask the model, or `answers=` FILE to score answers"
            )
        if card.name == "pope" and any((folder / "repope").glob("*.json")):
            settings.setdefault("repope", str(folder / "repope"))
        if card.name == "amber":
            settings.setdefault("similarity", "auto")
        asking = Asking(options.limit, settings, max_new_tokens=decoding.max_new_tokens)
        output = None if options.output is None else options.output / card.name
        found.append(Asked(card.open(card.files_in([data]), asking), folder / "images", output))
    _ask(found, options, model, decoding)


@dataclass(frozen=True)
class Asked:
    """A benchmark to ask a model, the folder of its pictures, and that of its answers."""

    benchmark: Benchmark
    images: Path
    output: Path | None


def _check_report(benchmark: Benchmark, output: Path | None, overwrite: bool) -> None:
    """Check that a report in the output folder, which will be replaced, is of the same benchmark."""
    if output is None or overwrite or not (path := output / "report.json").exists():
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
    from sira_cli.eval.answers import read_each
    from sira_cli.eval.paper import find_model

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


def _ask(asked: Sequence[Asked], options: EvalOptions, model: ModelOptions, decoding: DecodingOptions) -> None:
    """Ask one model all questions of some benchmarks, and show the figures of each."""
    from sira_cli.eval.evaluation import Evaluation, has_captions, pictures_of
    from sira_cli.eval.paper import find_model
    from sira_cli.pictures.find import Shard

    for one in asked:
        _check_report(one.benchmark, one.output, options.overwrite)
    pictures = [picture for one in asked for picture in pictures_of(one.benchmark, one.images)]
    methods, lvlm = choose_methods(model, decoding, not options.no_controls, pictures)
    looked = looks(options, decoding, methods)
    evaluations = [
        Evaluation(
            one.benchmark,
            one.images,
            methods,
            output=one.output,
            overwrite=options.overwrite,
            retry_errors=options.retry_errors,
            batch_size=options.batch_size,
            shard=None if options.shard is None else Shard.parse(options.shard),
            settings={} if decoding.max_new_tokens is None else {"max_new_tokens": decoding.max_new_tokens},
            looks=looked if len(asked) == 1 or has_captions(one.benchmark) else {},
        )
        for one in asked
    ]
    preset = evaluations[0].preset
    paper = find_model((preset.name, preset.model)) if options.paper else ""
    reports = []
    for one, evaluation in zip(asked, evaluations, strict=True):
        with resumable(one.output is not None, options.overwrite), evaluation.opened() as files:
            for path in files:
                if options.details is not None and options.details.resolve() == path.resolve():
                    raise SettingsError(f"--details {path}: answers are kept in this file: give another")
            lvlm = _ask_one(evaluation, model, lvlm)
        if options.shard is not None:
            note(f"shard {options.shard} is done: when all are, score them: --answers {one.output}")
            if any(answers.failures for answers in evaluation.answers):
                raise typer.Exit(3)
            return
        if len(asked) > 1 and not options.json:
            table_console().print(one.benchmark.name.upper(), style="bold")
        reports.append(_show(one.benchmark, evaluation.answers, paper, one.output, options))
    _end(reports)


def choose_methods(
    model: ModelOptions, decoding: DecodingOptions, controls: bool, pictures: Sequence[Picture]
) -> tuple[dict[str, tuple[Preset, Method]], Lvlm | None]:
    """Return the methods to be asked, the controls first, each with its preset.

    With --method all, these are the methods that the model can run; to find them, it is loaded, and also returned.
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
    """Return the second look of --verify for each of the methods that --method names; none without the option."""
    if options.verify is None:
        return {}
    from sira_cli.look.verify import Verify
    from sira_cli.models import combinations

    look, found = Verify(mode=options.verify), {}
    named = [name for name in method_names(decoding.method) if name in methods]
    note_threshold(look, methods[named[0]][0])
    for name in named:
        preset, method = methods[name]
        try:
            combinations.check(preset, method, verify=look.mode)
        except SettingsError as error:
            if decoding.method.strip() != ALL:
                raise
            note(f"{name} has no second look: {error}")
            continue
        found[name] = look
    return found


def _ask_one(evaluation: Evaluation, model: ModelOptions, lvlm: Lvlm | None) -> Lvlm | None:
    """Load the model if an open evaluation has something left to ask, ask, and return the model."""
    if lvlm is None and not evaluation.nothing_left():
        preset, method = evaluation.first
        lvlm = load_model(preset, model, method, pictures=evaluation.pictures)
    show_stages(evaluation.events(lvlm))
    return lvlm


def _show(
    benchmark: Benchmark, answers: Sequence[Answers], paper: str, output: Path | None, options: EvalOptions
) -> EvalReport:
    """Write report.json and the details of counting, and print the figures."""
    from sira_cli.eval.report import EvalReport
    from sira_cli.files import make_folder, replacing

    report = EvalReport.of(benchmark, answers, paper)
    if output is not None:
        make_folder(output)
        save_report(report, output / "report.json")
    if options.details is not None:
        with replacing(options.details) as file:
            for one in answers:
                for part in benchmark.parts:
                    for row in benchmark.details(part, one.texts.get(part.name, {})):
                        record = {"method": one.name, "part": part.name, **row}
                        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    if options.json:
        print(report.to_json())
    else:
        from sira_cli.cli.eval.table import print_report

        print_report(report)
    return report


def _end(reports: Sequence[EvalReport]) -> None:
    """Say how many pictures failed."""
    failed = {failure.picture for report in reports for failure in report.failures}
    if failed:
        say(f"{len(failed)} picture{'s' * (len(failed) > 1)} failed; their questions are left out of all figures")
        raise typer.Exit(3)
