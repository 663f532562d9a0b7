"""`python -m tools.ledger`: it measures files like those of real runs, and what it leaves is what a run would leave."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sira_cli.data.records.ledger import Ledger
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


def test_what_it_writes_is_what_it_prints(tmp_path, capsys, monkeypatch):
    phases = (ledger.Phase("opened", 11.04, 215_400_000), ledger.Phase("put in order", 10.96, 424_000_000))
    measured = []

    def measure(records, folder):
        measured.append((records, folder.parent, list(folder.iterdir())))
        return ledger.LedgerReport(records, 7_470, "a processor", phases)

    monkeypatch.setattr(ledger, "measure", measure)
    file = tmp_path / "ledger.json"
    monkeypatch.setattr(sys, "argv", ["ledger", "--records", "10", "--folder", str(tmp_path), "-o", str(file)])
    ledger.main()
    assert measured == [(10, tmp_path, [])]
    assert list(tmp_path.iterdir()) == [file]
    assert ledger.LedgerReport.from_json(file.read_text()) == ledger.LedgerReport(10, 7_470, "a processor", phases)
    printed = capsys.readouterr().out
    assert printed == ledger.LedgerReport.from_json(file.read_text()).table() + "\n"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines()[:4]]
    assert cells[0][0] == "10 records of 747 bytes"
    assert cells[2:] == [["opened", "11.0", "215 MB"], ["put in order", "11.0", "424 MB"]]


def test_a_file_that_is_not_what_was_written_is_not_measured(tmp_path):
    path = tmp_path / "captions.jsonl"
    ledger.write(path, 150)
    with pytest.raises(RuntimeError, match="150 records, 3 failed"):
        ledger.resume(path, 151)
    Ledger(path).close()  # it is open for others


def test_a_number_below_one_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ledger", "--records", "0"])
    with pytest.raises(SystemExit, match="2"):
        ledger.main()
    assert "expected a number from 1 on" in capsys.readouterr().err
