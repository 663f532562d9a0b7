"""Pictures at URLs, from a real server on this machine: what is downloaded, what is refused."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sira_cli import interrupts
from sira_cli.errors import PictureError
from sira_cli.pictures import web
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.sources import as_picture
from tests.support.shards import EXAMPLES, content
from tests.support.web import WebServer, answering, reply

PICTURE = EXAMPLES[0].read_bytes()
OK = b"HTTP/1.1 200 OK\r\n"
# A beginning, and what follows it byte by byte: each comes within the limit of a single read, and takes seconds.
DRIPS = {
    "headers": (OK, b"X-Slow: " + b"x" * 99),
    "body": (OK + b"Content-Length: %d\r\n\r\n" % len(PICTURE), PICTURE[:100]),
}


def answer(path: str) -> Iterator[bytes]:
    """The answer of the server, as the path says."""
    name, _, query = path.strip("/").partition("?")
    match name.strip("/"):
        case "to" | "loop":
            yield from reply(302, headers={"Location": query or path})
        case "status":
            yield from reply(int(query))
        case "endless":
            yield OK + b"\r\n"
            while True:
                yield b"x" * 2**16
                time.sleep(float(query or 0))
        case "silent":
            time.sleep(3)
        case "zip":
            yield from reply(200, PICTURE, {"Content-Encoding": "gzip"})
        case "drip":
            first, rest = DRIPS[query]
            yield first
            for byte in rest:
                time.sleep(0.02)
                yield bytes([byte])
        case _:
            yield from reply(200, PICTURE)


@pytest.fixture
def private() -> Iterator[WebServer]:
    with answering(answer) as server:
        yield server


@pytest.fixture
def server(private, monkeypatch) -> WebServer:
    """The same, which counts as public."""
    monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
    return private


def url(server: WebServer, path: str) -> str:
    return f"{server.address}/{path}"


def read(server: WebServer, path: str) -> bytes:
    (picture,) = find_pictures([url(server, path)])
    return content(picture)


def refused(location: str) -> str:
    with pytest.raises(PictureError) as caught:
        as_picture(location).read()
    return str(caught.value)


def fails(server: WebServer, path: str) -> str:
    return refused(url(server, path)).removeprefix(f"{url(server, path)}: failed_to_download: ")


def test_a_picture_is_downloaded(server):
    assert read(server, "cat.png") == PICTURE
    assert read(server, "é b.png?size=1&x=%20#part") == PICTURE
    assert server.asked == ["GET /cat.png", "GET /%C3%A9%20b.png?size=1&x=%20"]
    (picture,) = find_pictures(["http://me:secret@example.org/a.png?id=1"])
    assert picture.name_in(Path("/tmp")) == "http://example.org/a.png?id=1"
    assert "secret" not in picture.label
    assert pickle.loads(pickle.dumps(picture)) == picture
    assert picture.is_here() is None


def test_redirects_lead_to_the_web_only(server):
    assert read(server, "to/?/cat.png") == PICTURE
    assert read(server, f"to/?{url(server, 'to/?/cat.png')}") == PICTURE
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/a.png", "gopher://x/"):
        assert "failed_to_download: redirected to" in refused(url(server, f"to/?{target}"))
    assert fails(server, "loop") == "redirected more than 5 times"
    assert server.asked.count("GET /loop") == 6


def test_what_fails_is_named_and_asked_for_once(server):
    for status in (404, 429, 500):
        assert fails(server, f"status?{status}").endswith(f"the server answers {status}")
        assert server.asked.count(f"GET /status?{status}") == 1
    assert fails(server, "zip") == "the server sends a compressed file that was not asked for"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        assert refused(f"http://127.0.0.1:{taken.getsockname()[1]}/a.png").endswith(": Connection refused")
    (picture,) = find_pictures(["http://user:secret@[x/a.png?b"])
    assert picture.name_in(None) == "http://[x/a.png?b"
    assert refused(picture.location).startswith("http://[x/a.png: failed_to_download: is not a URL: ")


def test_limits(server, monkeypatch):
    monkeypatch.setattr(web, "LARGEST", 2**20)
    assert fails(server, "endless") == "is larger than 1 MiB"
    monkeypatch.setattr(web, "_WAITS", {**web._WAITS, "read": 0.2})
    assert fails(server, "silent") == "timed out"
    monkeypatch.setattr(web, "SECONDS", 0.3)
    assert refused(url(server, "endless?0.05")).endswith("failed_to_download: takes longer than 0 s")


PRIVATE = """
10.1.2.3 172.16.0.1 192.168.1.1 127.0.0.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1 ::1 fe80::1%eth0 fc00::1
::ffff:10.0.0.1 2002:7f00:1:: 64:ff9b::7f00:1 ff02::1 ::127.0.0.1 ::8.8.8.8 ::ffff:0:7f00:1 64:ff9b:1::1 fec0::1
"""


def test_which_addresses_are_public():
    assert [address for address in PRIVATE.split() if web.is_public(address)] == []
    assert all(map(web.is_public, ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8")))


def test_private_addresses_are_refused(private, monkeypatch):
    for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"):
        assert "failed_to_download" in refused(f"http://{host}:{private.server_address[1]}/cat.png")
    assert private.asked == []
    monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
    message = refused(url(private, f"to/?http://127.0.0.2:{private.server_address[1]}/cat.png"))
    assert "127.0.0.2 is at 127.0.0.2, which is no public address" in message
    assert "GET /cat.png" not in private.asked


def test_a_name_is_looked_up_once(monkeypatch):
    """A name server that gives other addresses each time: one is connected to that was checked, and no private one."""
    answers, connected = iter([["93.184.215.14", "10.0.0.1"], ["127.0.0.1"]]), []

    def look_up(host, port, *args, **kwargs):
        addresses = next(answers) if host == "rebind.example" else [host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    def connect(address, *args, **kwargs):
        connected.append(address[0])
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    assert refused("http://rebind.example/cat.png").endswith("nobody there")
    message = refused("http://rebind.example/cat.png")
    assert "rebind.example is at 127.0.0.1, which is no public address" in message
    assert connected == ["93.184.215.14"]


def test_a_certificate_is_of_the_host_and_not_of_its_address(monkeypatch):
    """What TLS is asked for; nothing listens there."""
    names = []
    monkeypatch.setattr(web.httpx2.Client, "stream", lambda *args, **options: names.append((args, options)) or 1 / 0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("93.184.215.14", 0))])
    with pytest.raises(ZeroDivisionError):
        as_picture("https://me:secret@example.org:8443/a.png").read()
    ((_, method, at), options) = names[0]
    assert (method, str(at)) == ("GET", "https://93.184.215.14:8443/a.png")
    assert options["headers"] == {"Host": "example.org:8443"}
    assert options["extensions"]["sni_hostname"] == "example.org"


@pytest.mark.parametrize("what", DRIPS)
def test_a_download_has_one_deadline_over_everything(server, monkeypatch, what):
    """Without it, the download goes on and ends in an error of another kind; its thread ends too."""
    monkeypatch.setattr(web, "SECONDS", 0.2)
    assert refused(url(server, f"drip?{what}")).endswith("failed_to_download: takes longer than 0 s")
    for download in (thread for thread in threading.enumerate() if thread.name == "sira-request"):
        download.join(1)
        assert not download.is_alive()


def test_nobody_waits_for_a_name_server_or_after_an_interrupt(server, monkeypatch):
    """A reader waits for a download when the signal comes to the main thread."""
    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        download = pool.submit(read, server, "silent")
        while not server.asked:
            time.sleep(0.01)
        patch.setattr(interrupts, "_happened", True)
        assert isinstance(download.exception(2), KeyboardInterrupt)
    answers = threading.Event()
    monkeypatch.setattr(web, "SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait(20) and [])
    assert refused("http://example.org/a.png").endswith("takes longer than 0 s")
    answers.set()
