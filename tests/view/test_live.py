"""What is on disk changes while the page is open: it is shown, exported, and what is gone is not changed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from sira_cli.view import Collection, Edits
from sira_cli.view.app import Viewer
from sira_cli.view.live import Live
from tests.support.asgi import served
from tests.view.conftest import TOKEN, record, write


@pytest.fixture
def own(serve) -> Callable[..., httpx.Client]:
    """Serves something; returns a client that may see it."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    clients = []

    def own(*args: Any, **settings: Any) -> httpx.Client:
        clients.append(httpx.Client(base_url=serve(*args, **settings), headers=headers, trust_env=False, verify=False))
        return clients[-1]

    yield own
    for client in clients:
        client.close()


def until(own: httpx.Client, **expected: object) -> dict:
    """Look at the server until it says what is expected."""
    deadline = time.monotonic() + 60
    while not expected.items() <= (found := own.get("/api/now").json()).items():
        assert time.monotonic() < deadline, (found, expected)
        time.sleep(0.05)
    return found


def briefs(own: httpx.Client, *numbers: int) -> list[dict | None]:
    return own.post("/api/items", json={"numbers": numbers}).json()


def shown(own: httpx.Client, **query: str) -> list[tuple[int, int]]:
    """Number and decision of what is shown."""
    data = own.post("/api/shown", json=query).content
    packed = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    return [(one >> 2, one & 3) for one in packed]


def exported(own: httpx.Client) -> list[dict]:
    return [json.loads(line) for line in own.get("/export").text.splitlines()]


def rewrite(path: Path, rows: list[dict]) -> None:
    """Put a new file in the place of one, as programs do that write whole files."""
    write(path.with_suffix(".new"), rows).replace(path)


def test_lines_that_are_added_are_shown_and_exported(own, records):
    client = own(records)
    before = until(client, total=3, done=1)
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    more = [record(3, file_name="pictures/0.png", id="again", text="One more."), record(1, text="Better.")]
    with records.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in more))
        file.write('{"schema": "sira.caption/1", "method": "sira", "file_name": "pict')  # it is being written
    found = until(client, total=4, broken=1)
    assert found["records"] > before["records"]
    assert [brief["text"] for brief in briefs(client, 0, 1, 2, 3)] == [
        *(rows[0]["text"], "Better.", rows[2]["text"], "One more.")
    ]
    assert exported(client) == [rows[0], more[1], rows[2], more[0]]
    with records.open("a") as file:
        file.write('ures/2.png", "text": "Whole now."}\n')
    until(client, broken=0)
    assert briefs(client, 2)[0]["text"] == "Whole now."


def test_what_is_exported_is_what_is_there_now(own, records):
    client = own(records)
    with records.open("a") as file:
        file.write(json.dumps(record(1, text="Better.")) + "\n")
    assert [row["text"] for row in exported(client)][1] == "Better."  # at once


def test_a_caption_that_is_gone_is_not_changed(own, records, folder):
    client = own(records)
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert client.post("/api/items/1", json={"seen": 0, "decision": "accepted"}).status_code == 200
    log = (folder / "captions.edits.jsonl").read_bytes()
    rewrite(records, [rows[2], rows[0]])
    answer = client.post("/api/items/1", json={"seen": 1, "text": "Too late."})
    assert answer.status_code == 410
    assert answer.json()["error"].startswith("pictures/1.png: is no longer in ")
    assert (folder / "captions.edits.jsonl").read_bytes() == log
    until(client, total=2, decided=0)
    assert briefs(client, 1) == [None]
    assert client.get("/api/items/1").status_code == 410
    assert shown(client) == [(2, 0), (0, 0)]  # in the order of now, by the numbers of before
    assert exported(client) == [rows[2], rows[0]]
    rewrite(records, rows)
    until(client, total=3, decided=1)
    assert shown(client, filter="accepted") == [(1, 1)]


