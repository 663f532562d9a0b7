"""`python -m tools.ledger`: it measures files like those of real runs, and what it leaves is what a run would leave."""

from __future__ import annotations

import json
from pathlib import Path

from sira_cli.data.records.lines import as_line, head_of
from tools import ledger

CAPTIONS = Path(__file__).parents[1] / "data" / "records" / "captions.jsonl"


def test_its_records_are_like_those_of_a_run():
    real = json.loads(CAPTIONS.read_text().splitlines()[0])
    made = [ledger.record_of(number) for number in range(50)]
    assert made[0].keys() == real.keys()
    assert [type(value) for value in made[0].values()] == [type(value) for value in real.values()]
    assert all(head_of(as_line(record)) is not None for record in made)  # read in the way of most lines, unparsed
    for name in ("key", "file_name", "text", "image_sha256"):
        assert len({record[name] for record in made}) == 50


def test_the_run_that_it_measures_leaves_every_record_once_and_in_order(tmp_path):
    report = ledger.measure(2050, tmp_path)
    found = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert found == [ledger.record_of(number) for number in range(2050)]
    failed = {number: ledger.record_of(number, failed=True) for number in range(0, 2050, 100)}
    before = [failed.get(number, record) for number, record in enumerate(found)]
    assert (report.records, report.file_bytes) == (2050, sum(len(as_line(record)) for record in before))
    names = ["opened", "every picture looked up", "21 failed ones written again", "put in order"]
    names.append("compared with such a file")
    assert [phase.name for phase in report.phases] == names
    *peaks, compared = [phase.peak_bytes for phase in report.phases]
    assert peaks == sorted(peaks)
    assert 0 < max(compared, peaks[-1]) < 20e6  # a process that imports torch has ten times that
    assert all(phase.seconds > 0 for phase in report.phases)
