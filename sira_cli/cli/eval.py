"""`sira eval`: benchmarks, run and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from sira_cli.cli.loading import load_in_vllm, load_model
from sira_cli.cli.options import groups
from sira_cli.cli.options.choosing import ALL, choose_each, choose_preset, method_names
from sira_cli.cli.options.groups import MethodsOptions, ModelOptions, argument, option
from sira_cli.cli.terminal.console import note, resumable, say, show_stages, spell
from sira_cli.cli.terminal.output import check_file, note_threshold, print_tables
from sira_cli.errors import SettingsError
from sira_cli.eval.benchmark import Asking, Card
from sira_cli.eval.cards import CARDS, find_cards, options_of_each

if TYPE_CHECKING:
    from sira_cli.eval.benchmark import AnswerFiles, Benchmark
    from sira_cli.eval.report import EvalReport
    from sira_cli.run.lvlm import Lvlm

FILES = {"csv": ".csv", "latex": ".tex"}  # options of tables in files, with the endings of their names
FOR_RUNS = ("verify", "batch-size", "engine", "shard", "overwrite", "retry-errors")
ANSWERS = "answers"  # in a folder of benchmarks: where answers are kept without -o, in a folder per preset


@dataclass(frozen=True)
class EvalOptions(groups.Group, title="Answers and figures"):
    """Sources of answers, and output of figures."""

    images: str | None = option(None, "Ask about the pictures in this folder, or at this URL.", metavar="FOLDER|URL")
    answers: list[str] | None = option(None, "Score these answers, sira's own or others.", metavar="[LABEL=]FILE...")
    own_options: list[str] | None = option(
        None, "An option of a benchmark: rule=vcd, or pope.rule=vcd.", "--option", metavar="[NAME.]KEY=VALUE"
    )
    against: str | None = option(
        None, "Compare with this method (default: the controls greedy and greedy+apc).", metavar="NAME"
    )
    verify: Literal["guide", "best"] | None = option(
        None, "Also caption under each --method with a second look (CHAIR, AMBER).", metavar="MODE"
    )
    batch_size: Any = groups.batches("Pictures at once (default: auto on a GPU, else 1).")
    engine: Literal["local", "vllm"] = option("local", "Decode here, or in vLLM (docs/vllm.md).")
    limit: int | None = option(None, "Only N questions per file (POPE), or N pictures.", metavar="N", min=1)
    shard: str | None = option(None, "Ask only part I of N; score all with --answers.", metavar="I/N")
    output: Path | None = option(
        *(None, "Keep answers here, to resume a stopped run, and report.json.", "-o", "--output"), metavar="FOLDER"
    )
    overwrite: bool = option(False, "Start again: replace existing answers.", "--overwrite")
    retry_errors: groups.RetryErrors = False
    paper: bool = option(False, "Also show the paper's figures for the same model.", "--paper")
    json: bool = option(False, "Print JSON: one object per benchmark.", "--json")
    csv: Path | None = option(None, "Also write the main figures: a row per method.", metavar="FILE.csv")
    latex: Path | None = option(None, "Also write them as a LaTeX table.", metavar="FILE.tex")


@groups.with_options(
    """
