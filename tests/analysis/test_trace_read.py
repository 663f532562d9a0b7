"""Traces are read with care, and those that the tests make are traces."""

from __future__ import annotations

import copy

import pytest

from sira_cli.analysis.trace.read import read_traces
from sira_cli.errors import SiraError
from tests.support.traces import CAPTION, failed, make_trace, write_traces

BASE = make_trace(text="A cat.")


def test_what_is_read_is_what_was_written(tmp_path):
    written = make_trace(tracked=("cat",))
    (trace,) = read_traces(write_traces(tmp_path / "trace.jsonl", written))
    assert (trace.status, trace.line) == ("ok", 1)
    assert (trace.run.method, trace.run.k, trace.run.beta) == ("sira", 14, None)
    assert [token.delta for token in trace.tokens] == [line["delta"] for line in written[1:-1]]
    assert trace.tokens[3].top[1].cf.rank == written[4]["top"][1]["cf"]["rank"]
    assert trace.tokens[0].tracked[0].word == "cat"
    assert [word.word for word in trace.end.words] == CAPTION.split()
    assert [use.step for use in trace.end.tracked] == [5, 35]


def test_a_file_of_several_traces(tmp_path):
    path = write_traces(tmp_path / "trace.jsonl", BASE, BASE[:2], BASE, failed("gone"), BASE[:3])
    found = read_traces(path)
    assert [trace.status for trace in found] == ["ok", "interrupted", "ok", "error", "interrupted"]
    assert [len(trace.tokens) for trace in found] == [4, 1, 4, 0, 2]
    assert [trace.line for trace in found] == [1, 7, 9, 15, 16]
    assert found[3].run is None


def changed(line: int, key: str, to: object) -> list[dict]:
    trace = copy.deepcopy(BASE)
    trace[line][key] = to
    return trace


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (changed(0, "schema", "sira.trace/2"), "line 1: schema of the run line: Input should be 'sira.trace/1'"),
        (changed(2, "delta", float("nan")), "line 3: delta of the token line: Input should be a finite number"),
        (changed(2, "step", 5), "line 3: step 5, expected step 1: lines are missing"),
        (BASE[1:], "line 1: a token line before any run line"),
        (BASE[-1:], "line 1: an end line before any run line"),
        ([*BASE[:-3], BASE[-1]], "line 4: words up to step 2, but there are 2 tokens"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, trace, message):
    path = write_traces(tmp_path / "trace.jsonl", trace)
    with pytest.raises(SiraError) as error:
        read_traces(path)
    assert str(error.value).startswith(f"{path}, {message}")
    assert str(error.value).endswith("make the trace again with this version of sira")
    assert "\n" not in str(error.value)


def test_bytes_that_are_cut_off_broken_or_from_another_editor(tmp_path):
    path = write_traces(tmp_path / "trace.jsonl", BASE)
    whole, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[:-40])
    (trace,) = read_traces(path)
    assert (trace.status, len(trace.tokens)) == ("interrupted", 4)
    path.write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n\r\n"))
    assert len(read_traces(path)) == 1
    path.write_bytes(b"".join([*lines[:2], lines[2][:50] + b"\n", *lines[3:]]))  # in the middle: no interruption
    with pytest.raises(SiraError, match="line 3: is not JSON"):
        read_traces(path)
