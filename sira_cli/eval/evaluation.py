"""A benchmark, asked of one loaded model under several methods: resumable, in shards, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers import Answers, Deciding, read_answers
from sira_cli.eval.benchmark import AnswerFiles, Ask, Benchmark, Part
from sira_cli.eval.report import EvalReport
from sira_cli.files import make_folder
from sira_cli.look.claims import Verify
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset
from sira_cli.pictures.checks import check_images
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import located
from sira_cli.run.engines import Local
from sira_cli.run.events import Halved, PictureEvent, StageStarted, Started
from sira_cli.run.ledger import Ledger, check_same
from sira_cli.run.output import Files, Output
from sira_cli.run.records import hash_of
from sira_cli.run.run import run
from sira_cli.run.runner import BatchSize
from sira_cli.run.task import TASKS, PictureTask

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm

CAPTION = "caption"  # the task of a part
CONTROLS = ("greedy", "greedy+apc")  # without them a shift of the yes-rate, or a cut-off, passes for a gain

EvalEvent = StageStarted | PictureEvent | Halved


def with_controls(names: Sequence[str], against: str | None = None) -> list[str]:
    """Return the methods to be asked, each once, first the one that others are compared with, or the controls."""
    first = CONTROLS if against is None else (against,)
    return list(dict.fromkeys([*first, *names]))


def methods_of(preset: Preset, names: Sequence[str]) -> dict[str, tuple[Preset, Method]]:
    """Return methods with the preset's settings for them, after the controls."""
    return {name: (preset, preset.method(name)) for name in with_controls(names)}


def picture_names(benchmark: Benchmark) -> list[str]:
    """Return the names of a benchmark's pictures, each once."""
    return list(dict.fromkeys(ask.picture for part in benchmark.parts for ask in part.asks))


def pictures_of(benchmark: Benchmark, images: str | Path) -> list[Picture]:
    """Return a benchmark's pictures in a folder, each once; one of them at least is there."""
    names = picture_names(benchmark)
    check_images(Path(images), names)
    return [located(str(Path(images) / name)) for name in names]


def has_captions(benchmark: Benchmark) -> bool:
    """Return whether a benchmark asks for captions, which a second look can change."""
    return any(part.task == CAPTION for part in benchmark.parts)


def deciding(lvlm: Lvlm) -> Deciding:
    """Return the settings that decide the texts of a loaded model and are not in every record."""
    generation = lvlm.preset.generation
    decisive = lvlm.decoder.decisive(lvlm.preset.decisive())
    del decisive["generation"]["max_new_tokens"]
    return Deciding(
        beta=lvlm.sira.beta if "beta" in lvlm.decoder.deciding else getattr(lvlm.decoder, "beta", None),
        top_p=generation.top_p,
        num_beams=generation.num_beams,
        quantization=lvlm.quantization,
        dtype=lvlm.dtype,
        settings=hash_of(**decisive)[:16],
    )


@dataclass
class _PartRun:
    """A part of a benchmark under one method: a run over its pictures, one for each unit, into a file of records."""

    method: str
    part: Part
    task: PictureTask
    pictures: list[Picture]
    output: Output
    engine: Local | None = None

    @property
    def ledger(self) -> Ledger:
        """The file of records."""
        assert self.output.ledger is not None
        return self.output.ledger

    def take(self, lvlm: Lvlm, batch_size: BatchSize | None) -> None:
        """Use a loaded model, under any method, whose answers to these prompts have to belong in the file."""
        lvlm = lvlm.under(self.task.method, self.task.preset)
        lvlm.check_prompts((ask.prompt, ask.picture) for ask in self.part.asks)
        self.task = replace(self.task, preset=lvlm.preset, method=lvlm.decoder)
        self.output.more = {"part": self.part.name, **deciding(lvlm)}
        now = self.task.at(lvlm.revision).blank(lvlm).configuration() | deciding(lvlm)
        del now["prompt"]
        prompts = {picture.id: picture.asked("") for picture in self.pictures}
        for record in self.ledger.records():
            check_same(self.ledger.path, now, record)
            prompt = prompts.get(record["id"], record["prompt"])
            if prompt != record["prompt"]:
                raise SettingsError(
                    f"{self.ledger.path}: {record['id']!r} has the prompt {record['prompt']!r} in the file and "
                    f"{prompt!r} now: give another `output=`, or `overwrite=` to start again"
                )
        self.engine = Local(lvlm, batch_size)

    def events(self) -> Iterator[EvalEvent]:
        """Run the part, and yield its name and its events."""
        yield StageStarted(f"{self.method} {self.part.name}", len(self.pictures))
        with closing(run(self.task, self.pictures, self.engine, self.output)) as events:
            for event in events:
                if not isinstance(event, Started):
                    yield event


