"""A benchmark, asked of one loaded model under several methods: resumable, in shards, without a terminal.

lvlm = load("llava-1.5-7b")
methods = methods_of(lvlm.preset, ["sira", "vcd"])
evaluation = Evaluation(Pope(["coco_pope_random.json"]), "val2014/", methods, output="pope/")
for event in evaluation.events(lvlm):
    print(event)
print(evaluation.report().to_json())
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sira_cli.eval.answers.texts import Answers
from sira_cli.eval.base import Benchmark
from sira_cli.eval.report import EvalReport
from sira_cli.files import make_folder
from sira_cli.methods import check_beams
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset
from sira_cli.pictures.find import Shard, check_images
from sira_cli.pictures.sources import located
from sira_cli.runs.batch_size import BatchSize
from sira_cli.runs.events import Halved, PictureEvent
from sira_cli.runs.ledger import Ledger

if TYPE_CHECKING:
    from sira_cli.models.lvlm import Lvlm

CONTROLS = ("greedy", "greedy+apc")  # without them a shift of the yes-rate, or a cut-off, passes for a gain


@dataclass(frozen=True)
class PartStarted:
    """A method begins with a part of the benchmark, of `total` units."""

    method: str
    part: str
    total: int


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


class Evaluation:
    """A benchmark, asked of one loaded model under several methods.

    Attributes:
        pictures: all of them, each once.
        not_run: methods whose answers are another's, from which they cannot differ.
        answers: every method's, in the order of the methods, once the events are over; those of a shard are not all.
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
    ) -> None:
        """Check everything that can be checked before the model is loaded.

        Args:
            benchmark: with its questions read.
            images: the folder of the pictures.
            methods: by name, preset and method; see `methods_of`.
            output: the folder that keeps the answers, so that the same evaluation goes on where it stopped; None: a
                temporary one.
            overwrite: start again.
            retry_errors: ask again where an earlier run failed.
            batch_size: pictures decoded together, as for `BatchRun`.
            shard: ask only about this part of the pictures.
            settings: of generation, instead of a part's own.

        Raises:
            SettingsError: a setting cannot be followed.
            PictureError: none of the pictures is there.
        """
        for preset, method in methods.values():
            check_beams(method, preset.generation.num_beams)
        images = Path(images)
        names = list(dict.fromkeys(ask.picture for part in benchmark.parts for ask in part.asks))
        check_images(images, names)
        self.pictures = [located(str(images / name)) for name in names]
        self._benchmark, self._images, self._methods = benchmark, images, dict(methods)
        self._output, self._overwrite = None if output is None else Path(output), overwrite
        self._retry_errors = retry_errors
        self._batch_size, self._shard, self._settings = batch_size, shard, dict(settings or {})
        generation = self.preset.generation
        plain = generation.temperature == 0 and generation.num_beams == 1
        self.not_run = {"greedy+apc": "greedy"} if plain and {*CONTROLS} <= {*methods} else {}
        self.answers: list[Answers] = []

    @property
    def first(self) -> tuple[Preset, Method]:
        """The first method's preset, and the method."""
        return next(iter(self._methods.values()))

    @property
    def preset(self) -> Preset:
        """The first method's preset."""
        return self.first[0]

    def files(self, folder: Path) -> dict[tuple[str, str], Path]:
        """Return the file of answers of each method and part in a folder."""
        suffix = "" if self._shard is None else f".{self._shard.index}-of-{self._shard.count}"
        return {
            (name, part.name): folder / f"{name}-{part.name}{suffix}.jsonl"
            for name in self._methods
            for part in (self._benchmark.parts if name not in self.not_run else ())
        }

    @contextmanager
    def opened(self) -> Iterator[dict[tuple[str, str], Ledger]]:
        """Open and lock the files of answers, and yield them by method and part.

        Raises:
            SettingsError: a file is in use.
            DataError: a file holds no records of sira.
        """
        with ExitStack() as stack:
            folder = self._output or Path(stack.enter_context(TemporaryDirectory(prefix="sira-eval-")))
            make_folder(folder)
            ledgers = {}
            for key, path in self.files(folder).items():
                ledgers[key] = Ledger(path, overwrite=self._overwrite, by="id")
                stack.callback(ledgers[key].close)
            yield ledgers

    def events(
        self, lvlm: Lvlm, ledgers: Mapping[tuple[str, str], Ledger] | None = None
    ) -> Generator[EvalEvent, None, None]:
        """Ask, and yield events; `answers` and `report` are available afterwards.

        Args:
            lvlm: the loaded model, under any method.
            ledgers: from `opened`, if the files are open already.

        Raises:
            SettingsError: a file holds answers of other settings, or a prompt cannot be asked.
            SiraError: the evaluation cannot go on.
        """
        if ledgers is None:
            with self.opened() as opened:
                yield from self.events(lvlm, opened)
            return
        lvlms = self._under_each_method(lvlm)
        self._check(lvlms, ledgers)
        found: dict[str, Answers] = {}
        for name, by_part in lvlms.items():
            found[name] = yield from self._ask(name, by_part, ledgers)
        for name, other in self.not_run.items():
            found[name] = found[other].under(name)
        self.answers = [found[name] for name in self._methods]

    def report(self, paper: str = "") -> EvalReport:
        """Return the figures of all answers.

        Args:
            paper: a model of the paper, whose figures are shown for comparison.
        """
        return EvalReport.of(self._benchmark, self.answers, not_run=self.not_run, paper=paper)

    def _under_each_method(self, lvlm: Lvlm) -> dict[str, dict[str, Lvlm]]:
        """Return the model under every method, with the settings of each part; they share the weights."""
        return {
            name: {
                part.name: lvlm.under(method, preset.without_text().with_settings(**part.settings | self._settings))
                for part in self._benchmark.parts
            }
            for name, (preset, method) in self._methods.items()
            if name not in self.not_run
        }

    def _check(self, lvlms: Mapping[str, Mapping[str, Lvlm]], ledgers: Mapping[tuple[str, str], Ledger]) -> None:
        """Check all methods and parts before anything is decoded."""
        from sira_cli.eval.asking import check_ledger, units

        for part in self._benchmark.parts:
            next(iter(lvlms.values()))[part.name].check_prompts((ask.prompt, ask.picture) for ask in part.asks)
            for name, by_part in lvlms.items():
                check_ledger(by_part[part.name], part, units(part, self._shard), ledgers[name, part.name])

    def _ask(
        self, name: str, lvlms: Mapping[str, Lvlm], ledgers: Mapping[tuple[str, str], Ledger]
    ) -> Generator[EvalEvent, None, Answers]:
        """Ask everything under one method."""
        from sira_cli.eval.asking import answer_part, settings_of, units

        answers = Answers(name)
        for part in self._benchmark.parts:
            asks = units(part, self._shard)
            yield PartStarted(name, part.name, len(asks))
            texts = yield from answer_part(
                lvlms[part.name],
                part,
                asks,
                self._images,
                ledgers[name, part.name],
                batch_size=self._batch_size,
                retry_errors=self._retry_errors,
            )
            answers.add(self._benchmark, part, texts)
        answers.settings = {
            **settings_of(lvlms[self._benchmark.parts[0].name]),
            "max_new_tokens": {part: own.preset.generation.max_new_tokens for part, own in lvlms.items()},
            "prompt": {part.name: part.asks[0].prompt for part in self._benchmark.parts},
        }
        return answers
