"""Benchmarks, asked of one model under several methods: what `sira eval` runs, without a terminal."""

from __future__ import annotations

import functools
from collections import Counter
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
from sira_cli.run.events import Advanced, Remark, StageStarted
from sira_cli.run.fetching import fetch_missing
from sira_cli.run.runner import BatchSize

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


@dataclass
class Suite:
    """Benchmarks, asked of one model under several methods; what is wrong is refused before the model is loaded.

    for event in suite.fetch():  # pictures that are on the web
        print(event)
    for event in suite.events(lvlm):
        print(event)
    for report in suite.reports:
        print(report.to_json())

    Attributes:
        benchmarks: with their questions read.
        images: the folder of their pictures; an `ImageFolder` may have a URL for those that it lacks.
        methods: by name, preset and method; see `methods_of`.
        output: the folder of the answers and the report; None: they are not kept.
        in_folders: whether each benchmark has its own folder in `output`, by its name; several need that.
        overwrite, retry_errors, batch_size, shard, engine: as for `Evaluation`.
        max_new_tokens: of each text; None: as the benchmark has it.
        verify: a second look; captions are asked for with it, and without it.
        looked_at: names of the methods that get the second look; None: all.
        able_only: leave out what the loaded model cannot do (methods, but under an `engine`) or what a method cannot
            (the second look), instead of refusing it.
        paper: show the paper's figures of the same model.
        reports: of each benchmark that is done; a shard has none.
        failures: of the pictures that have no answers, also in a shard.

    Raises:
        SettingsError: `output` holds another report, the paper does not have the model, or a name is not known here.
    """

    benchmarks: Sequence[Benchmark]
    images: ImageFolder | str | Path
    methods: Mapping[str, tuple[Preset, Method]]
    _: KW_ONLY
    output: str | Path | None = None
    in_folders: bool = False
    overwrite: bool = False
    retry_errors: bool = False
    batch_size: BatchSize | None = None
    shard: Shard | None = None
    engine: str = ""
    max_new_tokens: int | None = None
    verify: Verify | None = None
    looked_at: Sequence[str] | None = None
    able_only: bool = False
    paper: bool = False
    reports: list[EvalReport] = field(init=False, default_factory=list)
    failures: list[FailedAnswer] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        names = Counter(benchmark.name for benchmark in self.benchmarks)
        if self.output is not None and (max(names.values()) > 1 or (len(names) > 1 and not self.in_folders)):
            raise SettingsError("each benchmark needs an `output=` of its own")
        self._images = self.images if isinstance(self.images, ImageFolder) else ImageFolder(Path(self.images))
        if not self.methods:
            raise SettingsError("expected one method or more")
        preset, _ = next(iter(self.methods.values()))
        self._model_in_paper = find_model((preset.name, preset.model)) if self.paper else ""
        unknown = [name for name in self.looked_at or () if name not in self.methods]
        if unknown:
            raise SettingsError(f"{unknown[0]}: a second look is for the methods that are asked")
        if not self.overwrite:
            for benchmark in self.benchmarks:
                EvalReport.check_place(self._output(benchmark), benchmark.name)

    def _output(self, benchmark: Benchmark) -> Path | None:
        """Return the folder of a benchmark's answers."""
        if self.output is None:
            return None
        return Path(self.output, benchmark.name) if self.in_folders else Path(self.output)

    def fetch(self) -> Generator[StageStarted | Advanced | Remark, None, None]:
        """Fetch the pictures that `images` lacks, benchmark by benchmark, and yield events.

        Raises:
            PictureError: none of a benchmark's first pictures can be fetched.
        """
        for benchmark in self.benchmarks:
            names = [name for name in picture_names(benchmark) if self.shard is None or self.shard.holds(name)]
            yield from fetch_missing(self._images, names, "the same command with `retry_errors=` tries them again")

    def pictures(self) -> Iterator[Picture]:
        """Yield the benchmarks' pictures."""
        for benchmark in self.benchmarks:
            yield from pictures_of(benchmark, self._images.path)

    def events(self, model: Lvlm | Callable[[], Lvlm]) -> Generator[EvalEvent | Remark, None, None]:
        """Ask everything, and yield events.

        Args:
            model: the loaded model, or what loads it: called once, if an answer is missing or with `able_only`.

        Raises:
            SettingsError: the model can run no method, or as for `Evaluation`.
        """
        self.reports = []
        self.failures = []

        @functools.cache
        def load() -> Lvlm:
            return model() if callable(model) else model

        methods = dict(self.methods)
        if self.able_only and not self.engine:
            reasons = load().unable(methods)
            if len(reasons) == len(methods):
                raise SettingsError(next(iter(reasons.values())))
            for name, reason in reasons.items():
                yield Remark(f"{name} is left out: {reason}")
                del methods[name]
        looks: dict[str, Verify] = {}
        if self.verify is not None:
            chosen = self.methods if self.looked_at is None else self.looked_at
            looks = {name: self.verify for name in chosen if name in methods}
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
                report = evaluation.report(self._model_in_paper)
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
            self._images.path,
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
