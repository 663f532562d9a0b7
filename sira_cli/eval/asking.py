"""Let a loaded model answer a part of a benchmark: a batch run, kept in a file of records."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers.texts import UnitTexts
from sira_cli.eval.base import Ask, Part
from sira_cli.eval.settings import EvalSettings, settings_in
from sira_cli.files import relative
from sira_cli.models.lvlm import Lvlm
from sira_cli.pictures.find import Shard
from sira_cli.pictures.names import as_text
from sira_cli.pictures.single import FilePicture
from sira_cli.runs.batch import BatchRun
from sira_cli.runs.batch_size import BatchSize
from sira_cli.runs.events import Halved, PictureEvent, Skipped
from sira_cli.runs.item import Item
from sira_cli.runs.kept import Kept
from sira_cli.runs.ledger import Ledger
from sira_cli.runs.questions import KEPT


@dataclass(frozen=True)
class _AskedPicture(FilePicture):
    """A picture that may have several questions: its file is read once for consecutive ones."""

    reads: Kept[bytes] = field(default_factory=lambda: Kept(0), compare=False, repr=False)

    def read(self) -> bytes:
        """Return the file's bytes."""
        return self.reads.get(self.location, super().read)


def settings_of(lvlm: Lvlm) -> dict[str, Any]:
    """Return the settings that are equal in all records of a loaded model under its method."""
    return settings_in(BatchRun(lvlm, "caption", "").blank().configuration() | asdict(EvalSettings.of(lvlm)))


def units(part: Part, shard: Shard | None = None) -> list[Ask]:
    """Return the asks to decode, each once: one of each unit, about the shard's pictures."""
    asks: dict[str, Ask] = {}
    for ask in part.asks:
        asks.setdefault(ask.unit, ask)
    return [ask for ask in asks.values() if shard is None or shard.holds(ask.picture)]


def check_ledger(lvlm: Lvlm, part: Part, asks: Sequence[Ask], ledger: Ledger) -> None:
    """Check that answers of these settings, to these prompts, belong in a file.

    Raises:
        SettingsError: it holds others.
    """
    now = BatchRun(lvlm, part.task, "").blank().configuration() | asdict(EvalSettings.of(lvlm))
    del now["prompt"]
    prompts = {ask.unit: _prompt(lvlm, part, ask) for ask in asks}
    for record in ledger.records():
        ledger.check(now, record)
        prompt = prompts.get(record["id"], record["prompt"])
        if prompt != record["prompt"]:
            raise SettingsError(
                f"{ledger.path}: {record['id']!r} has the prompt {record['prompt']!r} in the file and {prompt!r} "
                "now: give another `output=`, or `overwrite=` to start again"
            )


def answer_part(
    lvlm: Lvlm,
    part: Part,
    asks: Sequence[Ask],
    images: Path,
    ledger: Ledger,
    *,
    batch_size: BatchSize | None = None,
    retry_errors: bool = False,
) -> Generator[PictureEvent | Halved, None, UnitTexts]:
    """Answer the asks in order, and yield events. Asks that an earlier run has answered in the file are skipped.

    Args:
        lvlm: the model, with the part's settings.
        part: of the benchmark.
        asks: from `units`.
        images: the folder of the pictures.
        ledger: keeps the records; see `check_ledger`.
        batch_size: pictures decoded together, as for `BatchRun`.
        retry_errors: ask again where an earlier run failed.

    Returns:
        All answers in the file.

    Raises:
        SiraError: about the model or the settings, or the file cannot be written.
    """

    def done(unit: str) -> str:
        return "" if retry_errors and ledger.is_error(unit) else ledger.key(unit)

    run = BatchRun(lvlm, part.task, "", batch_size=batch_size, done=done)
    more = {"part": part.name, **asdict(EvalSettings.of(lvlm))}
    ledger.begin()
    folder = images.resolve()
    beside, reads = Path(relative(folder, ledger.path.parent)), Kept[bytes](KEPT)
    events = run.answers(
        Item(
            _AskedPicture(str(folder / ask.picture), str(folder / ask.picture), reads),
            as_text((beside / ask.picture).as_posix()),
            _prompt(lvlm, part, ask),
            ask.unit,
        )
        for ask in asks
    )
    try:
        for event in events:
            if not isinstance(event, Halved | Skipped):
                ledger.append({**event.record.to_record(), "id": event.id, **more})
            yield event
    finally:
        events.close()
    ledger.finish(ask.unit for ask in asks)
    texts = UnitTexts()
    for record in ledger.records():
        texts.add(record["id"], record)
    return texts


def _prompt(lvlm: Lvlm, part: Part, ask: Ask) -> str:
    return lvlm.preset.prompts.asking(ask.prompt) if part.task == "ask" else ask.prompt
