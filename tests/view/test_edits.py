"""The log of edits: versions, what is stale, undo, torn lines, several processes, text files."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

import pytest
from filelock import lock_descriptor

from sira_cli.errors import DataError, SettingsError
from sira_cli.view import Collection, Edits, StaleEditError

ADDING = """
import sys
from sira_cli.view import Collection, Edits, StaleEditError
captions = Collection.read(sys.argv[1])
edits, item = Edits(captions.edits_file), captions.items[0]
for number in range(int(sys.argv[2])):
    while True:
        before = edits.state(item)
        try:
            edits.change(item, seen=before.version, text=before.text + sys.argv[3])
            break
        except StaleEditError:
            pass
"""


@pytest.fixture
def captions(records) -> Collection:
    return Collection.read(records)


@pytest.fixture
def edits(captions) -> Edits:
    return Edits(captions.edits_file)


def lines(edits: Edits) -> list[dict]:
    return [json.loads(line) for line in edits.path.read_text(encoding="utf-8").splitlines()]


def test_looking_writes_nothing(captions, edits):
    assert astuple(edits.state(captions.items[0])) == (0, "A cat and a dog, number 0.", "", False, False)
    edits.refresh()
    assert not edits.path.exists()


def test_changes_are_appended_and_nothing_is_lost(captions, edits, records):
    before = records.read_bytes()
    first, second = captions.items[:2]
    edits.change(first, seen=0, text="A cat.")
    edits.change(second, seen=0, decision="accepted")
    edits.change(first, seen=1, text="A tabby\ncat.  ", decision="rejected")
    assert records.read_bytes() == before
    assert [(line["id"], line["version"], line["text"], line["decision"]) for line in lines(edits)] == [
        ("pictures/0.png", 1, "A cat.", ""),
        ("pictures/1.png", 1, "A cat and a dog, number 1.", "accepted"),
        ("pictures/0.png", 2, "A tabby\ncat.", "rejected"),
    ]
    assert lines(edits)[0]["before"] == {"text": first.text, "decision": ""}
    again = Edits(edits.path)
    assert [again.state(item) for item in captions.items] == [edits.state(item) for item in captions.items]


def test_what_changes_nothing_is_no_version(captions, edits):
    state = edits.change(captions.items[0], seen=0, text=captions.items[0].text, decision="")
    assert state.version == 0
    assert edits.path.read_bytes() == b""


def test_a_stale_change_is_told_and_not_made(captions, edits):
    item = captions.items[0]
    other = Edits(edits.path)
    other.change(item, seen=0, text="Theirs.")
    before = edits.path.read_bytes()
    for act in (lambda: edits.change(item, seen=0, text="Mine."), lambda: edits.undo(item, seen=0)):
        with pytest.raises(StaleEditError) as caught:
            act()
        assert (caught.value.state.version, caught.value.state.text) == (1, "Theirs.")
    assert edits.path.read_bytes() == before
    edits.change(item, seen=1, text="Mine.")
    other.refresh()
    assert other.state(item) == edits.state(item)


def test_undo_goes_back_step_by_step_to_the_beginning(captions, edits):
    item = captions.items[0]
    states = [edits.state(item)]
    for change in ({"text": "One."}, {"decision": "accepted"}, {"text": "Two.", "decision": ""}):
        states.append(edits.change(item, seen=states[-1].version, **change))
    for expected in reversed(states[:-1]):
        edits = Edits(edits.path)  # it is in the log, not in memory
        now = edits.undo(item, seen=edits.state(item).version)
        assert (now.text, now.decision, now.can_undo) == (expected.text, expected.decision, expected.can_undo)
    with pytest.raises(SettingsError, match="no change to undo"):
        edits.undo(item, seen=now.version)
    assert [line["version"] for line in lines(edits)] == [1, 2, 3, 4, 5, 6]
    assert edits.change(item, seen=6, text="Three.").version == 7


def test_what_was_taken_back_can_be_made_again_until_something_else_is_changed(captions, edits):
    item = captions.items[0]
    states = [edits.state(item)]
    for change in ({"text": "One."}, {"decision": "accepted"}):
        states.append(edits.change(item, seen=states[-1].version, **change))
    for _ in range(2):
        for expected in reversed(states[:-1]):
            now = edits.undo(item, seen=edits.state(item).version)
            assert (now.text, now.decision, now.can_redo) == (expected.text, expected.decision, True)
        for expected in states[1:]:
            edits = Edits(edits.path)  # it is in the log, not in memory
            now = edits.redo(item, seen=edits.state(item).version)
            assert (now.text, now.decision, now.can_undo) == (expected.text, expected.decision, True)
        assert not now.can_redo
    edits.undo(item, seen=now.version)
    assert edits.change(item, seen=now.version + 1, text="Two.").can_redo is False
    with pytest.raises(SettingsError, match="no change to redo"):
        edits.redo(item, seen=now.version + 2)
    assert edits.undo(item, seen=now.version + 2).text == "One."


@pytest.mark.parametrize("torn", [b'{"schema": "sira.ed', b'{"schema": "sira.edit/1", "id": "pictures/0.png", "versi'])
def test_a_torn_last_line_is_cut_off(captions, edits, torn):
    item = captions.items[0]
    edits.path.write_bytes(torn)
    edits = Edits(edits.path)
    edits.change(item, seen=0, text="One.")
    with edits.path.open("ab") as file:
        file.write(torn)
    again = Edits(edits.path)
    assert again.state(item).text == "One."
    again.change(item, seen=1, text="Two.")
    assert [line["text"] for line in lines(again)] == ["One.", "Two."]


def test_a_last_line_without_an_end_is_kept(captions, edits):
    item = captions.items[0]
    edits.change(item, seen=0, text="One.")
    edits.path.write_bytes(edits.path.read_bytes().rstrip(b"\n"))
    edits = Edits(edits.path)
    with pytest.raises(StaleEditError):
        edits.change(item, seen=0, text="Two.")
    edits.change(item, seen=1, text="Two.")
    assert [line["text"] for line in lines(edits)] == ["One.", "Two."]


@pytest.mark.parametrize("content", [b"dear diary", b'{"schema": "sira.caption/1"}\n'])
def test_other_files_are_left_alone(captions, content):
    captions.edits_file.write_bytes(content)
    with pytest.raises(DataError, match="something other than edits"):
        Edits(captions.edits_file)
    assert captions.edits_file.read_bytes() == content


def test_a_log_that_was_put_away_is_forgotten(captions, edits):
    item = captions.items[0]
    edits.change(item, seen=0, text="One.")
    edits.path.rename(edits.path.with_suffix(".old"))
    edits.refresh()
    assert edits.state(item).version == 0
    edits.change(item, seen=0, text="Two.")
    assert [line["text"] for line in lines(edits)] == ["Two."]


def test_processes_that_edit_at_once_lose_nothing(records, captions):
    """Each adds a letter many times: all are there, and the versions are whole numbers without a gap."""
    command = [sys.executable, "-c", ADDING, str(records), "60"]
    running = [subprocess.Popen([*command, letter]) for letter in "xy"]
    assert [process.wait() for process in running] == [0, 0]
    edits = Edits(captions.edits_file)
    added = edits.state(captions.items[0]).text.removeprefix(captions.items[0].text)
    assert (added.count("x"), added.count("y"), len(added)) == (60, 60, 120)
    written = lines(edits)
    assert [line["version"] for line in written] == [*range(1, 121)]
    for one, next_one in pairwise(written):
        assert next_one["before"]["text"] == one["text"]


def test_a_change_waits_for_who_has_the_log(captions, edits):
    """Whoever has the lock writes first; who waited reads that before it writes."""
    item = captions.items[0]
    other = Edits(edits.path)
    other.change(item, seen=0, text="One.")
    refused = []

    def attempt() -> None:
        try:
            edits.change(item, seen=1, text="Mine.")
        except StaleEditError as error:
            refused.append(error.state.text)

    with edits.path.open("r+b") as file:
        lock_descriptor(file.fileno())
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(0.3)  # without a lock it would be through by now
        line = lines(edits)[0] | {"version": 2, "text": "Theirs."}
        file.seek(0, 2)
        file.write(json.dumps(line).encode() + b"\n")
    thread.join()
    assert refused == ["Theirs."]
    assert [line["text"] for line in lines(edits)] == ["One.", "Theirs."]


# --- text files beside the pictures


def sidecar(captions: Collection, number: int) -> Path:
    return Path(captions.items[number].picture.location).with_suffix(".txt")


def test_text_files_get_each_new_text_and_undo_takes_it_back(captions):
    edits = Edits(captions.edits_file, sidecars=".txt")
    item = captions.items[0]
    edits.change(item, seen=0, text="One.")
    assert sidecar(captions, 0).read_bytes() == b"One.\n"
    edits.undo(item, seen=1)
    assert sidecar(captions, 0).read_text() == f"{item.text}\n"
    edits.change(captions.items[1], seen=0, decision="accepted")
    assert sidecar(captions, 1).read_text() == f"{captions.items[1].text}\n"
    edits.change(captions.items[2], seen=0, text="Wrong.", decision="rejected")
    assert not sidecar(captions, 2).exists()


def test_a_text_file_that_another_program_changed_is_a_newer_version(folder):
    place = folder / "pictures"
    for number in range(3):
        (place / f"{number}.txt").write_text(f"Caption {number}.\n")
    captions = Collection.read(place)
    edits = Edits(captions.edits_file, sidecars=".txt")
    (place / "0.txt").write_text("By another program.\n")
    with pytest.raises(StaleEditError) as caught:
        edits.change(captions.items[0], seen=0, text="Mine.")
    assert (caught.value.state.version, caught.value.state.text) == (1, "By another program.")
    assert (place / "0.txt").read_text() == "By another program.\n"
    edits.change(captions.items[0], seen=1, text="Mine.")
    assert (place / "0.txt").read_text() == "Mine.\n"
    assert [line["text"] for line in lines(edits)] == ["By another program.", "Mine."]
    assert lines(edits)[0]["before"]["text"] == "Caption 0."


def test_settling_writes_what_is_in_the_log_only_and_takes_over_what_others_wrote(folder):
    place = folder / "pictures"
    for number in range(3):
        (place / f"{number}.txt").write_text(f"Caption {number}.\n")
    captions = Collection.read(place)
    edits = Edits(captions.edits_file)
    for number in range(2):
        edits.change(captions.items[number], seen=0, text=f"Mended {number}.")
    assert (place / "0.txt").read_text() == "Caption 0.\n"  # nobody asked for text files
    (place / "1.txt").write_text("By another program.\n")
    later = Collection.read(place)
    edits = Edits(captions.edits_file, sidecars=".txt")
    edits.settle(later.items)
    assert [(place / f"{number}.txt").read_text() for number in range(3)] == [
        "Mended 0.\n",
        "By another program.\n",
        "Caption 2.\n",
    ]
    assert [edits.state(item).text for item in later.items] == ["Mended 0.", "By another program.", "Caption 2."]


def test_two_pictures_with_one_text_file_are_refused_before_anything_is_written(folder):
    (folder / "pictures/0.jpg").write_bytes((folder / "pictures/0.png").read_bytes())
    captions = Collection.read(folder / "pictures")
    with pytest.raises(SettingsError, match="would both be described in"):
        Edits(captions.edits_file, sidecars=".txt").settle(captions.items)


@pytest.mark.parametrize("change", [{"decision": "maybe"}, {"text": "x" * 100_001}, {"text": "half \ud800"}])
def test_what_is_no_change(captions, edits, change):
    with pytest.raises(SettingsError):
        edits.change(captions.items[0], seen=0, **change)
    assert not edits.path.exists()


def test_threads_that_edit_at_once_get_one_winner(captions, edits):
    def attempt(number: int) -> bool:
        try:
            edits.change(captions.items[1], seen=0, text=f"Text {number}.")
        except StaleEditError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(32)))
    assert won.count(True) == 1
    assert edits.state(captions.items[1]).text == f"Text {won.index(True)}."