sira eval pope coco_pope_*.json --images val2014/ --method sira,vcd -o pope/
sira eval chair annotations/ --answers captions.jsonl
sira eval chair,amber,pope benchmarks/ -p llava-1.5-7b --method all --against greedy
""",
    loudness=EvalOptions.title,
)
def eval_benchmarks(
    names: str | None = argument("NAME,...", f"{', '.join(CARDS)}."),
    paths: list[Path] | None = argument("PATH", "The benchmark's files or folder."),
    *,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Run and score POPE, CHAIR and AMBER as their official scripts do.

    Give one benchmark's files with --images to ask the model, or with --answers to score answers. Several names, or one
    without either option: PATH is a folder that holds pope/, coco/ or amber/, and the pictures in images/. Answers are
    kept in its answers/, and several benchmarks make one table.
    """
    cards = [] if names is None else find_cards([name.strip() for name in names.split(",")])
    if not paths and options.images is None and not options.answers:
        _list(cards)
        return
    spell({option.name: "--option" for card in cards for option in card.options})
    direct = len(cards) == 1 and (options.images is not None or bool(options.answers))  # PATHs are its files
    _check(options, model, decoding, direct=direct)
    given = options_of_each(cards, options.own_options or (), answered=bool(options.answers))
    folder = None if direct else _folder(paths or [])
    files = {}
    for card in cards:
        files[card.name] = card.files_in(paths or []) if folder is None else _in_folder(card, folder)
    sources: Sequence[AnswerFiles] = ()
    if options.answers:
        from sira_cli.eval.answers import find_files

        questions = files[cards[0].name] if cards[0].several else ()
        sources = find_files(options.answers, questions, options.against)
    benchmarks = []
    for card in cards:
        asking = Asking(options.limit, given[card.name], sources, decoding.max_new_tokens, folder is not None)
        benchmarks.append(card.open(files[card.name], asking))
    if sources:
        reports = [_read(benchmarks[0], sources, model, options.output, paper=options.paper)]
    else:
        reports = _ask(benchmarks, folder, options, model, decoding)
    if reports:
        _show(reports, options)
    failed = {failure.picture for report in reports for failure in report.failures}
    if failed:
        pictures = "1 picture" if len(failed) == 1 else f"{len(failed)} pictures"
        say(f"{pictures} failed; their questions are left out of all figures")
        raise typer.Exit(3)


def _list(cards: list[Card]) -> None:
    """Print all benchmarks, or the named ones with their options."""
    for card in cards or CARDS.values():
        print(f"{card.name}: {card.title} ({card.source})")
        data = "coco_pope_*.json" if card.several else f"{card.folder}/"
        rows = {
            "command": f"sira eval {card.name} {data} --images PICTURES/",
            "figures": card.figures,
            "files": card.files,
            "size": card.size,
            "licence": card.licence,
            "from": card.url,
        }
        if cards:
            rows["answers"] = f"{card.answers}; sira's own; or lmms-eval's samples"
            rows["note"] = card.note
        for name, value in rows.items():
            if value:
                print(f"  {name:8} {value}")
        if cards:
            _list_options(card)
    names = ",".join(card.name for card in cards or CARDS.values())
    print(f"try it:    sira demo --export scenes && sira eval {names} scenes -p demo")


def _list_options(card: Card) -> None:
    for each in card.options:
        default = f" (default: {each.default.strip()})" if each.default else ""
        print(f"  --option {each.name}={'|'.join(each.choices) or 'TEXT'}\n           {each.help}{default}")


# What is refused before anything is read.


def _check(options: EvalOptions, model: ModelOptions, decoding: MethodsOptions, *, direct: bool) -> None:
    """Check options that exclude each other, or need one benchmark's files (`direct`), and files that are written."""
    output = options.output
    for name in ("answers", "shard"):
        if getattr(options, name) and not direct:
            raise SettingsError(
                f"--{name} is for one benchmark: name it, and give --images or --answers; or leave it out"
            )
    if options.images is not None and options.answers:
        raise SettingsError("give --images FOLDER to ask the model, or --answers FILE to score answers: one of the two")
    if options.answers:
        runs = [name for name in groups.given(options) if name in FOR_RUNS]
        runs += [name for name in groups.given(model, decoding) if name not in ("preset", "model")]
        for name in runs:
            raise SettingsError(f"--{name} is for runs: leave it out, or give --images instead of --answers")
    if output is not None and (output.is_file() or output.suffix == ".jsonl"):
        raise SettingsError(f"--output {output}: expected a folder: a run writes several files")
    for name, ending in FILES.items():
        file = getattr(options, name)
        check_file(f"--{name}", file)
        if file is not None and file.suffix != ending:
            raise SettingsError(f"--{name} {file}: expected a name that ends in {ending}")
        if file is not None and options.shard is not None:
            raise SettingsError(f"--{name} is for all answers: leave it out, and score all shards with --answers")
    if options.shard is not None and output is None:
        raise SettingsError("--shard needs --output FOLDER")


def _folder(paths: Sequence[Path]) -> Path:
    """Return the folder of benchmarks."""
    if len(paths) != 1:
        raise SettingsError(
            "give one benchmark's files with --images FOLDER to ask the model or --answers FILE to score answers, "
            f"or one PATH, a folder of benchmarks: got {len(paths)}"
        )
    if not paths[0].is_dir():
        raise SettingsError(f"{paths[0]}: is not a folder")
    return paths[0]


