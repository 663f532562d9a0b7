"""`sira view` over HTTP: who may see what, what is changed, and how the command begins and ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from http.client import HTTPConnection

import httpx2 as httpx
import pytest

from sira_cli.cli.terminal.console import set_verbosity
from sira_cli.cli.view import say_found
from sira_cli.view import Collection, Edits
from tests.support.helpers import SIRA
from tests.view.conftest import HOSTILE, TOKEN, looked_at, record, write

PLACES = ("/", "/page/main.js", "/api/now", "/api/items/0", "/thumb/0", "/picture/0", "/export", "/nothing")


@pytest.fixture
def client():
    """Opens clients that have the token, as a browser has it."""
    opened = []

    def client(address: str) -> httpx.Client:
        opened.append(httpx.Client(base_url=address, follow_redirects=True, trust_env=False, verify=False))
        assert opened[-1].get(f"/?token={TOKEN}").status_code == 200
        return opened[-1]

    yield client
    for each in opened:
        each.close()


def get(address: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(address + path, headers=headers, trust_env=False, verify=False)


# --- who may see what


def test_without_the_token_nothing_is_shown(serve, records):
    address = serve(records)
    for path in PLACES:
        for answer in (
            get(address, path),
            get(address, path, Authorization="Bearer wrong"),
            get(address, f"{path}?token=x"),
        ):
            assert answer.status_code == 403, path
            assert "captions" not in answer.text
    post = httpx.post(f"{address}/api/items/0", json={"seen": 0, "text": "x"}, trust_env=False)
    assert post.status_code == 403
    assert get(address, "/api/now", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(serve, records):
    address = serve(records)
    answer = get(address, f"/?token={TOKEN}")
    assert answer.status_code == 303
    assert TOKEN not in answer.headers["location"]
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert address.rpartition(":")[2] in cookie.partition("=")[0]  # servers at other ports have other cookies


def test_every_answer_allows_the_page_its_own_things_only(serve, records, client):
    address = serve(records)
    answers = [client(address).get(path) for path in PLACES] + [get(address, "/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_pages_of_other_sites_change_nothing(serve, records, client):
    own = client(serve(records))
    body = json.dumps({"seen": 0, "text": "x"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert own.post("/api/items/0", content=body, headers={"content-type": kind}).status_code == 415
    foreign = {"content-type": "application/json", "sec-fetch-site": "cross-site"}
    assert own.post("/api/items/0", content=body, headers=foreign).status_code == 403
    assert not Collection.read(records).edits_file.exists()


def test_paths_lead_nowhere(serve, records):
    host = serve(records).removeprefix("http://")
    for path in (
        *("/page/../view.css", "/page/..%2f..%2fapp.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/a.css%00"),
        *(
            "/thumb/../captions.jsonl",
            "/thumb/3",
            "/thumb/-1",
            "/thumb/1e0",
            "/thumb/%31%00",
            "/thumb/%D9%A1",
            "/thumb/",
        ),
        *("/picture/0/..", "/api/items/99999999999999999999", "/captions.jsonl", "/pictures/0.png", "/api/items/0.0"),
    ):
        connection = HTTPConnection(host)
        connection.putrequest("GET", path, skip_accept_encoding=True)  # as it is; clients would tidy it up
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.endheaders()
        assert connection.getresponse().status == 404, path
        connection.close()


def test_hostile_captions_are_data(serve, folder, client):
    rows = [record(0, text=HOSTILE, error=HOSTILE), record(1, file_name=f"{HOSTILE}/../../../../etc/passwd")]
    own = client(serve(write(folder / "captions.jsonl", rows)))
    answer = own.post("/api/items", json={"numbers": [0, 1]})
    assert answer.headers["content-type"] == "application/json"
    assert [item["text"] for item in answer.json()] == [row["text"] for row in rows]
    assert HOSTILE not in own.get("/").text
    assert own.get("/thumb/1").status_code == 204  # no picture, whatever it is


# --- pictures, texts, changes


def test_what_the_page_is_told(serve, folder, client):
    first = {"candidates": [{"thing": "dog", "support": 0.9}, {"thing": "cup", "support": 0.1}, "torn"]}
    first |= {"added": ["dog"], "forbidden": ["cup"]}
    rows = [looked_at(0, cat=0.0, dog=0.9) | first, record(1, status="error", text="", error="no memory"), record(2)]
    rows.append(record(3, text="Gone.", reasoning="Let me look."))
    other = [row | {"text": "A cat."} for row in rows[2:3]]
    a, b = write(folder / "a.jsonl", rows), write(folder / "b.jsonl", other)
    a.write_bytes(a.read_bytes() + b"{torn")
    own = client(serve(a, b))
    found = own.get("/api/now").json()
    assert (found["title"], found["other"], found["broken"], found["missing"]) == ("a.jsonl", "b.jsonl", 1, 1)
    assert (found["total"], found["decided"], found["done"], found["trouble"]) == (4, 0, 1, "")
    first, failed, differs, gone = own.post("/api/items", json={"numbers": [0, 1, 2, 3]}).json()
    assert (first["support"], first["low"], first["alone"]) == (0.0, [[2, 5]], True)
    assert (failed["error"], failed["text"]) == ("no memory", "")
    assert differs["differs"] is True
    assert (gone["missing"], gone["alone"]) == (True, True)
    whole = own.get("/api/items/0").json()
    assert [(thing["thing"], thing["support"], thing["low"]) for thing in whole["things"]] == [
        ("cat", 0.0, True),
        ("dog", 0.9, False),
    ]
    assert [(thing["thing"], thing["support"], thing["low"]) for thing in whole["candidates"]] == [
        ("dog (added)", 0.9, False),
        ("cup", 0.1, True),
    ]
    assert (whole["reasoning"], own.get("/api/items/3").json()["reasoning"]) == ("", "Let me look.")
    differences = own.post("/api/differences", json={"numbers": [2, 3]}).json()
    assert differences[1] == []
    assert "".join(stretch[-1] for stretch in differences[0]) == rows[2]["text"]
    assert "".join(stretch[0] for stretch in differences[0]) == "A cat."


def test_a_change_names_what_it_saw_and_a_stale_one_gets_both(serve, records, client):
    address = serve(records)
    one, two = client(address), client(address)
    before = records.read_bytes()
    first = one.post("/api/items/0", json={"seen": 0, "text": "One."})
    assert (first.status_code, first.json()["state"]["version"], first.json()["brief"]["edited"]) == (200, 1, True)
    stale = two.post("/api/items/0", json={"seen": 0, "decision": "accepted"})
    assert (stale.status_code, stale.json()["now"]["state"]["text"]) == (409, "One.")
    assert two.post("/api/items/0", json={"seen": 1, "decision": "accepted"}).status_code == 200
    assert one.get("/api/items/0").json()["state"] == {
        "version": 2,
        "text": "One.",
        "decision": "accepted",
        "can_undo": True,
        "can_redo": False,
    }
    assert one.post("/api/items/0", json={"seen": 2, "undo": True}).json()["state"]["decision"] == ""
    assert one.post("/api/items/0", json={"seen": 3, "redo": True}).json()["state"]["decision"] == "accepted"
    assert one.post("/api/items/0", json={"seen": 4, "redo": True}).status_code == 422
    assert records.read_bytes() == before


def test_bodies_that_are_no_changes(serve, records, client):
    own = client(serve(records))
    for body, status in (
        *((b"", 422), (b"[]", 422), (b"{}", 422), (b'{"seen": "0"}', 422), (b'{"seen": -1}', 422), (b"\xff", 422)),
        *((b'{"seen": 0, "path": "/etc/passwd"}', 422), (b'{"seen": 0, "decision": "maybe"}', 422)),
        *((b'{"seen": 0, "text": 7}', 422), (b'{"seen": 0, "undo": true}', 422), (b" " * (2**20 + 1), 413)),
        *((b'{"seen": 0, "text": "\\ud800"}', 422), (json.dumps({"seen": 0, "text": "x" * 100_001}).encode(), 422)),
    ):
        answer = own.post("/api/items/0", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, body[:50]
        assert answer.json()["error"]
    assert own.get("/api/items/0").json()["state"]["version"] == 0


def test_pictures_are_made_small_and_what_cannot_be_opened_is_no_error(serve, folder, records, client):
    (folder / "pictures/1.png").write_bytes(b"no picture")
    (folder / "pictures/2.png").unlink()
    own = client(serve(records))
    good = own.get("/thumb/0")
    assert (good.status_code, good.headers["content-type"]) == (200, "image/jpeg")
    assert [own.get(f"/{kind}/{number}").status_code for number in (1, 2) for kind in ("thumb", "picture")] == [204] * 4
    assert own.post("/api/items", json={"numbers": [2]}).json()[0]["missing"] is True


def test_the_export_is_that_of_the_library(serve, records, client):
    own = client(serve(records))
    own.post("/api/items/0", json={"seen": 0, "text": "One."})
    own.post("/api/items/1", json={"seen": 0, "decision": "rejected"})
    answer = own.get("/export")
    assert answer.headers["content-disposition"] == 'attachment; filename="captions.mended.jsonl"'
    rows = [json.loads(line) for line in answer.text.splitlines()]
    original = [json.loads(line) for line in records.read_text().splitlines()]
    assert rows == [original[0] | {"text": "One.", "draft": original[0]["text"]}, original[2]]


def test_a_log_that_cannot_be_written_ends_nothing(serve, records, client):
    captions = Collection.read(records)
    own = client(serve(records))
    captions.edits_file.mkdir()
    answer = own.post("/api/items/0", json={"seen": 0, "text": "One."})
    assert answer.status_code == 500
    assert "captions.edits.jsonl" in answer.json()["error"]
    captions.edits_file.rmdir()
    assert own.post("/api/items/0", json={"seen": 0, "text": "One."}).status_code == 200


# --- the command


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_command_prints_its_address_and_ends_well(records, sent, code):
    command = [SIRA, "view", str(records), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        said = []
        while "http://127.0.0.1" not in (line := process.stderr.readline()):
            assert line or process.poll() is None, "the server ended"
            said.append(line)
        assert said == [f"sira: 3 captions in {records}\n"]
        address = line.split()[1]
        with httpx.Client(follow_redirects=True, trust_env=False) as own:
            assert "page/main.js" in own.get(address).text
            assert get(address.partition("?")[0], "api/now").status_code == 403
            process.send_signal(sent)  # while a connection is open
            assert process.wait(30) == code
        assert process.stderr.read() == ""


def test_what_was_found_is_counted_in_words_that_fit(folder, capsys):
    lines = [json.dumps(record(7 + each, text="Gone.")) for each in range(2)] + ["{torn"] * 2
    (folder / "a.jsonl").write_text("\n".join(lines))
    captions = Collection.read(folder / "a.jsonl")
    captions.look_for_pictures()
    set_verbosity(quiet=False, verbose=0)  # an earlier command of this process may have been quiet
    say_found(captions)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("sira: 2 captions in")
    assert lines[1:] == ["sira: left out: 2 broken lines", "sira: missing, and shown by name: 2 pictures"]


def test_the_export_needs_no_server(sira, records, folder):
    captions = Collection.read(records)
    Edits(captions.edits_file).change(captions.items[0], seen=0, text="One.")
    code, _, err = sira("view", records, "--export", folder / "mended.jsonl")
    assert (code, err) == (0, f"sira: 3 of 3 captions in {folder / 'mended.jsonl'}\n")
    assert Collection.read(folder / "mended.jsonl").items[0].text == "One."


def test_what_cannot_be_viewed(sira, records, folder):
    code, _, err = sira("view", folder / "nothing.jsonl")
    assert code == 2
    assert "nothing.jsonl: no such file or folder" in err
    (folder / "notes.md").touch()
    assert "expected a folder of pictures, or a file of captions" in sira("view", folder / "notes.md")[2]
    code, _, err = sira("view", records, "--with", write(folder / "b.jsonl", [record(9)]), "--no-browser")
    assert code == 2
    assert "have no picture in common" in err
    (folder / "log").write_text("dear diary\n")
    code, _, err = sira("view", records, "--edits", folder / "log", "--no-browser")
    assert code == 2
    assert "give another --edits" in err


def test_the_browser_is_opened_by_a_file_that_does_not_name_the_token_to_others(sira, records, monkeypatch):
    opened = []

    def open_file(address: str) -> None:
        path = address.removeprefix("file://")
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            opened.append((address, file.read()))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("webbrowser.open", open_file)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    code, _, err = sira("view", records, "--port", "0")
    assert code == 130
    ((address, page),) = opened
    token = err.split("?token=")[1].split()[0]
    assert token in page
    assert token not in address


def test_names_that_are_not_the_servers_are_refused(serve, records):
    address = serve(records, hosts=["127.0.0.1", "localhost"])
    assert get(address, "/", Host="evil.example").status_code == 400
    assert get(address, "/api/now", Authorization=f"Bearer {TOKEN}", Host="evil.example").status_code == 400
    assert get(address, "/api/now", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_a_port_that_is_taken(sira, records):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = sira("view", records, "--port", taken.getsockname()[1], "--no-browser")
    assert code == 2
    assert "is taken by another program: give another one" in err
