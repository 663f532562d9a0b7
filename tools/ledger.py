"""Measure the cost of large files of records: `python -m tools.ledger --records 1000000 -o docs/bench/ledger.json`.

The file is written as `sira caption -o` writes it, one picture in a hundred as failed. Fresh processes continue it, as
the command does with `--retry-errors`, and compare it with a file in which every other text is different. No picture is
read, and nothing is decoded. Memory is read from /proc, so this needs Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from sira_cli.analysis import compare as comparing
from sira_cli.demo.scenes import OBJECTS
from sira_cli.run.ledger import Ledger

ROOT = Path(__file__).parent.parent
FAILED = 100  # one picture in this many
WORDS = 40  # of a caption: as many as the bundled model's have

Record = dict[str, Any]


def name_of(number: int) -> str:
    """Return a picture's name in its record."""
    return f"photos/{number // 1000:05}/{number:08}.jpg"


def record_of(like: Record, number: int, *, failed: bool = False) -> Record:
    """Return a record like another one, with a picture and a text of its own."""
    words = " ".join(random.Random(number).choices(list(OBJECTS), k=WORDS))
    own = {"key": f"key {number}", "image_sha256": f"picture {number}"}
    record = like | {name: hashlib.sha256(text.encode()).hexdigest() for name, text in own.items()}
    record |= {"file_name": name_of(number), "text": f"{words}."}
    wrong = {"status": "error", "text": "", "error": "cannot identify image file", "finish_reason": "error"}
    return record | wrong if failed else record


def phase(name: str, before: int, work: Callable[[], Any]) -> tuple[Record, Any]:
    """Return the processor's seconds, the most memory up to now on top of `before`, and the result of some work."""
    began = time.process_time()
    found = work()
    return {"name": name, "seconds": time.process_time() - began, "peak_bytes": _memory("VmHWM") - before}, found


def resume(path: Path, records: int, like: Record) -> list[Record]:
    """Measure the run that continues the file; called in a fresh process, whose memory holds nothing else."""
    before = _memory("VmRSS")

    def again() -> None:
        ledger.begin()
        for number in failed:
            ledger.append(record_of(like, number))

    def looked_up() -> list[int]:
        named = ((number, name_of(number)) for number in range(records))
        return [number for number, name in named if not ledger.key(name) or ledger.is_error(name)]

    opened, ledger = phase("opened", before, lambda: Ledger(path))
    with closing(ledger):
        looked, failed = phase("every picture looked up", before, looked_up)
        assert (len(ledger), failed) == (records, [*range(0, records, FAILED)])
        written, _ = phase(f"{len(failed):,} failed ones written again", before, again)
        names = map(name_of, range(records))
        ordered, _ = phase("put in order", before, lambda: ledger.finish(names))
    return [opened, looked, written, ordered]


def compare(path: Path, other: Path, records: int) -> list[Record]:
    """Measure the comparison of two files. Called in a fresh process."""
    found, equal = phase("compared with such a file", _memory("VmRSS"), lambda: comparing.compare(path, other).equal)
    assert equal == (records + 1) // 2
    return [found]


def measure(records: int, folder: Path, like: Record) -> Record:
    """Write two files into an empty folder, and measure what is done with them in fresh processes."""
    path, other = folder / "captions.jsonl", folder / "other.jsonl"
    with closing(Ledger(path)) as ledger:
        ledger.begin()
        for number in range(records):
            ledger.append(record_of(like, number, failed=number % FAILED == 0))
    size = path.stat().st_size

    def fresh(work: Callable[..., list[Record]], *given: Any) -> list[Record]:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(work, *given).result()

    phases = fresh(resume, path, records, like)
    with path.open(encoding="utf-8") as lines, other.open("w", encoding="utf-8") as file:
        for number, record in enumerate(map(json.loads, lines)):
            changed = {"text": f"{record['text'][:-1]} dog."} if number % 2 else {}
            file.write(json.dumps(record | changed) + "\n")
    phases += fresh(compare, path, other, records)
    facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    device = next(line.partition(":")[2].strip() for line in facts if line.startswith("model name"))
    return {"schema": "sira.ledger/1", "records": records, "file_bytes": size, "device": device, "phases": phases}


def sentences(report: Record) -> str:
    """Return the report in two sentences."""
    phases = ", ".join(f"{each['name']} in {each['seconds']:.1f} s" for each in report["phases"])
    most = max(each["peak_bytes"] for each in report["phases"]) / 1e6
    return (
        f"A file of {report['records']:,} records of {report['file_bytes'] / report['records']:.0f} bytes is {phases}: "
        f"processor time on {report['device']}. It takes {most:.0f} MB of memory at most."
    )


def _memory(field: str) -> int:
    """Return bytes of this process: `VmRSS`, its memory now, or `VmHWM`, its peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return 1024 * int(status[field].split()[0])


def main() -> None:
    """Run the command line."""
    from sira_cli.run.lvlm import load  # late: the fresh processes do without

    parser = argparse.ArgumentParser(prog="python -m tools.ledger", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--records", type=int, default=1_000_000, metavar="N", help="records in the file")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write the measurements")
    given = parser.parse_args()
    like = load("demo", device="cpu").caption(next((ROOT / "examples").glob("*.png"))).to_record()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(given.records, Path(folder), like)
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(sentences(report))


if __name__ == "__main__":
    main()