def test_a_file_that_is_removed_is_said_so_and_comes_back(own, records):
    client = own(records)
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    records.rename(records.with_suffix(".away"))
    deadline = time.monotonic() + 60
    while "captions.jsonl: cannot be read" not in client.get("/api/now").json()["trouble"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [brief["text"] for brief in briefs(client, 0)] == [rows[0]["text"]]  # it is still known
    assert client.post("/api/items/0", json={"seen": 0, "text": "x"}).status_code >= 400
    records.with_suffix(".away").rename(records)
    until(client, trouble="", total=3)
    assert client.post("/api/items/0", json={"seen": 0, "text": "x"}).status_code == 200


def test_a_change_of_a_text_that_is_another_one_now_is_told(own, records):
    client = own(records)
    seen = briefs(client, 0)[0]["text"]
    with records.open("a") as file:
        file.write(json.dumps(record(0, text="Newer.")) + "\n")
    answer = client.post("/api/items/0", json={"seen": 0, "shown": seen, "decision": "accepted"})
    assert (answer.status_code, answer.json()["now"]["state"]["text"]) == (409, "Newer.")
    assert client.post("/api/items/0", json={"seen": 0, "shown": "Newer.", "decision": "accepted"}).status_code == 200


def test_the_caption_of_a_picture_that_is_gone_can_be_rejected_only(own, records, folder):
    client = own(records)
    (folder / "pictures/1.png").unlink()
    for change in ({"text": "Two cats."}, {"decision": "accepted"}):
        answer = client.post("/api/items/1", json={"seen": 0, **change})
        assert answer.status_code == 410
        assert answer.json()["error"] == (
            "pictures/1.png: the picture is missing: put it back, or reject its caption; nothing was changed"
        )
    assert not (folder / "captions.edits.jsonl").exists()
    assert briefs(client, 1)[0]["missing"] is True
    assert shown(client, filter="errors") == [(1, 0)]
    assert client.post("/api/items/1", json={"seen": 0, "decision": "rejected"}).status_code == 200
    assert client.post("/api/items/1", json={"seen": 1, "undo": True}).status_code == 200


def test_a_folder_with_text_files_is_read_again(own, folder):
    place = folder / "pictures"
    (place / "0.txt").write_text("One.")
    client = own(place)
    (place / "0.txt").write_text("By another program.")
    (place / "3.png").write_bytes((place / "0.png").read_bytes())
    (place / "4.png").write_bytes((place / "0.png").read_bytes())
    (place / "1.png").unlink()
    until(client, total=4)
    assert [brief and brief["text"] for brief in briefs(client, 0, 1, 2, 3)] == ["By another program.", None, "", ""]
    assert client.post("/api/items/1", json={"seen": 0, "text": "x"}).status_code == 410


def test_what_others_edit_is_found_by_the_filters(own, records):
    client = own(records)
    captions = Collection.read(records)
    edits = Edits(captions.edits_file)
    before = until(client, changes=0)
    edits.change(captions.items[2], seen=0, text="A horse.", decision="accepted")
    edits.change(captions.items[0], seen=0, decision="rejected")
    assert until(client, decided=2)["changes"] > before["changes"]
    assert shown(client, words="HORSE") == [(2, 1)]
    assert shown(client, filter="edited") == [(2, 1)]
    assert shown(client, filter="undecided") == [(1, 0)]
    assert shown(client, words="number 2") == []
    edits.path.unlink()
    until(client, decided=0)
    assert shown(client, words="number 2") == [(2, 0)]


def test_the_other_run_is_read_again_too(own, folder):
    rows = [record(number) for number in range(3)]
    a, b = write(folder / "a.jsonl", rows), write(folder / "b.jsonl", rows[:2])
    client = own(a, b)
    assert shown(client, filter="differs") == []
    with b.open("a") as file:
        file.write(json.dumps(record(0, text="A bird.")) + "\n" + json.dumps(record(2, text="A cow.")) + "\n")
    deadline = time.monotonic() + 60
    while shown(client, filter="differs") != [(0, 0), (2, 0)]:
        client.get("/api/now")
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_is_changed_before_all_is_read(records):
    """Later lines may hold a newer record of the same picture."""
    captions = Collection.open(records)
    viewer = Viewer(captions, Edits(captions.edits_file), token=TOKEN)  # its thread begins with the server

    async def ask(method: str, path: str, **settings: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(viewer.app), base_url="http://view", headers=headers
        ) as client:
            return await client.request(method, path, **settings)

    assert asyncio.run(ask("GET", "/api/now")).json()["done"] == 0
    captions.catch_up()  # the first part
    answer = asyncio.run(ask("POST", "/api/items/0", json={"seen": 0, "text": "x"}))
    assert (answer.status_code, "still being read" in answer.json()["error"]) == (503, True)
    assert asyncio.run(ask("GET", "/export")).status_code == 503
    assert not captions.edits_file.exists()


def test_bodies_that_are_no_queries(own, records):
    client = own(records)
    for query in ({"filter": "1; DROP TABLE items"}, {"sort": "number"}, {"words": 7}, {"words": "x" * 1001}):
        assert client.post("/api/shown", json=query).status_code == 422
    assert shown(client, words="'; DROP TABLE items; --") == []
    assert len(shown(client)) == 3


def test_a_disk_that_is_full_is_said_so_and_all_is_read_when_it_is_not(folder):
    source = write(folder / "many.jsonl", [record(number, id=f"n{number}") for number in range(5000)])
    captions = Collection.open(source)
    captions.index.ask("PRAGMA max_page_count = 20")
    viewer = Viewer(captions, Edits(captions.edits_file), token=TOKEN)
    viewer.live.start()
    deadline = time.monotonic() + 60
    while viewer.live.trouble is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "many.jsonl: its index cannot be written: database or disk is full" in str(viewer.live.trouble)
    assert len(captions) == 0
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        served(viewer.app) as address,
        httpx.Client(base_url=address, headers=headers, trust_env=False, verify=False) as client,
    ):
        assert until(client, trouble="", done=1)["total"] == 5000  # there is place again


def test_a_text_file_that_the_page_writes_is_not_read_again(folder):
    place = folder / "pictures"
    (place / "0.txt").write_text("One.")
    captions = Collection.read(place)
    live = Live(captions, Edits(captions.edits_file, sidecars=".txt"), None)
    live.update()
    version = captions.version
    live.edits.change(captions.item(0), seen=0, text="Two.")
    live.note_change()
    live.update()
    assert (place / "0.txt").read_text() == "Two.\n"
    assert (captions.version, captions.items[0].text) == (version, "One.")  # as it came
    assert [one >> 2 for one in captions.index.shown(["two"], "edited")] == [0]
    (place / "1.txt").write_text("By another program.")
    live.update()
    assert captions.items[1].text == "By another program."


def test_a_folder_of_many_files_keeps_few_of_them_open(folder):
    for number in range(200):
        write(folder / f"{number:03}.jsonl", [record(number, id=f"n{number}")])
    before = len([*Path("/proc/self/fd").iterdir()])
    captions = Collection.read(folder)
    assert [item.id for item in captions.items] == [f"n{number}" for number in range(200)]
    assert len([*Path("/proc/self/fd").iterdir()]) - before < 100


def test_tables_are_read_again(own, folder):
    path = folder / "captions.csv"
    path.write_text("image,caption\npictures/0.png,One.\npictures/1.png,Two.\n")
    client = own(path)
    path.write_text("image,caption\npictures/1.png,Better.\n")
    until(client, total=1)
    assert [brief and brief["text"] for brief in briefs(client, 0, 1)] == [None, "Better."]
