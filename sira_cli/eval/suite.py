"""Benchmarks, asked of one model under several methods: what `sira eval` runs, without a terminal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.errors import SettingsError
from sira_cli.eval.answers import FailedAnswer
from sira_cli.eval.benchmark import Benchmark
from sira_cli.eval.evaluation import EvalEvent, Evaluation, has_captions, picture_names, pictures_of
from sira_cli.eval.paper import find_model
from sira_cli.eval.report import EvalReport
from sira_cli.look.claims import Verify
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset
from sira_cli.pictures.fetching import ImageFolder
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.run.events import Advanced, Remark
from sira_cli.run.fetching import fetch_missing
from sira_cli.run.runner import BatchSize

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


@dataclass
class Suite:
    """Benchmarks, asked of one loaded model under several methods; refused before loading, where that can be known.

    Attributes:
        benchmarks: with their questions read.
        images: the folder of their pictures; those at its URL are fetched first.
        methods: by name, preset and method; see `methods_of`.
        output: the folder of the answers and the report, of several benchmarks one below it for each (`in_folders`);
            None: they are not kept.
        overwrite, retry_errors, batch_size, shard, engine: as for `Evaluation`.
        max_new_tokens: instead of the benchmarks' own; None: theirs.
        verify: a second look, with which captions are also asked for.
        looked_at: the methods whose captions are.
        able_only: leave out methods and second looks that the model does not support, instead of refusing.
        paper: show the paper's figures of the same model.
        reports: of each benchmark, after the last event; none of a shard.
        failures: pictures without an answer, likewise.

    Raises:
        SettingsError: `output` holds another report, the paper does not know the model, or as for
            `Evaluation`.
    """

    benchmarks: Sequence[Benchmark]
    images: ImageFolder
    methods: Mapping[str, tuple[Preset, Method]]
    _: KW_ONLY
    output: Path | None = None
    in_folders: bool = False
    overwrite: bool = False
    retry_errors: bool = False
    batch_size: BatchSize | None = None
    shard: Shard | None = None
    engine: str = ""
    max_new_tokens: int | None = None
    verify: Verify | None = None
    looked_at: Sequence[str] = ()
    able_only: bool = False
    paper: bool = False
    reports: list[EvalReport] = field(init=False, default_factory=list)
    failures: list[FailedAnswer] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        preset, _ = next(iter(self.methods.values()))
        self._in_paper = find_model((preset.name, preset.model)) if self.paper else ""
        if not self.overwrite:
            for benchmark in self.benchmarks:
                EvalReport.check_place(self._output(benchmark), benchmark.name)

    def _output(self, benchmark: Benchmark) -> Path | None:
        """Return the folder of a benchmark's answers."""
        return self.output / benchmark.name if self.output is not None and self.in_folders else self.output

    def picture_names(self) -> list[str]:
        """Return the names of all pictures that are asked about."""
        names: dict[str, None] = {}
        for benchmark in self.benchmarks:
            names |= dict.fromkeys(picture_names(benchmark))
        return [name for name in names if self.shard is None or self.shard.holds(name)]

    def pictures(self) -> Iterator[Picture]:
        """Yield the benchmarks' pictures."""
        for benchmark in self.benchmarks:
            yield from pictures_of(benchmark, self.images.path)

    def events(self, load: Callable[[], Lvlm]) -> Generator[EvalEvent | Advanced | Remark, None, None]:
        """Ask the model that `load` returns, if an answer is missing; after the last event `reports` are there."""
        yield from fetch_missing(self.images, self.picture_names())
        load = functools.cache(load)
        methods = dict(self.methods)
        if self.able_only and not self.engine:
            for name, reason in load().unable(methods).items():
                yield Remark(f"{name} is left out: {reason}")
                del methods[name]
        looks: dict[str, Verify] = {}
        if self.verify is not None:
            looks = {name: self.verify for name in self.looked_at if name in methods}
        for name, reason in _without_look(methods, looks).items():
            if not self.able_only:
                raise SettingsError(reason)
            yield Remark(f"{name} has no second look: {reason}")
            del looks[name]
        evaluations = [self._evaluation(benchmark, methods, looks) for benchmark in self.benchmarks]
        for evaluation in evaluations:
            yield from evaluation.events(load)
            for answers in evaluation.answers:
                self.failures += answers.failures
            if self.shard is None:
                report = evaluation.report(self._in_paper)
                report.save_in(self._output(evaluation.benchmark))
                self.reports.append(report)

    def _evaluation(
        self,
        benchmark: Benchmark,
        methods: Mapping[str, tuple[Preset, Method]],
        looks: Mapping[str, Verify],
    ) -> Evaluation:
        """Return the evaluation of one benchmark; of several, those without captions have no second looks."""
        return Evaluation(
            benchmark,
            self.images.path,
            methods,
            output=self._output(benchmark),
            overwrite=self.overwrite,
            retry_errors=self.retry_errors,
            batch_size=self.batch_size,
            shard=self.shard,
            settings={} if self.max_new_tokens is None else {"max_new_tokens": self.max_new_tokens},
            looks=looks if len(self.benchmarks) == 1 or has_captions(benchmark) else {},
            engine=self.engine,
        )


def _without_look(methods: Mapping[str, tuple[Preset, Method]], looks: Mapping[str, Verify]) -> dict[str, str]:
    """Return why the captions of some methods cannot have their second looks."""
    reasons = {}
    for name, look in looks.items():
        try:
            combinations.check(*methods[name], verify=look.mode)
        except SettingsError as error:
            reasons[name] = str(error)
    return reasons
