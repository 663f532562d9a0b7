"""From answers to figures: the report, what is printed, and the files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.console import note, say
from sira_cli.cli.eval_options import EvalOptions, Format
from sira_cli.cli.eval_run import Run
from sira_cli.cli.options import DecodingOptions, ModelOptions, choose_preset
from sira_cli.errors import SettingsError
from sira_cli.files import make_folder, replacing

if TYPE_CHECKING:
    from sira_cli.eval.answers.answers import AnswerFiles, Answers
    from sira_cli.eval.base import Benchmark
    from sira_cli.eval.report import EvalReport


def evaluate(
    benchmark: Benchmark,
    sources: Sequence[AnswerFiles],
    model: ModelOptions,
    decoding: DecodingOptions,
    options: EvalOptions,
) -> None:
    """Answers, figures, files.

    Raises:
        typer.Exit: with 3 if pictures failed, 130 if interrupted.
        SiraError: the run could not start, or not go on.
    """
    paper = ""
    if sources:
        answers, not_run = _read(benchmark, sources, options)
        if options.paper:
            paper = _paper_model(_models(answers, model))
    else:
        run = Run(benchmark, model, decoding, options)
        if options.paper:
            paper = _paper_model([run.preset.name, run.preset.model])
        found = run.answers()
        if found is None:
            return
        answers, not_run = found, run.not_run
    from sira_cli.eval.report import EvalReport

    report = EvalReport.of(benchmark, answers, not_run=not_run, paper=paper)
    _write(benchmark, answers, report, options)
    _print(report, Format.JSON if options.json else options.format)
    if report.failures:
        failed = {failure.picture for failure in report.failures}
        say(f"{len(failed)} picture{'s' * (len(failed) > 1)} failed; what was asked about them is in no figure")
        raise typer.Exit(3)


def _read(
    benchmark: Benchmark, sources: Sequence[AnswerFiles], options: EvalOptions
) -> tuple[list[Answers], dict[str, str]]:
    """The answers in files; those of greedy stand for greedy+apc, too, if their decoding cannot tell the two apart."""
    from sira_cli.eval.answers.answers import read_answers

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
    """Names of the model that answered, as far as they are known."""
    if model.preset is not None or model.model is not None:
        preset = choose_preset(model, DecodingOptions())
        return [preset.name, preset.model]
    known = {(str(one.settings["preset"]), str(one.settings["model"])) for one in answers if one.settings}
    if len(known) != 1:
        raise SettingsError("--paper: of which model are these answers? give -p PRESET")
    return list(known.pop())


def _paper_model(names: Sequence[str]) -> str:
    """The paper's model of one of these names.

    Raises:
        SettingsError: it has none.
    """
    from sira_cli.eval.paper import paper_models

    models = paper_models()  # ids and their presets' names
    for name in names:
        if (found := models.get(name, name)) in models.values():
            return found
    known = ", ".join(models.values())
    raise SettingsError(f"--paper: the paper has no figures of {names[0] or names[1]}, only of {known} (-p)")


def _write(benchmark: Benchmark, answers: Sequence[Answers], report: EvalReport, options: EvalOptions) -> None:
    """report.json, the answers as official scripts read them, and how each was counted."""
    if options.output is not None:
        make_folder(options.output)
        with replacing(options.output / "report.json") as file:
            file.write(report.to_json().encode() + b"\n")
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
            note(f"{one.name}: not exported, as pictures failed: official scripts need all answers")
            continue
        folder = options.output / "official" / _folder_name(one.name)
        make_folder(folder)
        benchmark.export(one.texts, folder)


def _folder_name(label: str) -> str:
    return re.sub(r"[^\w+.-]", "_", label).lstrip(".") or "_"


def _print(report: EvalReport, form: Format) -> None:
    if form == Format.JSON:
        print(report.to_json())
    elif form == Format.TABLE:
        from sira_cli.cli.eval_table import print_report

        print_report(report)
    else:
        from sira_cli.eval.formats import to_csv, to_latex

        print(to_csv(report) if form == Format.CSV else to_latex(report), end="")
