"""Measure the cost of large files of records: `python -m tools.ledger --records 1000000`.

The file is written as `sira caption -o` writes it, one picture in a hundred as failed. Then a fresh process treats
the file like the same command with `--retry-errors`: it opens it, looks up every picture, writes records of the
failed ones, and puts all in order. No picture is read and nothing is decoded: this is the file's part alone. Another
fresh process compares the file with a second one, in which every other text is different, as `sira compare` does.
Memory is read from /proc, so this needs Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sira_cli.analysis import compare as comparing
from sira_cli.data.records.ledger import Ledger
from sira_cli.data.records.record import Result
from sira_cli.demo.scene_report import markdown
from sira_cli.demo.world import OBJECTS

RECORDS = 1_000_000
FAILED = 100  # one picture in this many
WORDS = 40  # of a caption: as many as the bundled model's have


@dataclass(frozen=True)
class Phase:
    """A part of the run.

    Attributes:
        name: of the step.
        seconds: of processor time.
        peak_bytes: the most memory up to its end, less the process's memory before it opened the file.
    """

    name: str
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class LedgerReport:
    """The measurements.

    Attributes:
        records, file_bytes: of the file before it was opened.
        device: the processor.
        phases: in turn.
    """

    records: int
    file_bytes: int
    device: str
    phases: tuple[Phase, ...]

    @classmethod
    def from_json(cls, text: str) -> LedgerReport:
        """Make a report from the JSON of `to_json`."""
        record = json.loads(text)
        del record["schema"]
        return cls(**record | {"phases": tuple(Phase(**phase) for phase in record["phases"])})

    def to_json(self) -> str:
        """Return one JSON object, `sira.ledger/1`."""
        return json.dumps({"schema": "sira.ledger/1", **asdict(self)}, indent=1) + "\n"

    def table(self) -> str:
        """Return the report in Markdown."""
        rows = [[f"{self.records:,} records of {self.file_bytes / self.records:.0f} bytes", "seconds", "memory"]]
        rows += [[each.name, f"{each.seconds:.1f}", f"{each.peak_bytes / 1e6:.0f} MB"] for each in self.phases]
        return f"{markdown(rows)}\n\nProcessor time on {self.device}; most memory so far, on top of the program's own."


def name_of(number: int) -> str:
    """Return a picture's name in its record."""
    return f"photos/{number // 1000:05}/{number:08}.jpg"


def record_of(number: int, *, failed: bool = False) -> dict[str, Any]:
    """Return a record like the bundled model's: hashes for its key and its picture, and a text of its own."""
    words = random.Random(number).choices(list(OBJECTS), k=WORDS)
    result = Result(
        schema="sira.caption/1",
        key=hashlib.sha256(f"key {number}".encode()).hexdigest(),
        file_name=name_of(number),
        status="error" if failed else "ok",
        text="" if failed else f"{' '.join(words)}.",
        error="cannot identify image file" if failed else "",
        prompt="Please describe this image in detail.",
        preset="demo",
        model="bundled",
        revision="folder-694082899023",
        method="sira",
        k=7,
        layers=8,
        alpha=0.5,
        max_new_tokens=128,
        temperature=0.0,
        seed=0,
        finish_reason="error" if failed else "stop",
        image_tokens=64,
        prompt_tokens=78,
        output_tokens=45,
        duration_ms=412.7,
        image_sha256=hashlib.sha256(f"picture {number}".encode()).hexdigest(),
        sira_version="0.2.0",
    )
    return result.to_record()


def write(path: Path, records: int) -> None:
    """Write the file, one record after the other; the first picture of each hundred has failed."""
    with closing(Ledger(path)) as ledger:
        ledger.begin()
        for number in range(records):
            ledger.append(record_of(number, failed=number % FAILED == 0))


def resume(path: Path, records: int) -> list[Phase]:
    """Measure the run that continues the file; called in a fresh process, whose memory holds nothing else.

    Raises:
        RuntimeError: the file does not hold the written records.
    """
    phases, before = [], _memory("VmRSS")

    def measured(name: str, done: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = done()
        phases.append(Phase(name, time.process_time() - began, _memory("VmHWM") - before))
        return found

    def names() -> Iterator[str]:
        return (name_of(number) for number in range(records))

    def again() -> None:
        ledger.begin()
        for number in failed:
            ledger.append(record_of(number))

    def looked_up() -> list[int]:
        return [number for number, name in enumerate(names()) if not ledger.key(name) or ledger.is_error(name)]

    with closing(measured("opened", lambda: Ledger(path))) as ledger:
        failed = measured("every picture looked up", looked_up)
        if len(ledger) != records or failed != list(range(0, records, FAILED)):
            raise RuntimeError(f"{path}: {len(ledger):,} records, {len(failed):,} failed: not as written")
        measured(f"{len(failed):,} failed ones written again", again)
        measured("put in order", lambda: ledger.finish(names(), repeated=True))
    return phases


def write_other(path: Path, other: Path) -> None:
    """Write the records of `path` again, every other one with another text."""
    with path.open(encoding="utf-8") as records, other.open("w", encoding="utf-8") as file:
        for number, line in enumerate(records):
            record = json.loads(line)
            file.write(json.dumps(record | {"text": f"{record['text'][:-1]} dog."} if number % 2 else record) + "\n")


def compare(path: Path, other: Path, records: int) -> list[Phase]:
    """Measure the comparison of two files. Called in a fresh process.

    Raises:
        RuntimeError: the files do not differ as written.
    """
    before, began = _memory("VmRSS"), time.process_time()
    found = comparing.compare(path, other)
    equal = found.equal
    phase = Phase("compared with such a file", time.process_time() - began, _memory("VmHWM") - before)
    if equal != (records + 1) // 2:
        raise RuntimeError(f"{other}: {equal:,} of {records:,} texts are equal: not as written")
    return [phase]


def _processor() -> str:
    """Return the processor's name; `bench.measure.device_name` imports transformers for it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory(field: str) -> int:
    """Return bytes of this process: `VmRSS`, its memory now, or `VmHWM`, its peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return 1024 * int(status[field].split()[0])


def measure(records: int, folder: Path) -> LedgerReport:
    """Write a file into the folder, and measure the run that goes on with it.

    Args:
        records: number of records, at least 1.
        folder: an empty one, where the file is written; it is left there.
    """
    path = folder / "captions.jsonl"
    write(path, records)
    file_bytes = path.stat().st_size
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        phases = fresh.submit(resume, path, records).result()
    other = folder / "other.jsonl"
    write_other(path, other)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        phases += fresh.submit(compare, path, other, records).result()
    return LedgerReport(records, file_bytes, _processor(), tuple(phases))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.ledger", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=RECORDS, metavar="N", help="records in the file")
    parser.add_argument("--folder", type=Path, help="where the file lies until it is measured (default: the system's)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write the measurements")
    given = parser.parse_args()
    if given.records < 1:
        parser.error(f"--records {given.records}: expected a number from 1 on")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        report = measure(given.records, Path(folder))
    if given.output is not None:
        given.output.write_text(report.to_json(), encoding="utf-8")
    print(report.table())


if __name__ == "__main__":
    main()
