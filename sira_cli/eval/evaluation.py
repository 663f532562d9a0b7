"""A benchmark, asked of one loaded model under several methods: resumable, in shards, without a terminal.

lvlm = load("llava-1.5-7b")
methods = methods_of(lvlm.preset, ["sira", "vcd"])
evaluation = Evaluation(Pope(["coco_pope_random.json"]), "val2014/", methods, output="pope/")
for event in evaluation.events(lvlm):
    print(event)
print(evaluation.report().to_json())
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers import Answers
from sira_cli.eval.benchmark import Benchmark
from sira_cli.eval.report import EvalReport
from sira_cli.files import make_folder
from sira_cli.look.verify import Verify
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset
from sira_cli.pictures.find import Shard, check_images
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located
from sira_cli.run.batch import BatchSize
from sira_cli.run.events import Halved, PictureEvent
from sira_cli.run.output import Files

if TYPE_CHECKING:
    from sira_cli.eval.asking import PartRun
    from sira_cli.run.lvlm import Lvlm

CAPTION = "caption"  # the task of a part
CONTROLS = ("greedy", "greedy+apc")  # without them a shift of the yes-rate, or a cut-off, passes for a gain


@dataclass(frozen=True)
class PartStarted:
    """A method begins with a part of the benchmark, of `total` units."""

    method: str
    part: str
    total: int

    @property
    def stage(self) -> str:
        """Its name on a terminal."""
        return f"{self.method} {self.part}"


EvalEvent = PartStarted | PictureEvent | Halved


def with_controls(names: Sequence[str], controls: bool = True) -> list[str]:
    """Return the methods to be asked, each once, the controls first."""
    return list(dict.fromkeys([*(CONTROLS if controls else ()), *names]))


def methods_of(preset: Preset, names: Sequence[str], controls: bool = True) -> dict[str, tuple[Preset, Method]]:
    """Return methods with the preset's settings for them, the controls first.

    Raises:
        SettingsError: no such method.
    """
    return {name: (preset, preset.method(name)) for name in with_controls(names, controls)}


def pictures_of(benchmark: Benchmark, images: str | Path) -> list[Picture]:
    """Return a benchmark's pictures in a folder, each once."""
    names = list(dict.fromkeys(ask.picture for part in benchmark.parts for ask in part.asks))
    check_images(Path(images), names)
    return [located(str(Path(images) / name)) for name in names]


def has_captions(benchmark: Benchmark) -> bool:
    """Return whether a benchmark asks for captions, which a second look can change."""
    return any(part.task == CAPTION for part in benchmark.parts)


