"""Let a loaded model answer what a benchmark asks: a batch run, kept in a file of records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError
from sira_cli.eval.answers.answers import SAME, Said
from sira_cli.eval.base import Ask, Part
from sira_cli.files import relative
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.records import as_text, hash_of
from sira_cli.pictures.sources import Shard, Source
from sira_cli.runs.batch import BatchRun, Item
from sira_cli.runs.ledger import Ledger, configuration_of


def units(part: Part, shard: Shard | None = None) -> list[Ask]:
    """What is decoded, each once: one ask of each unit, of the shard's pictures."""
    asks: dict[str, Ask] = {}
    for ask in part.asks:
        asks.setdefault(ask.unit, ask)
    return [ask for ask in asks.values() if shard is None or shard.holds(Source(ask.picture, ask.picture))]


def more_settings(lvlm: Lvlm) -> dict[str, Any]:
    """What decides a text beside what every record of sira holds: no file of answers is allowed two of these.

    `settings` is a hash over all that is left: of the preset and the method, but for the length, which parts differ in.
    """
    decisive = lvlm.decoder.decisive(lvlm.preset)
    del decisive["generation"]["max_new_tokens"]
    generation = lvlm.preset.generation
    return {
        "beta": lvlm.sira.beta if "beta" in lvlm.decoder.from_preset else getattr(lvlm.decoder, "beta", None),
        "top_p": generation.top_p,
        "num_beams": generation.num_beams,
        "quantization": lvlm.quantization,
        "dtype": lvlm.dtype,
        "settings": hash_of(**decisive)[:16],
    }


def method_settings(lvlm: Lvlm) -> dict[str, Any]:
    """What is equal in all records of a method, for the report: as it is there where records are read again."""
    record = configuration_of(BatchRun(lvlm, "caption", "").blank()) | more_settings(lvlm)
    return {name: record[name] for name in SAME}


def check_ledger(lvlm: Lvlm, part: Part, asks: list[Ask], ledger: Ledger) -> None:
    """Whether answers of these settings, to these prompts, belong into a file.

    Raises:
        SettingsError: it holds others.
    """
    more = more_settings(lvlm)
    now = configuration_of(BatchRun(lvlm, part.task, "").blank()) | more
    del now["prompt"]
    prompts = {ask.unit: _prompt(lvlm, part, ask) for ask in asks}
    for record in ledger.records():
        ledger.check(now, record)
        prompt = prompts.get(record["id"], record["prompt"])
        if prompt != record["prompt"]:
            raise SettingsError(
                f"{ledger.path}: {record['id']!r} was asked as {record['prompt']!r} there and would be as {prompt!r} "
                "now: give another --output, or --overwrite to start anew"
            )


def answer_part(
    lvlm: Lvlm,
    part: Part,
    asks: list[Ask],
    images: Path,
    ledger: Ledger,
    *,
    batch_size: int = 1,
    retry_errors: bool = False,
    on_done: Callable[[Item], None] = lambda item: None,
) -> Said:
    """Every answer, in the order of the asks; what an earlier run has in the file is not done again.

    Args:
        lvlm: the model, with the part's settings.
        part: what is asked for.
        asks: from `units`.
        images: the folder of the pictures.
        ledger: keeps the records; see `check_ledger`.
        batch_size: pictures decoded together.
        retry_errors: ask again what failed in an earlier run.
        on_done: told about each item.

    Raises:
        SiraError: about the model or the settings, or the file cannot be written.
    """

    def done(unit: str) -> str:
        return "" if retry_errors and ledger.is_error(unit) else ledger.key(unit)

    run = BatchRun(lvlm, part.task, "", batch_size=batch_size, done=done)
    more = {"part": part.name, **more_settings(lvlm)}
    ledger.begin()
    folder = images.resolve()
    beside = Path(relative(folder, ledger.path.parent))
    items = run.answers(
        Item(
            str(folder / ask.picture),
            as_text((beside / ask.picture).as_posix()),
            _prompt(lvlm, part, ask),
            ask.unit,
        )
        for ask in asks
    )
    try:
        for item in items:
            if item.result is not None:
                ledger.append({**item.result.to_record(), "id": item.id, **more})
            on_done(item)
    finally:
        items.close()
    ledger.finish(ask.unit for ask in asks)
    said = Said()
    for record in ledger.records():
        said.add(record["id"], record)
    return said


def _prompt(lvlm: Lvlm, part: Part, ask: Ask) -> str:
    return lvlm.preset.prompts.asking(ask.prompt) if part.task == "ask" else ask.prompt