@dataclass
class Evaluation:
    """A benchmark, asked of one loaded model under several methods; refused before loading, where that can be known.

    Attributes:
        benchmark: with its questions read.
        images: the folder of its pictures.
        methods: by name, preset and method; see `methods_of`.
        output: folder of the answers, with which a stopped evaluation continues; None: a temporary one.
        overwrite: start again, and replace the answers in `output`.
        retry_errors: ask again about pictures that failed in an earlier run.
        batch_size: pictures decoded together, as for `run_pictures`.
        shard: ask only about this part of the pictures; None: all.
        settings: generation settings that replace a part's own.
        looks: second looks by method: the captions are also asked for with them, as those of a method `sira+guide`.
        engine: `vllm` if that decodes, so that what it cannot do is refused; empty: a model in this process.
        not_run: methods that reuse another's answers, because they cannot differ.
        answers: every method's answers, in the order of the methods, after the last event; in a shard only its part.

    Raises:
        SettingsError: `images` holds none of the pictures, or a method, a look and the settings do not go together.
    """

    benchmark: Benchmark
    images: str | Path
    methods: Mapping[str, tuple[Preset, Method]]
    _: KW_ONLY
    output: str | Path | None = None
    overwrite: bool = False
    retry_errors: bool = False
    batch_size: BatchSize | None = None
    shard: Shard | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    looks: Mapping[str, Verify] = field(default_factory=dict)
    engine: str = ""
    not_run: dict[str, str] = field(init=False)
    answers: list[Answers] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        pictures_of(self.benchmark, self.images)
        self._asked: dict[str, tuple[Preset, Method, Verify | None]] = {}
        for name, (preset, method) in self.methods.items():
            self._asked[name] = preset, method, None
        for name, look in self.looks.items():
            self._asked[f"{name}+{look.mode}"] = (*self.methods[name], look)
        preset, _ = next(iter(self.methods.values()))
        plain = preset.generation.temperature == 0 and preset.generation.num_beams == 1
        self.not_run = {}
        if plain and {*CONTROLS} <= {*self.methods}:
            self.not_run["greedy+apc"] = "greedy"
        for name, (preset, method, verify) in self._asked.items():
            if name not in self.not_run:
                combinations.check(preset, method, verify=None if verify is None else verify.mode, engine=self.engine)
        if self.looks and not has_captions(self.benchmark):
            raise SettingsError(
                f"`verify=` changes captions, and {self.benchmark.name} only asks questions: leave it out"
            )

    def events(self, model: Lvlm | Callable[[], Lvlm]) -> Generator[EvalEvent, None, None]:
        """Ask a loaded model, or what loads it if an answer is missing; then `answers` and `report` are there."""
        with self._opened() as runs:
            if not callable(model):
                lvlm: Lvlm | None = model
            else:
                lvlm = None if _all_answered(runs) else model()
            if lvlm is not None:
                for part_run in runs:
                    part_run.take(lvlm, self.batch_size)
            for part_run in runs:
                yield from part_run.events()
            answers: dict[str, Answers] = {}
            for name in self._asked:
                answers[name] = self._read(name, [part_run for part_run in runs if part_run.method == name])
        for name, equal in self.not_run.items():
            answers[name] = answers[equal].under(name)
        self.answers = [*answers.values()]

    def report(self, paper: str = "") -> EvalReport:
        """Return the figures of all answers, with those of a model of the paper."""
        return EvalReport.of(self.benchmark, self.answers, paper)

    def _read(self, method: str, runs: Sequence[_PartRun]) -> Answers:
        """Read a method's answers, and the settings that decided them."""
        files = AnswerFiles(method, tuple(part_run.ledger.path for part_run in runs), own=True)
        answers = read_answers(self.benchmark, files, complete=False)
        lengths = {}
        prompts = {}
        for part_run in runs:
            lengths[part_run.part.name] = part_run.task.preset.generation.max_new_tokens
            prompts[part_run.part.name] = part_run.part.asks[0].prompt
        answers.settings |= {"max_new_tokens": lengths, "prompt": prompts}
        return answers

    @contextmanager
    def _opened(self) -> Iterator[list[_PartRun]]:
        """Open and lock the files of answers until the end of the context."""
        suffix = "" if self.shard is None else f".{self.shard.index}-of-{self.shard.count}"
        with ExitStack() as stack:
            folder = Path(self.output or stack.enter_context(TemporaryDirectory(prefix="sira-eval-")))
            make_folder(folder)
            pictures: dict[tuple[str, str], list[Picture]] = {}  # methods share them
            runs = []
            for name, (own, method, verify) in self._asked.items():
                if name in self.not_run:
                    continue
                for part in self.benchmark.parts:
                    if verify is not None and part.task != CAPTION:
                        continue
                    preset = _as_decoded(own, part).with_settings(**part.settings | self.settings)
                    key = part.name, preset.prompts.ask
                    if key not in pictures:
                        pictures[key] = self._pictures(part, preset)
                    task = TASKS[part.task](preset, method, "", verify=verify)
                    path = folder / f"{name}-{part.name}{suffix}.jsonl"
                    files = Files(path, overwrite=self.overwrite, retry_errors=self.retry_errors)
                    output = stack.enter_context(Output(task, pictures[key], files, report=False))
                    runs.append(_PartRun(name, part, task, pictures[key], output))
            yield runs

    def _pictures(self, part: Part, preset: Preset) -> list[Picture]:
        """Return the shard's pictures to ask about, one for each unit; questions in a row share a file's content."""
        folder = Path(self.images).resolve()
        units: dict[str, Ask] = {}
        for ask in part.asks:
            if self.shard is None or self.shard.holds(ask.picture):
                units.setdefault(ask.unit, ask)
        prompt = preset.prompts.asking if part.task == "ask" else str
        pictures = []
        for ask in units.values():
            picture = located(str(folder / ask.picture))
            pictures.append(picture.known(prompt=prompt(ask.prompt), id=ask.unit))
        return pictures


def _as_decoded(preset: Preset, part: Part) -> Preset:
    """Return a preset whose texts are scored as decoded; only a caption's unfinished sentence may be left out."""
    plain = preset.without_text()
    if part.task != CAPTION or not preset.text.complete_sentences:
        return plain
    return plain.with_settings(complete_sentences=True)


def _all_answered(runs: Sequence[_PartRun]) -> bool:
    """Return whether an earlier run answered everything; pictures are read only if nothing is missing by name."""
    if not all(part_run.output.names_all(part_run.pictures) for part_run in runs):
        return False
    return all(part_run.output.has_all(part_run.pictures) for part_run in runs)