def _in_folder(card: Card, folder: Path) -> list[Path]:
    """Return the data of a benchmark in a folder of benchmarks."""
    data = folder / card.folder
    if not data.is_dir():
        raise SettingsError(
            f"{folder}: has no folder {card.folder} with {card.files}; to give {card.name}'s files themselves, add "
            "`images=` FOLDER to ask the model, or `answers=` FILE to score answers"
        )
    return card.files_in([data])


# Answers, from files or from a model.


def _read(
    benchmark: Benchmark, sources: Sequence[AnswerFiles], model: ModelOptions, output: Path | None, *, paper: bool
) -> EvalReport:
    """Report the answers in files, with the paper's figures of the same model."""
    from sira_cli.eval.answers import read_answers
    from sira_cli.eval.paper import find_model, known_model
    from sira_cli.eval.report import EvalReport

    EvalReport.check_place(output, benchmark.name)
    answers = [read_answers(benchmark, source) for source in sources]
    of_paper = ""
    given = ""
    known = {(str(one.settings["preset"]), str(one.settings["model"])) for one in answers if one.settings}
    if model.preset is not None or model.model is not None:
        preset = choose_preset(model)
        known = {(preset.name, preset.model)}
        given = known_model((preset.name, preset.model))
    if paper:
        if len(known) != 1:
            raise SettingsError("--paper: the answers' model is unknown: give -p PRESET")
        of_paper = find_model(known.pop())
    report = EvalReport.of(benchmark, answers, of_paper, given)
    report.save_in(output)
    return report


def _ask(
    benchmarks: Sequence[Benchmark],
    folder: Path | None,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> list[EvalReport]:
    """Ask one model all questions of some benchmarks, and report on each; a shard has no report."""
    from sira_cli.cli.terminal.fetching import images_folder
    from sira_cli.eval.evaluation import with_controls
    from sira_cli.eval.suite import Suite
    from sira_cli.look.claims import Verify
    from sira_cli.pictures.find import Shard

    asked = method_names(decoding.method)
    methods = choose_each(with_controls(asked, options.against), model, decoding)
    preset, first = next(iter(methods.values()))
    every = decoding.method.strip() == ALL  # that the model can run
    images = images_folder(options.images, None if folder is None else folder / "images")
    output = options.output
    if output is None and folder is not None:
        output = folder / ANSWERS / (preset.name or preset.model).replace("/", "--")
        note(f"answers are kept in {output}")
    look = None if options.verify is None else Verify(mode=options.verify)
    suite = Suite(
        benchmarks,
        images,
        methods,
        output=output,
        in_folders=folder is not None,
        overwrite=options.overwrite,
        retry_errors=options.retry_errors,
        batch_size=options.batch_size,
        shard=None if options.shard is None else Shard.parse(options.shard),
        engine="vllm" if options.engine == "vllm" else "",
        max_new_tokens=decoding.max_new_tokens,
        verify=look,
        looked_at=asked,
        able_only=every,
        paper=options.paper,
    )
    if look is not None:
        note_threshold(look, preset)

    def load() -> Lvlm:
        if options.engine == "vllm":
            return load_in_vllm(preset, model, first, options.batch_size, 1)
        return load_model(preset, model, "greedy" if every else first, pictures=[*suite.pictures()])

    show_stages(suite.fetch())
    with resumable(suite.output is not None, suite.overwrite):
        show_stages(suite.events(load))
    if suite.shard is not None:
        part = f"{suite.shard.index}/{suite.shard.count}"
        note(f"shard {part} is done: when all are, score them: --answers {options.output}")
        if suite.failures:
            raise typer.Exit(3)
    return suite.reports


def _show(reports: Sequence[EvalReport], options: EvalOptions) -> None:
    """Print the figures of reports, and write the main ones to the files that are given."""
    from sira_cli.eval.combined import Combined
    from sira_cli.files import write_whole

    combined = Combined.of(reports)
    if options.json:
        for report in reports:
            print(report.to_json())
    elif len(reports) == 1:
        print_tables(reports[0].table())
    else:
        print_tables([combined.table(), *combined.legend()])
    if options.csv is not None:
        write_whole(options.csv, combined.to_csv().encode())
    if options.latex is not None:
        write_whole(options.latex, combined.to_latex().encode())
