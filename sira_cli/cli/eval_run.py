"""What the commands of `sira eval` share: let methods answer, or read answers; then figures, side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sira_cli.cli.console import note, say
from sira_cli.cli.options import (
    DecodingOptions,
    ModelOptions,
    Verbose,
    check_file,
    choose_method,
    choose_preset,
    load_model,
)
from sira_cli.cli.progress import Progress
from sira_cli.errors import SettingsError
from sira_cli.files import replacing, writing
from sira_cli.methods import find
from sira_cli.methods.base import FORK_SETTINGS

if TYPE_CHECKING:
    from sira_cli.batch import Item
    from sira_cli.eval.answers import Answers, Source
    from sira_cli.eval.base import Benchmark, Part
    from sira_cli.eval.report import EvalReport
    from sira_cli.lvlm import Lvlm
    from sira_cli.presets import Preset
    from sira_cli.sources import Shard

CONTROLS = ("greedy", "greedy+apc")  # without them a shift of the yes-rate or a cut-off passes for a gain (METHODS.md)


class Format(StrEnum):
    """How figures are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    LATEX = "latex"


class Export(StrEnum):
    """Forms of answer files."""

    OFFICIAL = "official"


@dataclass(frozen=True)
class EvalOptions:
    """Where answers come from, and what is made of them."""

    images: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Run: ask the model about the pictures that are here.")
    ] = None
    answers: Annotated[
        list[str] | None,
        typer.Option(metavar="[LABEL=]FILE...", help="Score these answers instead: of sira, or from elsewhere."),
    ] = None
    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", metavar="N", min=1, help="Pictures decoded together.")
    ] = 1
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Run on the first N only.")] = None
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Run part I of N; score all parts' files with --answers.")
    ] = None
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="Without greedy and greedy+apc beside the methods.")
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="Keeps answers, to go on where a run stopped, and report.json."
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew.")] = False
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Try again what failed in an earlier run.")] = (
        False
    )
    export: Annotated[
        Export | None, typer.Option(help="Also write the answers as the official scripts read them, into --output.")
    ] = None
    details: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="How each answer was counted, a line each.")
    ] = None
    paper: Annotated[bool, typer.Option("--paper", help="The paper's figures of this model beside.")] = False
    format: Annotated[Format, typer.Option(help="How figures are printed.")] = Format.TABLE
    json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.")] = False
    verbose: Verbose = 0


def answers_of(options: EvalOptions, at_once: int = 1) -> list[Source]:
    """The files to be scored; none if the model is to be asked.

    Raises:
        SettingsError: neither or both, or options that do not go together.
    """
    if (options.images is None) == (not options.answers):
        raise SettingsError("give --images FOLDER to ask the model, or --answers FILE to score answers: one of the two")
    _check_options(options)
    if not options.answers:
        return []
    for option, given in (("--shard", options.shard), ("--limit", options.limit)):
        if given is not None:
            raise SettingsError(f"{option} is for runs: leave it out, or give --images instead of --answers")
    from sira_cli.eval.answers import find_sources

    return find_sources(options.answers, at_once)


def _check_options(options: EvalOptions) -> None:
    if options.json and options.format not in (Format.TABLE, Format.JSON):
        raise SettingsError(f"give --json or --format {options.format.value}, not both")
    check_file("--details", options.details)
    if options.output is not None and (options.output.is_file() or options.output.suffix == ".jsonl"):
        raise SettingsError(f"--output {options.output}: expected a folder: a run writes several files")
    for option, given in (("--shard", options.shard), ("--export", options.export)):
        if given is not None and options.output is None:
            raise SettingsError(f"{option} needs --output FOLDER")


def evaluate(
    benchmark: Benchmark,
    sources: Sequence[Source],
    model: ModelOptions,
    decoding: DecodingOptions,
    options: EvalOptions,
) -> None:
    """Answers, figures, files.

    Raises:
        typer.Exit: with 3 if pictures failed, 130 if interrupted.
        SiraError: the run could not start, or not go on.
    """
    same: dict[str, str] = {}
    if sources:
        from sira_cli.eval.answers import read_source

        preset = choose_preset(model, DecodingOptions()) if options.paper else None
        answers = [read_source(benchmark, source) for source in sources]
    else:
        run = _Run(benchmark, model, decoding, options)
        preset, same = run.preset, run.same
        found = run.answers()
        if found is None:
            return
        answers = found
    paper = _paper(benchmark, preset, [one.name for one in answers]) if preset and options.paper else None
    from sira_cli.eval.report import EvalReport

    report = EvalReport.of(benchmark, answers, same=same, paper=paper)
    _write(benchmark, answers, report, options)
    _print(report, Format.JSON if options.json else options.format)
    if report.failures:
        failed = {failure.picture for failure in report.failures}
        say(f"{len(failed)} pictures failed; what was asked about them is in no figure")
        raise typer.Exit(3)


