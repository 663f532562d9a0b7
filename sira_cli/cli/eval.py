"""`sira eval`: benchmarks, run and scored."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from sira_cli.cli.loading import load_in_vllm, load_model
from sira_cli.cli.options import groups
from sira_cli.cli.options.choosing import ALL, able, choose_each, choose_preset, method_names
from sira_cli.cli.options.groups import DecodingOptions, ModelOptions, argument, option
from sira_cli.cli.terminal.console import note, resumable, say, show_stages, spell, with_options_named
from sira_cli.cli.terminal.output import check_file, new_table, note_threshold, save_report, table_console
from sira_cli.errors import SettingsError
from sira_cli.eval.benchmark import Asking, Card
from sira_cli.eval.cards import CARDS, find_cards, options_of_each

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sira_cli.eval.answers import Answers
    from sira_cli.eval.benchmark import AnswerFiles, Benchmark
    from sira_cli.eval.report import EvalReport, MethodRow
    from sira_cli.look.verify import Verify
    from sira_cli.run.lvlm import Lvlm

FOR_RUNS = ("verify", "batch-size", "engine", "shard", "overwrite", "retry-errors")
EXTRAS = ("neither", "words", "length")  # left out first on a narrow terminal


@dataclass(frozen=True)
class EvalOptions(groups.Group, title="Answers and figures"):
    """Sources of answers, and output of figures."""

    images: Path | None = option(None, "Ask about the pictures in this folder.", metavar="FOLDER")
    answers: list[str] | None = option(None, "Score these answers, sira's own or others.", metavar="[LABEL=]FILE...")
    own_options: list[str] | None = option(
        None, "An option of a benchmark: rule=vcd, or pope.rule=vcd.", "--option", metavar="[NAME.]KEY=VALUE"
    )
    verify: Literal["guide"] | None = option(
        None, "Also caption under each --method with a second look (CHAIR, AMBER)."
    )
    batch_size: Any = groups.batches("Pictures at once (default: auto on a GPU, else 1).")
    engine: Literal["local", "vllm"] = option("local", "Decode here, or in vLLM (docs/vllm.md).")
    limit: int | None = option(None, "Only N questions per file (POPE), or N pictures.", metavar="N", min=1)
    shard: str | None = option(None, "Ask only part I of N; score all with --answers.", metavar="I/N")
    no_controls: bool = option(False, "Leave out the controls greedy and greedy+apc.", "--no-controls")
    output: Path | None = option(
        *(None, "Keep answers here, to resume a stopped run, and report.json.", "-o", "--output"), metavar="FOLDER"
    )
    overwrite: bool = option(False, "Start again: replace existing answers.", "--overwrite")
    retry_errors: groups.RetryErrors = False
    details: Path | None = option(None, "Write how each answer was counted.", metavar="FILE.jsonl")
    paper: bool = option(False, "Also show the paper's figures for the same model.", "--paper")
    json: bool = option(False, "Print JSON: one object per benchmark.", "--json")


@dataclass(frozen=True)
class Asked:
    """A benchmark, the folder of its pictures, that of its answers and figures, and files of answers."""

    benchmark: Benchmark
    images: Path
    output: Path | None
    sources: Sequence[AnswerFiles] = ()


@groups.with_options(
    """
