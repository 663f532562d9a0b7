"""The file of records: what is kept, what is cut off, what is refused, and its final state."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from sira_cli.errors import DataError, SettingsError, SiraError
from sira_cli.run.ledger import Ledger, check_same
from sira_cli.run.records import CONFIGURATION

COMMON = {"schema": "sira.caption/1", "prompt": "What?", "preset": "demo", "model": "bundled", "revision": "r"}
COMMON |= {"method": "sira", "k": 4, "layers": 8, "alpha": 0.5, "max_new_tokens": 64, "temperature": 0.0, "seed": 0}


def record(name: str, key: str = "", status: str = "ok", **changes) -> dict:
    own = {"key": key or f"key of {name}", "file_name": name, "status": status, "text": f"A {name}."}
    return COMMON | own | changes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "captions.jsonl"


def begun(path, *records, **options) -> Ledger:
    """A file with these records after those that it has."""
    ledger = Ledger(path, **options)
    ledger.begin()
    for one in records:
        ledger.append(one)
    return ledger


def write(path, *records, order=None):
    with closing(begun(path, *records)) as ledger:
        if order is not None:
            ledger.finish(order)


def names(path) -> list[str]:
    return [json.loads(line)["file_name"] for line in path.read_text().splitlines()]


def test_records_are_looked_up_by_threads_while_others_are_added(path, request):
    """As a server's requests do: a file has one position."""
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    every = [str(number) for number in range(400)]
    with closing(begun(path, *map(record, every[:200]))) as ledger, ThreadPoolExecutor(4) as readers:
        keys = readers.map(ledger.key, every[:200] * 40)
        for name in every[200:]:
            ledger.append(record(name))
        assert list(keys) == [f"key of {name}" for name in every[:200] * 40]
    assert names(path) == every


@pytest.mark.parametrize(("order", "times"), [("ab", 1), ("ba", 2)])  # one that is replaced is so before it is there
def test_a_finished_file_is_on_disk_whole(path, monkeypatch, order, times):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, os.fstat(file).st_size)))
    write(path, record("a"), record("b"), order=order)
    assert synced == times * [(path.stat().st_ino, path.stat().st_size)]


def test_a_torn_last_line_is_cut_off_wherever_it_is_torn(path):
    write(path, record("a.jpg"))
    whole = path.read_bytes()
    write(path, record("b.jpg"))
    both = path.read_bytes()
    for kept, text in ((whole, both), (b"", whole)):  # also the first line
        for size in (*range(len(kept), len(text), 7), len(kept) + 1, len(text) - 2, len(text) - 1):
            path.write_bytes(text[:size])
            write(path)
            assert path.read_bytes() == kept


@pytest.mark.parametrize("content", ["my notes, no newline", '{"a": 1}\n', {"schema": "other/1"}, {"key": ""}], ids=str)
def test_other_peoples_files_are_refused_and_left_alone(path, content):
    path.write_text(content := content if isinstance(content, str) else json.dumps(record("a.jpg") | content) + "\n")
    with pytest.raises(DataError, match="line 1 is not a record of sira"):
        Ledger(path)
    with closing(Ledger(path, overwrite=True)) as ledger:
        assert path.read_text() == content  # until the run begins
        ledger.begin()
        assert (path.read_text(), path.with_stem("captions-kept-1").read_text()) == ("", content)
        ledger.finish("")
    assert [*path.parent.iterdir()] == [path]


def test_a_complete_replacing_run_removes_what_incomplete_ones_kept(path):
    write(path, record("a.jpg"))
    foreign, named = path.with_stem("captions-kept-9"), path.with_stem("captions-kept-mine")
    foreign.write_text("my notes")
    named.write_text(path.read_text())
    for _ in range(2):  # they do not end
        with closing(Ledger(path, overwrite=True)) as ledger:
            ledger.begin()
            ledger.append(record("b.jpg"))
    kept = [path.with_stem(f"captions-kept-{number}") for number in (1, 2)]
    assert [names(copy) for copy in kept] == [["a.jpg"], ["b.jpg"]]
    with closing(Ledger(path, overwrite=True)) as ledger:
        ledger.begin()
        ledger.append(record("c.jpg"))
        ledger.finish(["c.jpg"])
    assert (names(path), sorted(path.parent.iterdir())) == (["c.jpg"], sorted([path, foreign, named]))


def test_another_configuration_is_refused_with_what_differs(path):
    write(path, record("a.jpg"))
    with closing(Ledger(path)) as ledger:
        ledger.check(COMMON)
        ledger.check({"alpha": 0.5})
        with pytest.raises(SettingsError, match=r"alpha is 0\.5 there and 1\.0 now; seed is 0 .* 7 now.*`overwrite=`"):
            ledger.check({**COMMON, "alpha": 1.0, "seed": 7})
    for name in ("schema", *(name for name in CONFIGURATION if name in COMMON and name != "schema"), "system"):
        path.write_text("".join(json.dumps(record("b.jpg") | each) + "\n" for each in ({}, {name: "sira.other"})))
        with pytest.raises(SettingsError, match=f"{name} is .* there and 'sira.other' now"):
            Ledger(path)