class Evaluation:
    """A benchmark, asked of one loaded model under several methods.

    Attributes:
        pictures: of the benchmark, each once.
        not_run: methods that reuse another's answers, because they cannot differ.
        answers: every method's answers, in the order of the methods, after the last event; in a shard only its part.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        images: str | Path,
        methods: Mapping[str, tuple[Preset, Method]],
        *,
        output: str | Path | None = None,
        overwrite: bool = False,
        retry_errors: bool = False,
        batch_size: BatchSize | None = None,
        shard: Shard | None = None,
        settings: Mapping[str, Any] | None = None,
        looks: Mapping[str, Verify] | None = None,
    ) -> None:
        """Check everything that can be checked before the model is loaded.

        Args:
            benchmark: with its questions read.
            images: the folder of the pictures.
            methods: by name, preset and method; see `methods_of`.
            output: folder of the answers, with which a stopped evaluation continues; None: a temporary one.
            overwrite: start again.
            retry_errors: ask again where an earlier run failed.
            batch_size: pictures decoded together, as for `Runner`.
            shard: ask only about this part of the pictures.
            settings: generation settings that replace a part's own.
            looks: second looks that decide texts, by method: the captions of the benchmark are also asked for with
                them, as those of a method `sira+guide`.

        Raises:
            SettingsError: a method cannot follow a setting, or the benchmark asks for no captions to look at.
            PictureError: none of the pictures is there.
        """
        for preset, method in methods.values():
            combinations.check(preset, method)
        self.pictures = pictures_of(benchmark, images)
        self._benchmark, self._images, self._methods = benchmark, Path(images), dict(methods)
        self._output, self._overwrite = None if output is None else Path(output), overwrite
        self._retry_errors = retry_errors
        self._batch_size, self._shard, self._settings = batch_size, shard, dict(settings or {})
        self._looks = {f"{name}+{verify.mode}": (name, verify) for name, verify in (looks or {}).items()}
        for name, verify in self._looks.values():
            preset, method = self._methods[name]
            combinations.check(preset, method, verify=verify.mode)
        if looks and not has_captions(benchmark):
            raise SettingsError(f"`verify=` changes captions, and {benchmark.name} only asks questions: leave it out")
        generation = self.preset.generation
        plain = generation.temperature == 0 and generation.num_beams == 1
        self.not_run = {"greedy+apc": "greedy"} if plain and {*CONTROLS} <= {*methods} else {}
        self.answers: list[Answers] = []
        self._runs: dict[str, list[PartRun]] = {}  # while the files are open

    @property
    def first(self) -> tuple[Preset, Method]:
        """The first method's preset, and the method."""
        return next(iter(self._methods.values()))

    @property
    def preset(self) -> Preset:
        """The first method's preset."""
        return self.first[0]

    @contextmanager
    def opened(self) -> Iterator[list[Path]]:
        """Open and lock the files of answers until the end of the context, and yield their paths.

        Raises:
            SettingsError: a file is in use.
            DataError: a file holds no records of sira.
        """
        from sira_cli.eval.asking import PartRun, part_pictures

        with ExitStack() as stack:
            folder = self._output or Path(stack.enter_context(TemporaryDirectory(prefix="sira-eval-")))
            make_folder(folder)
            stack.callback(self._runs.clear)
            suffix = "" if self._shard is None else f".{self._shard.index}-of-{self._shard.count}"
            made: dict[tuple[str, str], list[Picture]] = {}  # methods share them
            for name, (of, verify) in ({name: (name, None) for name in self._methods} | self._looks).items():
                if name in self.not_run:
                    continue
                preset, method = self._methods[of]
                self._runs[name] = []
                for part in self._benchmark.parts:
                    if verify is not None and part.task != CAPTION:
                        continue
                    own = preset.without_text().with_settings(**part.settings | self._settings)
                    key = part.name, own.prompts.ask
                    if key not in made:
                        made[key] = part_pictures(part, own, self._images, self._shard)
                    path = folder / f"{name}-{part.name}{suffix}.jsonl"
                    files = Files(path, overwrite=self._overwrite, retry_errors=self._retry_errors)
                    run = PartRun(part, own, method, made[key], files, verify=verify)
                    stack.callback(run.output.close)
                    self._runs[name].append(run)
            yield [run.ledger.path for runs in self._runs.values() for run in runs]

    def nothing_left(self) -> bool:
        """Return whether an earlier run answered everything, so that no model is needed."""
        if not self._runs:
            with self.opened():
                return self.nothing_left()
        runs = list(itertools.chain.from_iterable(self._runs.values()))
        # By name first: pictures are read only if nothing is missing anywhere.
        return all(run.is_done() for run in runs) and all(run.nothing_left() for run in runs)

    def events(self, lvlm: Lvlm | None) -> Generator[EvalEvent, None, None]:
        """Ask, and yield events; `answers` and `report` are available afterwards.

        Args:
            lvlm: the loaded model, under any method; None if `nothing_left`.

        Raises:
            SettingsError: a file holds answers of other settings, or a prompt cannot be asked.
            SiraError: the evaluation cannot go on.
        """
        if not self._runs:
            with self.opened():
                yield from self.events(lvlm)
            return
        if lvlm is not None:
            for run in itertools.chain.from_iterable(self._runs.values()):
                run.take(lvlm)
        found: dict[str, Answers] = {}
        for name, runs in self._runs.items():
            found[name] = yield from self._ask(name, runs)
        for name, other in self.not_run.items():
            found[name] = found[other].under(name)
        self.answers = [found[name] for name in (*self._methods, *self._looks)]

    def report(self, paper: str = "") -> EvalReport:
        """Return the figures of all answers.

        Args:
            paper: a model of the paper, whose figures are shown for comparison.
        """
        return EvalReport.of(self._benchmark, self.answers, paper)

    def _ask(self, name: str, runs: Sequence[PartRun]) -> Generator[EvalEvent, None, Answers]:
        """Ask everything under one method."""
        answers = Answers(name)
        for run in runs:
            yield PartStarted(name, run.part.name, len(run.pictures))
            yield from run.events(self._batch_size)
            answers.add(self._benchmark, run.part, run.records())
        answers.settings = {
            **next(filter(None, (run.settings() for run in runs)), {}),
            "max_new_tokens": {run.part.name: run.task.preset.generation.max_new_tokens for run in runs},
            "prompt": {run.part.name: run.part.asks[0].prompt for run in runs},
        }
        return answers