sira eval pope coco_pope_*.json --images val2014/ --method sira,vcd -o pope/
sira eval chair annotations/ --answers captions.jsonl
sira eval pope,chair,amber benchmarks/ -p llava-1.5-7b --method sira,vcd -o all/
""",
    loudness=EvalOptions.title,
)
def eval_benchmarks(
    names: str | None = argument("NAME,...", f"{', '.join(CARDS)}."),
    paths: list[Path] | None = argument("PATH", "The benchmark's files or folder."),
    *,
    options: EvalOptions,
    model: ModelOptions,
    decoding: groups.MethodsOptions,
) -> None:
    """Run and score POPE, CHAIR and AMBER as their official scripts do.

    Give one benchmark's files with --images to ask the model, or with --answers to score answers. Several names, or one
    without either option: PATH is a folder that holds pope/, coco/ or amber/, and the pictures in images/.
    """
    cards = [] if names is None else find_cards([name.strip() for name in names.split(",")])
    if not paths and options.images is None and not options.answers:
        _list(cards)
        return
    spell({option.name: "--option" for card in cards for option in card.options})
    given = options_of_each(cards, options.own_options or (), answered=bool(options.answers))
    if len(cards) == 1 and (options.images is not None or options.answers):
        (card,) = cards
        files = card.files_in(paths or [])
        sources: Sequence[AnswerFiles] = ()
        _check(options, model, decoding)
        if options.answers:
            from sira_cli.eval.answers import find_files

            sources = find_files(options.answers, files if card.several else ())
        benchmark = card.open(files, Asking(options.limit, given[card.name], sources, decoding.max_new_tokens))
        asked = [Asked(benchmark, options.images or Path(), options.output, sources)]
    else:
        _check_folder(paths or [], options)
        _check(options, model, decoding)
        asked = [_in_folder(card, (paths or [])[0], given[card.name], options, decoding) for card in cards]
    for one in asked:
        _check_report(one, options.overwrite)
    reports = [_read(asked[0], options, model)] if options.answers else _ask(asked, options, model, decoding)
    if failed := {failure.picture for report in reports for failure in report.failures}:
        say(f"{len(failed)} picture{'s' * (len(failed) > 1)} failed; their questions are left out of all figures")
        raise typer.Exit(3)


def _list(cards: list[Card]) -> None:
    """Print all benchmarks, or the named ones with their options."""
    for card in cards or CARDS.values():
        print(f"{card.name}: {card.title} ({card.source})")
        data = "coco_pope_*.json" if card.several else f"{card.folder}/"
        rows = {"command": f"sira eval {card.name} {data} --images PICTURES/"}
        rows |= {name: getattr(card, name) for name in ("figures", "files", "size", "licence")} | {"from": card.url}
        if cards:
            rows |= {"answers": f"{card.answers}; sira's own; or lmms-eval's samples", "note": card.note}
        for name, value in rows.items():
            if value:
                print(f"  {name:8} {value}")
        for each in card.options if cards else ():
            default = f" (default: {each.default.strip()})" if each.default else ""
            print(f"  --option {each.name}={'|'.join(each.choices) or 'TEXT'}\n           {each.help}{default}")
    names = ",".join(card.name for card in cards or CARDS.values())
    print(f"try it:    sira demo --export scenes && sira eval {names} scenes -p demo")


# What is refused before anything is read.


def _check(options: EvalOptions, model: ModelOptions, decoding: DecodingOptions) -> None:
    """Check options that exclude each other, --shard, --output, and --details, which replaces only earlier details."""
    from sira_cli.pictures.find import Shard
    from sira_cli.pictures.rows import read_rows

    output, details = options.output, options.details
    if options.images is not None and options.answers:
        raise SettingsError("give --images FOLDER to ask the model, or --answers FILE to score answers: one of the two")
    if options.answers:
        runs = [name for name in groups.given(options) if name in FOR_RUNS]
        for name in [*runs, *(name for name in groups.given(model, decoding) if name not in ("preset", "model"))]:
            raise SettingsError(f"--{name} is for runs: leave it out, or give --images instead of --answers")
    if options.shard is not None:
        Shard.parse(options.shard)
    if details is not None:
        if details.parent != output or details.is_dir():  # the output folder itself is created if needed
            check_file("--details", details)
        if details.suffix != ".jsonl":
            raise SettingsError(f"--details {details}: expected a name that ends in .jsonl")
        _, row = next(read_rows(details), ("", None)) if details.exists() else ("", None)
        if row is not None and (not {"method", "part"} <= row.keys() or "schema" in row):
            raise SettingsError(f"--details {details}: holds something other than details of sira eval: give another")
    if output is not None and (output.is_file() or output.suffix == ".jsonl"):
        raise SettingsError(f"--output {output}: expected a folder: a run writes several files")
    if options.shard is not None and output is None:
        raise SettingsError("--shard needs --output FOLDER")


def _check_folder(paths: Sequence[Path], options: EvalOptions) -> None:
    """Check the options for a folder of benchmarks."""
    if len(paths) != 1:
        raise SettingsError(
            "give one benchmark's files with --images FOLDER to ask the model or --answers FILE to score answers, "
            f"or one PATH, a folder of benchmarks: got {len(paths)}"
        )
    if given := [name for name in ("images", "answers", "shard", "details") if getattr(options, name)]:
        raise SettingsError(
            f"--{given[0]} is for one benchmark: name it, and give --images or --answers; or leave it out"
        )
    if not paths[0].is_dir():
        raise SettingsError(f"{paths[0]}: is not a folder")


def _check_report(asked: Asked, overwrite: bool) -> None:
    """Check that a report in the output folder, which will be replaced, is of the same benchmark."""
    if asked.output is None or overwrite or not (path := asked.output / "report.json").exists():
        return
    try:
        before = json.loads(path.read_bytes())["benchmark"]
    except (OSError, ValueError, KeyError, TypeError):
        before = "something else"
    if before != asked.benchmark.name:
        raise SettingsError(f"--output: {path} holds the report of {before}: give another folder")


# Answers, from files or from a model.


def _in_folder(
    card: Card, folder: Path, given: Mapping[str, str], options: EvalOptions, decoding: DecodingOptions
) -> Asked:
    """Return a benchmark in a folder of benchmarks: `pope/`, `coco/`, `amber/`, with the pictures in `images/`."""
    data = folder / card.folder
    if not data.is_dir():
        raise SettingsError(
            f"{folder}: has no folder {card.folder} with {card.files}; to give {card.name}'s files themselves, add "
            "`images=` FOLDER to ask the model, or `answers=` FILE to score answers"
        )
    settings = {"similarity": "auto", **given} if card.name == "amber" else given
    benchmark = card.open(card.files_in([data]), Asking(options.limit, settings, (), decoding.max_new_tokens))
    return Asked(benchmark, folder / "images", None if options.output is None else options.output / card.name)


def _read(asked: Asked, options: EvalOptions, model: ModelOptions) -> EvalReport:
    """Read the answers in files, and show their figures, with the paper's of the same model."""
    from sira_cli.eval.answers import read_each
    from sira_cli.eval.report import find_model

    answers = read_each(asked.benchmark, asked.sources, not options.no_controls)
    known = {(str(one.settings["preset"]), str(one.settings["model"])) for one in answers if one.settings}
    if model.preset is not None or model.model is not None:
        preset = choose_preset(model)
        known = {(preset.name, preset.model)}
    if options.paper and len(known) != 1:
        raise SettingsError("--paper: the answers' model is unknown: give -p PRESET")
    return _show(asked, answers, find_model(known.pop()) if options.paper else "", options)


