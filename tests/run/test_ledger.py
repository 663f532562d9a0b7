"""The file of records: what is kept, what is cut off, what is refused, and its final state."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from sira_cli.errors import DataError, SettingsError, SiraError
from sira_cli.run.ledger import Ledger
from sira_cli.run.records import CONFIGURATION

COMMON = {
    "schema": "sira.caption/1",
    "prompt": "What?",
    "preset": "demo",
    "model": "bundled",
    "revision": "r",
    "method": "sira",
    "k": 4,
    "layers": 8,
    "alpha": 0.5,
    "max_new_tokens": 64,
    "temperature": 0.0,
    "seed": 0,
}


def record(name: str, key: str = "", status: str = "ok", **changes) -> dict:
    return {
        **COMMON,
        "key": key or f"key of {name}",
        "file_name": name,
        "status": status,
        "text": f"A {name}.",
        **changes,
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "captions.jsonl"


def write(path, *records, order=None):
    ledger = Ledger(path)
    ledger.begin()
    for one in records:
        ledger.append(one)
    if order is not None:
        ledger.finish(order)
    ledger.close()


def names(path) -> list[str]:
    return [json.loads(line)["file_name"] for line in path.read_text().splitlines()]


def test_what_is_done_is_known_again(path):
    write(path, record("a.jpg"), record("b.jpg", status="error"))
    ledger = Ledger(path)
    assert [ledger.key(name) for name in ("a.jpg", "b.jpg", "c.jpg")] == ["key of a.jpg", "key of b.jpg", ""]
    assert [ledger.is_error(name) for name in ("a.jpg", "b.jpg", "c.jpg")] == [False, True, False]
    assert ledger.record("a.jpg")["text"] == "A a.jpg."
    ledger.close()


def test_a_finished_file_is_on_disk_whole(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, os.fstat(file).st_size)))
    write(path, record("a.jpg"), record("b.jpg"), order=["a.jpg", "b.jpg"])
    assert synced[-1:] == [(path.stat().st_ino, path.stat().st_size)]


def test_a_torn_last_line_is_cut_off_wherever_it_is_torn(path):
    write(path, record("a.jpg"))
    whole = path.read_bytes()
    write(path, record("b.jpg"))
    both = path.read_bytes()
    for size in (*range(len(whole), len(both), 7), len(both) - 2, len(both) - 1):
        path.write_bytes(both[:size])
        write(path)
        assert path.read_bytes() == whole
    for size in (*range(0, len(whole), 7), 1, len(whole) - 2, len(whole) - 1):  # the first line is torn
        path.write_bytes(whole[:size])
        write(path)
        assert path.read_bytes() == b""


@pytest.mark.parametrize("content", ["my notes, no newline", '{"a": 1}\n', '{"schema": "other/1"}\n'])
def test_other_peoples_files_are_refused_and_left_alone(path, content):
    path.write_text(content)
    with pytest.raises(DataError, match="line 1 is not a record of sira"):
        Ledger(path)
    assert path.read_text() == content
    write(path.with_name("x.jsonl"), record("a.jpg"))
    ledger = Ledger(path, overwrite=True)
    assert path.read_text() == content  # until the run begins
    ledger.begin()
    assert path.read_text() == ""
    ledger.close()


def test_a_damaged_line_in_the_middle_is_named(path):
    write(path, record("a.jpg"), record("b.jpg"))
    path.write_bytes(path.read_bytes().replace(b'"key of a.jpg"', b"oops"))
    write(path.with_name("x.jsonl"))
    with pytest.raises(DataError, match="line 1 is not a record"):
        Ledger(path)


def test_another_configuration_is_refused_with_what_differs(path):
    write(path, record("a.jpg"))
    ledger = Ledger(path)
    ledger.check(COMMON)
    ledger.check({"alpha": 0.5})
    with pytest.raises(
        SettingsError, match=r"alpha is 0\.5 there and 1\.0 now; seed is 0 there and 7 now.*`overwrite=`"
    ):
        ledger.check({**COMMON, "alpha": 1.0, "seed": 7})
    with pytest.raises(SettingsError, match="100 now: all texts of a file have the same limit, also those that it has"):
        ledger.check({"max_new_tokens": 100}, {"max_new_tokens": 50})
    ledger.close()


def test_a_second_process_is_kept_out(path):
    ledger = Ledger(path)
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(SettingsError, match="another process"):
        pool.apply(Ledger, (path,))
    ledger.close()
    Ledger(path).close()


def test_the_final_state_is_that_of_a_single_run(path):
    at_once = path.with_name("at-once.jsonl")
    write(at_once, record("other.jpg"), *(record(name) for name in "abcd"), order="abcd")
    write(path, record("other.jpg"), record("b"), record("a", status="error"), record("d", key="old"))
    write(path, record("c"), record("d"), record("a"), order="abcd")
    assert path.read_bytes() == at_once.read_bytes()
    write(at_once, record("a", key="new"), order="a")  # the newest stands, also where the order is right already
    assert [json.loads(line)["key"] for line in at_once.read_text().splitlines() if '"a"' in line] == ["new"]
    untouched = path.stat().st_ino
    write(path, order="abcd")
    assert path.stat().st_ino == untouched


@pytest.mark.parametrize(
    ("there", "order", "expected"),
    [("abcd", "bd", "abcd"), ("abdec", "cd", "abcde"), ("xbadc", "abcd", "xabcd"), ("abc", "cba", "cba")],
)
def test_a_smaller_selection_leaves_the_other_records_where_they_are(path, there, order, expected):
    write(path, *map(record, there), order=order)
    assert "".join(names(path)) == expected
    untouched = path.stat().st_ino
    write(path, order=order)
    assert ("".join(names(path)), path.stat().st_ino) == (expected, untouched)


RECORDS = Path(__file__).parents[1] / "data" / "records"


@pytest.mark.parametrize("file", ["captions", "words", "choices", "vcd"])
def test_what_is_known_of_a_file_is_what_parsing_it_says(path, file):
    """Lines as sira writes them are not parsed whole; the texts hold what is searched for in them."""
    (one, *_) = map(json.loads, (RECORDS / f"{file}.jsonl").read_text().splitlines())
    odd = '", "prompt": "x", "finish_reason": "stop", "sira_version": "0", "words": [{'
    texts = ["A cat.", odd, odd.replace('"', '\\"'), "\\", 'ends in \\"', "\u2028", ""]
    records = [
        one | {"file_name": f"{number}{text}", "key": f"{number:064x}", "text": text, "status": status, "error": text}
        for status in ("ok", "error")
        for number, text in enumerate(texts, start=10 * len(status))
    ]
    records[3] |= {"system": None, "repetition_penalty": None, "text_settings": None}  # is as good as absent
    lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in records]
    lines[5] = json.dumps(dict(reversed(records[5].items()))) + "\n"  # of another program
    path.write_text("".join(lines))
    ledger = Ledger(path)
    for each in records:
        name = each["file_name"]
        assert (ledger.key(name), ledger.is_error(name)) == (each["key"], each["status"] == "error")
        assert ledger.record(name) == each
    assert list(ledger.records()) == records
    ledger.close()
    other = {str: "other", int: 77, float: 0.77, dict: {"other": 1}}
    later = {"system": "Be brief.", "repetition_penalty": 1.5, "text_settings": {"prefix": "a"}}
    for name in [name for name in CONFIGURATION if name in one or name in later]:
        changed = {"schema": "sira.other/1"} if name == "schema" else {name: later.get(name) or other[type(one[name])]}
        path.write_text("".join([*lines, json.dumps(one | changed) + "\n"]))
        with pytest.raises(SettingsError, match=f"{name} is .* there and .* now"):
            Ledger(path)


def test_failures_are_put_aside_at_the_end_and_stay_known(path):
    aside = path.with_name("errors.jsonl")

    def run(*records, order="abc", overwrite=False):
        ledger = Ledger(path, failures=aside, overwrite=overwrite)
        ledger.begin()
        for one in records:
            ledger.append(one)
        known = {name: (ledger.key(name), ledger.is_error(name)) for name in order}
        ledger.finish(order)
        assert {name: (ledger.key(name), ledger.is_error(name)) for name in order} == known
        assert [ledger.record(name)["file_name"] for name in order if known[name][0]] == [
            n for n in order if known[n][0]
        ]
        assert [one["file_name"] for one in ledger.records()] == names(path)
        ledger.close()
        return "".join(names(path)), "".join(names(aside)) if aside.exists() else ""

    write(path, record("a"), record("b", status="error"))  # as a run without a second file left it
    assert run() == ("a", "b")
    assert run(record("c", status="error")) == ("a", "bc")
    untouched = path.stat().st_ino, aside.stat().st_ino
    assert run() == ("a", "bc")
    assert (path.stat().st_ino, aside.stat().st_ino) == untouched
    assert run(record("b")) == ("ab", "c")  # it was tried again
    assert run(record("a", key="of other bytes", status="error")) == ("b", "ac")
    assert run(record("c"), record("a")) == ("abc", "")
    assert run(record("b", status="error")) == ("ac", "b")
    assert run(record("b", status="error"), overwrite=True) == ("", "b")
    aside.write_text("my notes\n")
    with pytest.raises(DataError, match=r"errors\.jsonl: line 1 is not a record"):
        Ledger(path, failures=aside)


@pytest.mark.parametrize("moment", ["before", "between"])
def test_killed_while_failures_are_put_aside(path, moment, monkeypatch):
    """Killed before either file is replaced, or when one of two is: the next run ends alike."""
    aside = path.with_name("errors.jsonl")
    write(path, record("a"), record("b", status="error"), record("c"))
    ledger = Ledger(path, failures=aside)
    replaced = []

    def stop(self, target):
        if moment == "before" or replaced:
            raise KeyboardInterrupt
        replaced.append(target)
        return replace(self, target)

    replace = type(path).replace
    with monkeypatch.context() as patch:
        patch.setattr(type(path), "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            ledger.finish("abc")
    ledger.close()
    ledger = Ledger(path, failures=aside)
    assert [ledger.is_error(name) for name in "abc"] == [False, True, False]
    ledger.finish("abc")
    ledger.close()
    assert (names(path), names(aside)) == (["a", "c"], ["b"])


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with pytest.raises(SiraError, match="cannot be opened for writing"):
        Ledger(tmp_path / "nowhere/captions.jsonl")
    assert not list(tmp_path.iterdir())


QUESTION = {"schema": "sira.ask/1", "id": "", **json.loads((RECORDS / "answers.jsonl").read_text().splitlines()[0])}


def test_several_prompts_per_picture_are_known_by_their_ids(path):
    texts = ["Yes.", '", "prompt": "x", "id": "7", "key": "1"', "\\", 'half a "quote', ""]
    records = [
        QUESTION | {"id": f"{number} {text}", "key": f"{number:064x}", "prompt": f"What of {text}?", "text": text}
        for number, text in enumerate([*texts, *texts])
    ]
    records[4] |= {"status": "error", "error": texts[1], "text": ""}
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records))
    ledger = Ledger(path, by="id")
    for each in records:
        known = ledger.key(each["id"]), ledger.is_error(each["id"]), ledger.record(each["id"])
        assert known == (each["key"], each["status"] == "error", each)
    ledger.close()
    with path.open("a") as file:
        file.write(json.dumps(QUESTION | {"id": "last", "alpha": 0.25}) + "\n")
    with pytest.raises(SettingsError, match=r"alpha is .* there and 0\.25 now"):
        Ledger(path, by="id")


@pytest.mark.parametrize("key", ["F" * 64, "of thirty-two bytes, not a hash.", "ü"])
def test_a_key_of_any_kind_comes_back(path, key):
    write(path, record("a") | {"key": key})
    ledger = Ledger(path)
    assert ledger.key("a") == key
    ledger.close()


def test_a_record_is_not_kept_in_memory(path):
    """Of a million records no more is in memory than a name, a key and a place each: measured on a few thousand."""
    (one, *_) = map(json.loads, (RECORDS / "captions.jsonl").read_text().splitlines())
    count = 5_000
    with path.open("w") as file:
        for number in range(count):
            text = f"Number {number} of those {'that have a long text ' * 20}."
            file.write(
                json.dumps(one | {"file_name": f"{number:08}.jpg", "key": f"{number:064x}", "text": text}) + "\n"
            )
    tracemalloc.start()
    ledger = Ledger(path)
    opened, most = tracemalloc.get_traced_memory()
    ledger.finish([f"{number:08}.jpg" for number in range(count)], repeated=True)
    _, most_of_all = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ledger.close()
    assert path.stat().st_size > 1_000 * count
    assert opened < 300 * count
    assert most < 350 * count
    assert most_of_all < 700 * count


@pytest.mark.parametrize("how", ["removed", "moved", "removed with its folder"])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_file_that_is_gone_is_put_back(tmp_path, caplog, how, at_the_end):
    folder = tmp_path / "out"
    folder.mkdir()
    path = folder / "captions.jsonl"
    expected = [f"{number}.jpg" for number in range(4)]
    ledger = Ledger(path)
    ledger.begin()
    for number, name in enumerate(expected):
        if number == 2 and not at_the_end:
            take_away(path, how)
        ledger.append(record(name))
    if at_the_end:
        take_away(path, how)
    ledger.finish(expected)
    assert [one["file_name"] for one in ledger.records()] == expected
    assert "it has been put back, with all records" in caplog.text
    with pytest.raises(SettingsError, match="another process writes to it"):
        Ledger(path)
    ledger.close()
    assert names(path) == expected
    if how == "moved":
        assert names(folder / "elsewhere.jsonl") == (expected if at_the_end else expected[:2])


def take_away(path: Path, how: str) -> None:
    if how == "moved":
        path.rename(path.with_name("elsewhere.jsonl"))
    elif how == "removed":
        path.unlink()
    else:
        shutil.rmtree(path.parent)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_file_that_another_one_replaced_is_left_alone(path, at_the_end):
    (path.parent / "captions-kept-1.jsonl").write_text("of somebody else")
    ledger = Ledger(path)
    ledger.begin()
    ledger.append(record("a.jpg"))
    ledger.append(record("b.jpg"))
    path.rename(path.with_name("old.jsonl"))
    path.write_text("mine")
    with pytest.raises(
        SiraError, match=r"another file has taken its place: .* in \S*captions-kept-2\.jsonl: rename it"
    ):
        ledger.finish(["b.jpg", "a.jpg"]) if at_the_end else ledger.append(record("c.jpg"))
    ledger.close()
    assert path.read_text() == "mine"
    assert (path.parent / "captions-kept-1.jsonl").read_text() == "of somebody else"
    assert names(path.parent / "captions-kept-2.jsonl") == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("size", [5, "appended"])
def test_a_file_that_another_program_cut_off_is_not_written_to(path, size):
    """What is left is gone on with."""
    ledger = Ledger(path)
    ledger.begin()
    for name in ("a.jpg", "b.jpg"):
        ledger.append(record(name))
    whole = path.read_bytes()
    left = whole + b"something else\n" if size == "appended" else whole[:size]
    with path.open("r+b") as file:  # as `> captions.jsonl` does it: the file stays the same
        file.truncate(0)
        file.write(left)
    with pytest.raises(SiraError, match=rf"it has {len(left)} bytes, expected {len(whole)}: the records that are left"):
        ledger.append(record("c.jpg"))
    with pytest.raises(SiraError, match="another program has changed it"):
        ledger.finish(["a.jpg", "b.jpg"])
    ledger.close()
    assert path.read_bytes() == left
    if size == "appended":  # as the message says
        os.truncate(path, len(whole))
    missing = [
        name for name in ("a.jpg", "b.jpg", "c.jpg") if f'"{name}"'.encode() not in left[: left.rfind(b"\n") + 1]
    ]
    write(path, *map(record, missing), order=["a.jpg", "b.jpg", "c.jpg"])
    assert names(path) == ["a.jpg", "b.jpg", "c.jpg"]


def test_records_are_in_the_file_as_soon_as_they_are_appended(path):
    ledger = Ledger(path)
    ledger.begin()
    for number in range(3):
        ledger.append(record(f"{number}.jpg"))
        assert names(path) == [f"{each}.jpg" for each in range(number + 1)]
    ledger.close()


def test_a_failed_write_leaves_whole_records(path, monkeypatch):
    """A short write and then none, as on a full disk; a real one is in tests/run/test_command.py."""
    ledger = Ledger(path)
    ledger.begin()
    ledger.append(record("a.jpg"))
    before = path.read_bytes()
    file = ledger._file

    class Full:
        fileno, truncate, seek, close = file.fileno, file.truncate, file.seek, file.close

        def __init__(self):
            self.room = 10

        def write(self, data):
            if not self.room:
                raise OSError(28, "No space left on device")
            self.room = 0
            return file.write(data[:10])

    monkeypatch.setattr(ledger, "_file", Full())
    with pytest.raises(SiraError, match="No space left on device: what is finished is kept"):
        ledger.append(record("b.jpg"))
    assert path.read_bytes() == before
    ledger.close()