@pytest.mark.parametrize("name", ["method_settings", "think"])
def test_a_setting_that_is_missing_in_a_file_is_off(path, name):
    write(path, record("a.jpg"))
    with closing(Ledger(path)) as ledger:
        ledger.check(COMMON | {name: None})
        with pytest.raises(SettingsError, match=f"{name} is None there and 'on' now"):
            ledger.check(COMMON | {name: "on"})


@pytest.mark.parametrize(("now", "there"), [({"b": 2}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"b": 2})])
def test_whole_settings_differ_where_one_of_them_lacks_a_setting(path, now, there):
    check_same(path, there, there, whole=True)
    check_same(path, now, {}, whole=True)
    with pytest.raises(SettingsError, match="a is"):
        check_same(path, now, there, whole=True)


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


def test_failures_leave_a_file_of_pictures_that_are_all_fine(path):
    with closing(begun(path, record("c"), record("b", status="error"), record("a"), only_ok=True)) as ledger:
        assert ledger.key("b") == "key of b"
        assert ledger.is_error("b") is True
        assert ledger.key("x") == ""
        ledger.finish("abc")
        assert names(path) == [one["file_name"] for one in ledger.records()] == ["a", "c"]
    untouched = path.stat().st_ino
    with closing(begun(path, only_ok=True)) as ledger:
        assert ledger.key("b") == ""  # it is tried again
        ledger.finish("abc")
    assert path.stat().st_ino == untouched


def test_a_record_is_not_kept_in_memory(path):
    """Of a million records no more is in memory than some numbers each: measured on a few thousand."""
    every = [f"{number:08}.jpg" for number in range(5_000)]
    text = "a long text " * 80
    path.write_text("".join(json.dumps(record(name, text=name + text)) + "\n" for name in every))
    tracemalloc.start()
    with closing(Ledger(path)) as ledger:
        opened, most = tracemalloc.get_traced_memory()
        ledger.finish(reversed(every))
        _, most_of_all = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert names(path) == every[::-1]
    assert path.stat().st_size > 1_000 * len(every)
    assert opened < 300 * len(every)
    assert most < 350 * len(every)
    assert most_of_all < 450 * len(every)


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("how", ["removed", "removed with its folder", "replaced"])
def test_a_file_that_is_gone_leaves_its_records(tmp_path, how, at_the_end):
    path = tmp_path / "out/captions.jsonl"
    path.parent.mkdir()
    place = path if how != "replaced" else path.with_name("captions-rescued-2.jsonl")
    with closing(begun(path, record("a.jpg"), record("b.jpg"))) as ledger:
        shutil.rmtree(path.parent) if "folder" in how else path.unlink()
        if how == "replaced":
            for other in (path, path.with_name("captions-rescued-1.jsonl")):
                other.write_text("of somebody else")
        with pytest.raises(SiraError, match=rf"removed or replaced .*: all finished records are in {place}: "):
            ledger.finish(["b.jpg", "a.jpg"]) if at_the_end else ledger.append(record("c.jpg"))
    assert names(place) == ["a.jpg", "b.jpg"]
    assert how != "replaced" or path.read_text() == "of somebody else"


@pytest.mark.parametrize("size", [5, "appended"])
def test_a_file_that_another_program_cut_off_is_not_written_to(path, size):
    """What is left is gone on with."""
    every = ["a.jpg", "b.jpg", "c.jpg"]
    with closing(begun(path, *map(record, every[:2]))) as ledger:
        whole = path.read_bytes()
        left = whole + b"something else\n" if size == "appended" else whole[:size]
        with path.open("r+b") as file:  # as `> captions.jsonl` does it: the file stays the same
            file.truncate(0)
            file.write(left)
        for work in (lambda: ledger.append(record("c.jpg")), lambda: ledger.finish(every)):
            with pytest.raises(SiraError, match=rf"has {len(left)} bytes, expected {len(whole)}: the records that are"):
                work()
    assert path.read_bytes() == left
    if size == "appended":  # as the message says
        os.truncate(path, len(whole))
    write(path, *map(record, every[2:] if size == "appended" else every), order=every)
    assert names(path) == every


def test_a_failed_write_leaves_whole_records(path):
    """A short write and then none, as on a full disk: by a limit for the size of files."""
    resource = pytest.importorskip("resource", reason="this system has no limits for a process, as Windows")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(begun(path, record("a.jpg"))) as ledger:
        before = path.read_bytes()
        assert names(path) == ["a.jpg"]  # as soon as it is appended
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, usual[1]))
        try:
            with pytest.raises(SiraError, match="cannot be written: File too large: what is finished is kept"):
                ledger.append(record("b.jpg"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert path.read_bytes() == before
        ledger.append(record("c.jpg"))
    assert names(path) == ["a.jpg", "c.jpg"]
