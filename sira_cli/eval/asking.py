"""Let a model answer a part of a benchmark under a method: a run over its pictures, kept in a file of records."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers import EvalSettings, settings_in
from sira_cli.eval.benchmark import Ask, Part
from sira_cli.look.verify import Verify
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset
from sira_cli.pictures.cache import Cache
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.selection import KEPT
from sira_cli.pictures.sources import located
from sira_cli.run.batch import BatchSize
from sira_cli.run.events import Halved, PictureEvent, Started
from sira_cli.run.ledger import Ledger
from sira_cli.run.local_run import LocalRun
from sira_cli.run.nothing_left import NothingLeft, all_named
from sira_cli.run.records import Result
from sira_cli.run.request import Request
from sira_cli.run.run import Job, PictureRun
from sira_cli.run.store import RecordFile
from sira_cli.run.targets import Targets

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


class PartFile(RecordFile):
    """The records of a part, with the part's name and the settings that no other record has."""

    def __init__(self, ledger: Ledger, part: Part) -> None:
        super().__init__(ledger, report=False, repeated=False)
        self._part = part
        self.settings: EvalSettings | None = None  # known when the model is loaded

    def append(self, picture: Picture, result: Result) -> None:
        """Append a record."""
        assert self.settings is not None
        record = {**result.to_record(), "id": picture.id, "part": self._part.name, **asdict(self.settings)}
        self.ledger.append(record)

    def configure(self, lvlm: Lvlm, job: Job) -> dict[str, Any]:
        """Check that answers of a loaded model, to these prompts, belong in the file, and return `settings_in` them."""
        self.settings = EvalSettings.of(lvlm)
        now = LocalRun(lvlm, job.request).blank().configuration() | asdict(self.settings)
        del now["prompt"]
        prompts = {picture.id: picture.asked("") for picture in job.pictures}
        for record in self.ledger.records():
            self.ledger.check(now, record)
            prompt = prompts.get(record["id"], record["prompt"])
            if prompt != record["prompt"]:
                raise SettingsError(
                    f"{self.path}: {record['id']!r} has the prompt {record['prompt']!r} in the file and {prompt!r} "
                    "now: give another `output=`, or `overwrite=` to start again"
                )
        return settings_in(now)


class PartRun:
    """A part of a benchmark under one method.

    Attributes:
        part: of the benchmark.
        file: keeps the records.
        job: pictures, request and targets.
    """

    def __init__(
        self,
        part: Part,
        preset: Preset,
        method: Method,
        pictures: Sequence[Picture],
        ledger: Ledger,
        *,
        retry_errors: bool = False,
        verify: Verify | None = None,
    ) -> None:
        """Prepare the run."""
        self.part, self.file = part, PartFile(ledger, part)
        targets = Targets(self.file, retry_errors=retry_errors)
        self.job = Job(pictures, Request(part.task, "", verify=verify), preset, method, targets)
        self._lvlm: Lvlm | None = None
        self._settings: dict[str, Any] = {}

    def take(self, lvlm: Lvlm) -> None:
        """Use a loaded model, under any method; the runs of an evaluation share its weights."""
        self._lvlm = lvlm.under(self.job.method, self.job.preset)
        self._lvlm.check_prompts((ask.prompt, ask.picture) for ask in self.part.asks)
        self._settings = self.file.configure(self._lvlm, self.job)

    def events(self, batch_size: BatchSize | None = None) -> Generator[PictureEvent | Halved, None, None]:
        """Ask, and yield events. Asks that are answered in the file already are skipped."""
        if self._lvlm is None and not all_named(self.job):
            raise SettingsError(f"{self.file.path}: has no answer to some questions: a model is needed")
        engine: LocalRun | NothingLeft = NothingLeft({})
        if self._lvlm is not None:
            engine = LocalRun(self._lvlm, self.job.request, batch_size=batch_size, done=self.job.targets.done)
        events = PictureRun(self.job, engine).events()
        try:
            for event in events:
                if not isinstance(event, Started):
                    yield event
        finally:
            events.close()

    def records(self) -> dict[str, dict[str, Any]]:
        """Return all answers in the file, by unit."""
        return {record["id"]: record for record in self.file.ledger.records()}

    def settings(self) -> dict[str, Any]:
        """Return the settings that are equal in all records of the method; empty without a model and records."""
        record = next(self.file.ledger.records(), None)
        return self._settings or ({} if record is None else settings_in(record))


def part_pictures(part: Part, preset: Preset, images: Path, shard: Shard | None = None) -> list[Picture]:
    """Return the pictures to ask about, one for each unit; a file is read once for consecutive questions."""
    folder, reads = images.resolve(), Cache[bytes](KEPT)
    found = []
    for ask in units(part, shard):
        place = str(folder / ask.picture)
        prompt = preset.prompts.asking(ask.prompt) if part.task == "ask" else ask.prompt
        found.append(located(place).asking(prompt, ask.unit, reads))
    return list[Picture](found)


def units(part: Part, shard: Shard | None = None) -> Sequence[Ask]:
    """Return the asks to decode, one per unit, about the shard's pictures."""
    asks: dict[str, Ask] = {}
    for ask in part.asks:
        asks.setdefault(ask.unit, ask)
    return [ask for ask in asks.values() if shard is None or shard.holds(ask.picture)]