def _ask(
    asked: Sequence[Asked], options: EvalOptions, model: ModelOptions, decoding: DecodingOptions
) -> list[EvalReport]:
    """Ask one model all questions of some benchmarks, and show the figures of each; a shard has none."""
    from sira_cli.eval.evaluation import Evaluation, has_captions, pictures_of, with_controls
    from sira_cli.eval.report import find_model
    from sira_cli.look.verify import Verify
    from sira_cli.models import combinations
    from sira_cli.pictures.find import Shard

    pictures = [picture for one in asked for picture in pictures_of(one.benchmark, one.images)]
    named, every, lvlm = method_names(decoding.method), decoding.method.strip() == ALL, None
    methods = choose_each(with_controls(named, not options.no_controls), model, decoding)
    if every:  # those that the model can run, which is loaded to find them
        lvlm = load_model(methods["greedy"][0], model, methods["greedy"][1], pictures=pictures)
        methods = able(lvlm, methods)
    preset, first = next(iter(methods.values()))
    looks: dict[str, Verify] = {}
    if options.verify is not None:
        look = Verify(mode=options.verify)
        note_threshold(look, preset)
        for name in filter(methods.__contains__, named):
            try:
                combinations.check(*methods[name], verify=look.mode)
                looks[name] = look
            except SettingsError as error:
                if not every:
                    raise
                note(f"{name} has no second look: {error}")

    @functools.cache
    def load() -> Lvlm:
        if options.engine == "vllm":
            return lvlm or load_in_vllm(preset, model, first, options.batch_size, 1)
        return lvlm or load_model(preset, model, first, pictures=pictures)

    how: dict[str, Any] = {"overwrite": options.overwrite, "retry_errors": options.retry_errors}
    how |= {"batch_size": options.batch_size, "shard": options.shard and Shard.parse(options.shard)}
    how["settings"] = {} if decoding.max_new_tokens is None else {"max_new_tokens": decoding.max_new_tokens}
    evaluations = []
    for one in asked:
        own = looks if len(asked) == 1 or has_captions(one.benchmark) else {}
        evaluations.append(Evaluation(one.benchmark, one.images, methods, output=one.output, looks=own, **how))
    for name, under in methods.items() if options.engine != "local" else ():
        if name not in evaluations[0].not_run:
            combinations.check(*under, verify=options.verify, engine=options.engine)
    paper = find_model((preset.name, preset.model)) if options.paper else ""
    reports = []
    for one, evaluation in zip(asked, evaluations, strict=True):
        if options.details is not None and options.details.resolve() in map(Path.resolve, evaluation.files):
            raise SettingsError(f"--details {options.details}: answers are kept in this file: give another")
        with resumable(one.output is not None, options.overwrite):
            show_stages(evaluation.events(load))
        if options.shard is not None:
            note(f"shard {options.shard} is done: when all are, score them: --answers {one.output}")
            if any(answers.failures for answers in evaluation.answers):
                raise typer.Exit(3)
            continue
        if len(asked) > 1 and not options.json:
            table_console().print(one.benchmark.name.upper(), style="bold")
        reports.append(_show(one, evaluation.answers, paper, options))
    return reports