class _Run:
    """All methods, one after the other, with one loaded model."""

    def __init__(
        self, benchmark: Benchmark, model: ModelOptions, decoding: DecodingOptions, options: EvalOptions
    ) -> None:
        from sira_cli.eval.run import check_pictures
        from sira_cli.sources import Shard

        assert options.images is not None
        self._benchmark, self._model, self._options = benchmark, model, options
        self._images: Path = options.images
        self._shard: Shard | None = None if options.shard is None else Shard.parse(options.shard)
        names = list(dict.fromkeys(name.strip() for name in decoding.method.split(",")))
        if not options.no_controls:
            names = list(dict.fromkeys([*CONTROLS, *names]))
        self._decodings = _by_method(names, decoding)
        self._presets = {name: choose_preset(model, own) for name, own in self._decodings.items()}
        for name, preset in self._presets.items():
            if find(name).one_text and preset.generation.num_beams > 1:
                raise SettingsError(f"--method {name} follows one text a picture: leave out --num-beams")
        self._given = {} if decoding.max_new_tokens is None else {"max_new_tokens": decoding.max_new_tokens}
        self.preset: Preset = next(iter(self._presets.values()))
        self.same: dict[str, str] = {}
        if self.preset.generation.temperature == 0 and self.preset.generation.num_beams == 1 and "greedy" in names:
            self.same = {name: "greedy" for name in names if name == "greedy+apc"}
        check_pictures(benchmark.parts, self._images)

    def answers(self) -> list[Answers] | None:
        """Every method's, in the order of the methods; None of a shard, which is scored with the others."""
        try:
            with ExitStack() as files:
                return self._answers(files)
        except KeyboardInterrupt:
            if self._options.output is None:
                raise
            say("interrupted; what is finished is kept: run the same command again to go on")
            raise typer.Exit(130) from None

    def _answers(self, files: ExitStack) -> list[Answers] | None:
        from sira_cli.ledger import Ledger

        folder = self._options.output
        if folder is None:
            folder = Path(files.enter_context(TemporaryDirectory(prefix="sira-eval-")))
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        ledgers: dict[tuple[str, str], Ledger] = {}
        for name in self._decodings:
            for part in self._benchmark.parts if name not in self.same else ():
                path = folder / f"{name}-{part.name}{self._suffix}.jsonl"
                ledgers[name, part.name] = Ledger(path, overwrite=self._options.overwrite, by="id")
                files.callback(ledgers[name, part.name].close)
        lvlms = self._load()
        found = {name: self._one(name, by_part, ledgers) for name, by_part in lvlms.items()}
        for name, other in self.same.items():
            failures = [dataclasses.replace(failure, method=name) for failure in found[other].failures]
            found[name] = dataclasses.replace(found[other], name=name, failures=failures)
        if self._shard is None:
            return [found[name] for name in self._decodings]
        failed = sum(len(one.failures) for one in found.values())
        note(f"shard {self._options.shard} is done: when all are, score them: --answers {folder}")
        if failed:
            raise typer.Exit(3)
        return None

    @property
    def _suffix(self) -> str:
        return "" if self._shard is None else f".{self._shard.index}-of-{self._shard.count}"

    def _load(self) -> dict[str, dict[str, Lvlm]]:
        """The model under every method, with the settings of each part; the weights are there once."""
        loaded: Lvlm | None = None
        lvlms: dict[str, dict[str, Lvlm]] = {}
        for name, decoding in self._decodings.items():
            if name in self.same:
                continue
            preset, method = self._presets[name], choose_method(decoding)
            if loaded is None:
                loaded = load_model(preset, self._model, method)
            lvlms[name] = {
                part.name: loaded.under(method, self._with_settings(preset, part)) for part in self._benchmark.parts
            }
        assert loaded is not None
        from sira_cli.eval.run import check_prompts

        for part in self._benchmark.parts:
            check_prompts(loaded, part)
        return lvlms

    def _with_settings(self, preset: Preset, part: Part) -> Preset:
        """Of the preset with those of a part, but for what the command line says."""
        return preset.with_settings(**{**part.settings, **self._given})

    def _one(self, name: str, lvlms: dict[str, Lvlm], ledgers: dict[tuple[str, str], Any]) -> Answers:
        from sira_cli.eval.answers import Answers
        from sira_cli.eval.run import answer_part, units

        answers = Answers(name)
        for part in self._benchmark.parts:
            asks = units(part, self._shard)
            with Progress.shown(f"{name} {part.name}", len(asks)) as progress:
                said = answer_part(
                    lvlms[part.name],
                    part,
                    asks,
                    self._images,
                    ledgers[name, part.name],
                    batch_size=self._options.batch_size,
                    retry_errors=self._options.retry_errors,
                    on_done=_shower(progress),
                )
            answers.add(part, said)
        lvlm = lvlms[self._benchmark.parts[0].name]
        answers.settings = {
            "preset": lvlm.preset.name,
            "model": lvlm.preset.model,
            "revision": lvlm.revision,
            "quantization": lvlm.quantization,
            "dtype": lvlm.dtype,
            "method": name,
            "k": lvlm.k,
            "layers": lvlm.layers,
            "alpha": lvlm.alpha,
            "temperature": lvlm.preset.generation.temperature,
            "seed": lvlm.preset.generation.seed,
        }
        return answers


