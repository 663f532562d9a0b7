"""Let a model answer a part of a benchmark under a method: a run over its pictures, kept in a file of records."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
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
from sira_cli.run.output import Files, Output
from sira_cli.run.run import Local, all_named, nothing_left, run
from sira_cli.run.task import TASKS

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


class PartRun:
    """A part of a benchmark under one method.

    Attributes:
        part: of the benchmark.
        task: what is asked.
        pictures: one for each unit.
        output: keeps the records, with the part's name and the settings that no other record has.
    """

    def __init__(
        self,
        part: Part,
        preset: Preset,
        method: Method,
        pictures: Sequence[Picture],
        files: Files,
        *,
        verify: Verify | None = None,
    ) -> None:
        """Open the file."""
        self.part, self.pictures = part, pictures
        self.task = TASKS[part.task](preset, method, "", verify=verify)
        self.output = Output(self.task, pictures, files, report=False)
        self._lvlm: Lvlm | None = None
        self._settings: dict[str, Any] = {}

    @property
    def ledger(self) -> Ledger:
        """The file of records."""
        assert self.output.ledger is not None
        return self.output.ledger

    def take(self, lvlm: Lvlm) -> None:
        """Use a loaded model, under any method; the runs of an evaluation share its weights.

        Answers of the model, to these prompts, have to belong in the file.
        """
        lvlm = self._lvlm = lvlm.under(self.task.method, self.task.preset)
        lvlm.check_prompts((ask.prompt, ask.picture) for ask in self.part.asks)
        self.task = replace(self.task, preset=lvlm.preset, method=lvlm.decoder)
        own = asdict(EvalSettings.of(lvlm))
        self.output.more = {"part": self.part.name, **own}
        now = self.task.at(lvlm.revision).blank(lvlm).configuration() | own
        del now["prompt"]
        prompts = {picture.id: picture.asked("") for picture in self.pictures}
        for record in self.ledger.records():
            self.ledger.check(now, record)
            prompt = prompts.get(record["id"], record["prompt"])
            if prompt != record["prompt"]:
                raise SettingsError(
                    f"{self.ledger.path}: {record['id']!r} has the prompt {record['prompt']!r} in the file and "
                    f"{prompt!r} now: give another `output=`, or `overwrite=` to start again"
                )
        self._settings = settings_in(now)

    def is_done(self) -> bool:
        """Return whether every question has an answer in the file, by name."""
        return all_named(self.pictures, self.output)

    def nothing_left(self) -> bool:
        """Return whether an earlier run has answered everything, so that no model is needed."""
        return nothing_left(self.task, self.pictures, self.output)

    def events(self, batch_size: BatchSize | None = None) -> Generator[PictureEvent | Halved, None, None]:
        """Ask, and yield events. Asks that are answered in the file already are skipped."""
        if self._lvlm is None and not self.is_done():
            raise SettingsError(f"{self.ledger.path}: has no answer to some questions: a model is needed")
        engine = None if self._lvlm is None else Local(self._lvlm, batch_size)
        with closing(run(self.task, self.pictures, engine, self.output)) as events:
            for event in events:
                if not isinstance(event, Started):
                    yield event

    def records(self) -> dict[str, dict[str, Any]]:
        """Return all answers in the file, by unit."""
        return {record["id"]: record for record in self.ledger.records()}

    def settings(self) -> dict[str, Any]:
        """Return the settings that are equal in all records of the method; empty without a model and records."""
        record = next(self.ledger.records(), None)
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