# Figures.


def _show(asked: Asked, answers: Sequence[Answers], paper: str, options: EvalOptions) -> EvalReport:
    """Write report.json and the details of counting, and print the figures."""
    from sira_cli.eval.report import EvalReport
    from sira_cli.files import make_folder, replacing

    benchmark, output = asked.benchmark, asked.output
    report = EvalReport.of(benchmark, answers, paper)
    if output is not None:
        make_folder(output)
        save_report(report, output / "report.json")
    if options.details is not None:
        with replacing(options.details) as file:
            for one in answers:
                for part in benchmark.parts:
                    for counted in benchmark.count(part, one.texts.get(part.name, {})):
                        record = {"method": one.name, "part": part.name, **counted.details}
                        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    if options.json:
        print(report.to_json())
    else:
        print_report(report)
    return report


def print_report(report: EvalReport) -> None:
    """Print the report to stdout; in a file, nothing is wrapped."""
    out = table_console()
    tables: dict[tuple[str, ...], list[MethodRow]] = {}  # by the figures' names
    for row in report.rows:
        tables.setdefault(tuple(row.figures), []).append(row)
    for names, rows in tables.items():
        _print_table(out, report, rows, names)
        for part in dict.fromkeys(row.part for row in rows if row.part in report.stand_ins):
            out.print(f"{part}: NOT the official figures: {report.stand_ins[part]}", style="bold", soft_wrap=True)
    for line in report.remarks():
        out.print(with_options_named(line), soft_wrap=True)


def _print_table(out: Console, report: EvalReport, rows: list[MethodRow], names: Sequence[str]) -> None:
    """Print a table; on a narrow terminal without EXTRAS, then without intervals, then without the last figures."""
    from rich.measure import Measurement

    short = [name for name in names if name not in EXTRAS]
    for shown, intervals in (names, True), (short, True), *((short[:end], False) for end in range(len(short), 0, -1)):
        table = _table(report, rows, shown, intervals, out.width // 3)
        if Measurement.get(out, out.options.update(max_width=10_000), table).maximum <= out.width:
            break
    out.print(table)
    if len(shown) < len(short):
        out.print(f"too narrow for {', '.join(short[len(shown) :])}: see --json", soft_wrap=True)


def _table(report: EvalReport, rows: list[MethodRow], names: Sequence[str], intervals: bool, widest: int) -> Table:
    """Make a table of some figures; names of methods are wrapped at `widest` characters."""
    from rich.text import Text

    from sira_cli.eval.report import AUTHORS

    table = new_table("", figures=[*names, *["p"] * bool(report.tests)], tight=True)
    labels, *figures = table.columns
    labels.overflow, labels.max_width = "fold", max(widest, 12)
    for column in figures:
        column.no_wrap = True
    for group, own in groupby(rows, key=attrgetter("group")):
        table.add_section()
        table.add_row(Text(group, "bold"))
        for row in own:
            p = "" if row.p is None else f"{row.p:.3f}" if row.p >= 0.001 else "<0.001"
            lines: list[tuple[str, Mapping[str, Any], str, str, str]] = [(f"  {row.label}", row.figures, "", p, "")]
            if row.differences and row.method not in report.not_run:
                lines.append((f"    - {report.labels[report.first]}", row.differences, "+", "", "dim"))
            if row.paper is not None:
                source = ", ".join(filter(None, ["in the paper", row.paper_mark]))
                lines.append((f"    {source}", row.paper, "", "", "dim"))
            if row.published is not None:
                lines.append((f"    {AUTHORS}", row.published, "", "", "dim"))
            for label, values, sign, last, style in lines:
                cells = [row.text(values[name], sign + report.digits(name)) if name in values else "" for name in names]
                cells = cells if intervals else [cell.partition(" ")[0] for cell in cells]
                table.add_row(Text(label), *cells, *[last] * bool(report.tests), style=style)
    return table