def _shower(progress: Progress) -> Callable[[Item], None]:
    """Advances, and says of each picture once that it failed."""
    said: set[str] = set()

    def show(item: Item) -> None:
        failed = item.result is not None and item.result.status == "error"
        if failed and item.result is not None and item.path not in said:
            said.add(item.path)
            say(item.result.error)
        progress.advance(error=failed, worked=item.result is not None)

    return show


def _by_method(names: Sequence[str], decoding: DecodingOptions) -> dict[str, DecodingOptions]:
    """The options as each method takes them: `--alpha` is not for greedy.

    Raises:
        SettingsError: there is no such method, or a setting that none of them has.
    """
    given = [name for name in FORK_SETTINGS if getattr(decoding, name, None) is not None]
    options = {}
    used: set[str] = set()
    for name in names:
        method = find(name)
        has = {*method.from_preset, *(field.name for field in dataclasses.fields(method))}
        used |= has if name != "greedy" else set()  # which only shows the CF stream, where one looks at both
        options[name] = dataclasses.replace(decoding, method=name, **{key: None for key in given if key not in has})
    for key in given:
        if key not in used:
            raise SettingsError(f"--{key}: none of the methods has it: {', '.join(names)}")
    return options


def _paper(benchmark: Benchmark, preset: Preset, methods: Sequence[str]) -> dict[tuple[str, str], dict[str, float]]:
    """The paper's figures of a model, by group and method.

    Raises:
        SettingsError: it has none of this model.
    """
    from sira_cli.eval.paper import paper_models, paper_row

    models = paper_models()  # ids and their presets' names
    name = preset.name if preset.name in models.values() else preset.model
    if name not in (*models, *models.values()):
        raise SettingsError(f"--paper: the paper has no figures of {name}, only of {', '.join(models.values())} (-p)")
    found = {}
    for part in benchmark.parts:
        for group in part.groups:
            for method in methods:
                if (row := paper_row(name, benchmark.name, group, method)) is not None:
                    found[group, method] = row
    return found


def _write(benchmark: Benchmark, answers: Sequence[Answers], report: EvalReport, options: EvalOptions) -> None:
    """report.json, the answers as official scripts read them, and how each was counted."""
    if options.output is not None:
        with writing(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
        with replacing(options.output / "report.json") as file:
            file.write(report.to_json().encode() + b"\n")
    if options.details is not None:
        with replacing(options.details) as file:
            for one in answers:
                for part in benchmark.parts:
                    for row in benchmark.details(part, one.texts.get(part.name, {})):
                        file.write(
                            json.dumps({"method": one.name, "part": part.name, **row}, ensure_ascii=False).encode()
                            + b"\n"
                        )
    if options.export is not None and options.output is not None:
        for one in answers:
            if one.failures:
                note(f"{one.name}: not exported, as pictures failed: official scripts need all answers")
                continue
            folder = options.output / "official" / one.name
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            benchmark.export(one.texts, folder)


def _print(report: EvalReport, form: Format) -> None:
    if form == Format.JSON:
        print(report.to_json())
    elif form == Format.TABLE:
        from sira_cli.cli.eval_table import print_report

        print_report(report)
    else:
        from sira_cli.eval.formats import to_csv, to_latex

        print(to_csv(report) if form == Format.CSV else to_latex(report), end="")
