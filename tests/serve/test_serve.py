"""`sira serve` as a program: who goes, who comes too often, limits, keys, addresses, the command, and its page."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import Mock

import httpx
import psutil
import pytest
import torch
from PIL import Image

from sira_cli.cli.serve import limits_of
from sira_cli.errors import PictureMemoryError, SettingsError
from sira_cli.look.claims import bare, doubt, says_something
from sira_cli.pictures import apart
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve import Limits
from sira_cli.serve.app import Server
from sira_cli.serve.hosts import is_local
from tests.serve.helpers import (
    LONG,
    PICTURES,
    PROMPT,
    counted,
    described,
    held,
    opened,
    post,
    refusal,
    running,
    said,
    streaming,
    wait_for,
)
from tests.support.asgi import served
from tests.support.browser import tab
from tests.support.helpers import SIRA, imported

# --- who goes, and who comes too often


def test_who_comes_when_too_many_wait_is_told_to_come_again(endless):
    """Those who wait are decoded together, up to two pictures of the largest size."""
    limits = Limits(waiting=3, tokens=LONG, megapixels=0.15)
    with running(endless, limits=limits) as address, ThreadPoolExecutor(3) as pool:
        with streaming(address):
            waiting = [pool.submit(post, address, max_tokens=2) for _ in range(3)]
            wait_for(address, 3, *waiting)
            refused = post(address, timeout=10)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert [each.result().status_code for each in waiting] == [200] * 3
        assert counted(address, "sira_batch_texts_count") >= 3  # of one, two and one


@pytest.mark.parametrize("sira", [{}, {"verify": "guide"}, {"method": "opera"}])
def test_a_client_that_goes_frees_the_decoder(endless, sira):
    """Of a text that would never end, also of one that shows nothing before its end; left streams are counted."""
    with running(endless, limits=Limits(tokens=LONG), batch_size=1) as address:
        for stream in (False, True):
            body = {"messages": said(), "max_tokens": LONG, "stream": stream, "sira": sira}
            url = f"{address}/v1/chat/completions"
            with suppress(httpx.ReadTimeout), httpx.stream("POST", url, json=body, timeout=1.0) as answer:
                next(answer.iter_bytes())
        assert post(address, max_tokens=2).json()["usage"]["completion_tokens"] == 2
        assert counted(address, 'sira_requests_total{status="499"}') == 2


# Decoders as they would be if no scans of a JPEG were counted.
UNGUARDED = """
import sys
from sira_cli.pictures import apart, work
work.SCANS = 10**9
apart.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def endless_picture() -> str:
    """Few bytes that take hours to decode: a progressive JPEG whose last scan comes again and again."""
    Image.new("L", (5600, 5600), 7).save(file := io.BytesIO(), "JPEG", progressive=True, quality=10)
    plain = file.getvalue()
    last = plain[plain.rindex(b"\xff\xda") : -2]
    return f"data:image/jpeg;base64,{b64encode(plain[:-2] + 100_000 * last + plain[-2:]).decode()}"


def test_a_picture_that_takes_hours_to_decode_holds_nobody_up(lvlm, monkeypatch):
    """Neither while its client waits nor when it has left, nor when the server ends."""
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, "-c", UNGUARDED))
    messages = said(picture=endless_picture())
    with running(lvlm, limits=Limits(seconds=60)) as address, ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(post, address, 10, messages=messages) for _ in range(2)]
        wait_for(address, 2, *slow)
        assert post(address, max_tokens=2).status_code == 200
        assert not any(each.done() for each in slow)
        assert all(isinstance(each.exception(), httpx.ReadTimeout) for each in slow)
        until = time.monotonic() + 20
        while decoders() > 1:  # that of the ordinary picture waits for the next one
            assert time.monotonic() < until
            time.sleep(0.02)
        assert counted(address, 'sira_requests_total{status="499"}') == 2
    assert decoders() == 0


def decoders() -> int:
    """The number of processes that decode for this one."""
    return sum(UNGUARDED in child.cmdline() for child in psutil.Process().children())


def test_a_jpeg_of_thousands_of_scans_is_refused(address):
    error = refusal(post(address, messages=said(picture=endless_picture())), 413)
    assert error["message"].startswith("the picture: has 100,006 scans, expected at most 200")


def test_who_goes_before_the_body_ends_is_no_failure_of_the_server(lvlm, caplog):
    with running(lvlm) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        until = time.monotonic() + 20
        while not counted(address, 'sira_requests_total{status="499"}'):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert (counted(address, 'sira_requests_total{status="500"}'), caplog.records) == (0, [])


def test_a_text_that_takes_too_long(endless):
    with running(endless, limits=Limits(tokens=LONG, seconds=1.5)) as address:
        assert refusal(post(address, max_tokens=LONG), 504)["code"] == "timeout"
        *_, error, done, _ = post(address, max_tokens=LONG, stream=True).text.split("\n\n")
        assert (json.loads(error.removeprefix("data: "))["error"]["code"], done) == ("timeout", "data: [DONE]")


def test_answers_and_their_tokens_are_counted_once(lvlm):
    with running(lvlm) as address:
        tokens = post(address, max_tokens=5).json()["usage"]["completion_tokens"]
        post(address, max_tokens=3, stream=True)
        post(address, max_tokens=0)
        assert counted(address, "sira_output_tokens_total") == tokens + 3 == 8
        assert counted(address, "sira_request_seconds_count") == 2
        assert [counted(address, f'sira_requests_total{{status="{code}"}}') for code in (200, 400)] == [2, 1]
        assert counted(address, "sira_waiting_requests") == 0


# --- limits


def test_urls_are_fetched_only_from_public_addresses(lvlm, monkeypatch):
    with running(lvlm, limits=Limits(mb=0.004), allow_urls=True) as address:
        named = f"{address}/metrics".replace("127.0.0.1", "localhost")
        private = refusal(post(address, messages=said(picture=named)))["message"]
        assert "failed_to_download: localhost has no public address" in private
        assert not any(each in private for each in ("127.0.0.1", "::1", "allow"))  # where a name leads is not told
        monkeypatch.setattr("sira_cli.pictures.web.is_public", lambda ip: True)
        assert "is not a picture" in post(address, messages=said(picture=f"{address}/health")).text  # it was fetched
        large = refusal(post(address, messages=said(picture=f"{address}/page/script.js")), 413)["message"]
        assert large == "image_url: larger than 4,194 bytes"


def test_limits_of_bodies_and_pictures(lvlm):
    """Of all pictures of a conversation: one is within the limits, two are too large, and three too many."""
    square = Image.new("RGB", (32, 32), "red")
    answered = {"role": "assistant", "content": "A red one."}
    turns = [*said(picture=square), answered, *said("And now?", square), answered, *said("Now?", square)]
    with running(lvlm, limits=Limits(megapixels=0.0015, pictures=2, mb=1)) as address:
        assert post(address, messages=turns[:1], max_tokens=2).status_code == 200
        for messages, message in (
            (turns[:3], "the pictures have 2,048 pixels; this server takes 1,500"),
            (turns, "3 pictures; this server takes 2 in one conversation"),
            (said(), "the picture has"),
            (said("x" * 2**20), "the request has more than 1,048,576 bytes"),
            (said(picture=Image.new("1", (14_000,) * 2)), "the picture: has more than"),  # few bytes, many samples
        ):
            error = refusal(post(address, messages=messages), 413)
            assert error["code"] == "too_large"
            assert message in error["message"]


def test_what_is_as_large_as_a_limit_allows_is_answered(lvlm):
    """And what is larger by one is not: bytes of a body, pixels of all pictures, and pictures."""
    small = Image.new("RGB", (40, 25), "red")
    turns = [*said(picture=small), {"role": "assistant", "content": "Red."}, *said("And now?", small)]
    with running(lvlm, limits=Limits(mb=0.01, megapixels=0.002, pictures=2)) as address:
        body = json.dumps({"messages": turns, "max_tokens": 2})
        for size, code in ((10_485, 200), (10_486, 413)):
            answer = httpx.post(
                f"{address}/v1/chat/completions",
                content=body + " " * (size - len(body)),
                headers={"content-type": "application/json"},
                timeout=60,
            )
            assert answer.status_code == code
        for width, code in ((80, 200), (81, 413)):
            picture = Image.new("RGB", (width, 25), "red")
            assert post(address, messages=said(picture=picture), max_tokens=2).status_code == code


@pytest.mark.parametrize(("asked", "decoded"), [(5, 5), (6, 6), (7, 6), (-1, 6)])
def test_texts_are_as_long_as_the_server_decodes(endless, asked, decoded):
    with running(endless, limits=Limits(tokens=6)) as address:
        for name in ("max_tokens", "max_completion_tokens"):
            assert post(address, **{name: asked}).json()["usage"]["completion_tokens"] == decoded


def test_batches_are_no_larger_than_they_may_be(lvlm):
    """Than the number of texts, and than two pictures of the largest size, of which each one is within the limit."""
    square = said(picture=Image.new("RGB", (40, 25), "red"))
    for size, texts, batches in ((2, 5, 3), (9, 5, 3)):
        server = Server(lvlm, size, Limits(megapixels=0.05 if size == 2 else 0.001))
        with served(server.app) as address, ThreadPoolExecutor(texts) as pool, held(server, address, square) as release:
            answers = [pool.submit(post, address, messages=square, max_tokens=2) for _ in range(texts)]
            release(texts)
            assert [each.result().status_code for each in answers] == [200] * texts
            assert counted(address, "sira_batch_texts_count") - 1 == batches


def test_what_the_command_takes_as_a_limit():
    for given, expected in (("waiting=1024", 1024), ("seconds=1", 1), ("prompt=1000000000", 10**9)):
        assert getattr(limits_of([given]), given.partition("=")[0]) == expected
    assert limits_of(["mb=8", "mb=2"]) == Limits(mb=2)
    for given in ("waiting=0", "waiting=1025", "mb=-1", "mb=1.5", "mb", "=3", "prompt=1000000001"):
        with pytest.raises(SettingsError, match=f"--limit {given}: expected"):
            limits_of([given])


@pytest.mark.parametrize("error", [MemoryError, PictureMemoryError, torch.OutOfMemoryError])
def test_who_meets_a_lack_of_memory_is_told_to_come_again(lvlm, monkeypatch, error):
    monkeypatch.setattr(Lvlm, "answer", Mock(side_effect=error("no room")))
    with running(lvlm) as address:
        answer = post(address)
        assert (refusal(answer, 503)["code"], answer.headers["retry-after"]) == ("out_of_memory", "2")


def test_a_fault_of_the_server_is_told_to_its_log_and_not_to_clients(lvlm, monkeypatch, caplog):
    monkeypatch.setattr(Lvlm, "answer", Mock(side_effect=RuntimeError("the secret of /home")))
    with running(lvlm) as address:
        answer = post(address)
        assert refusal(answer, 500)["code"] == "internal_error"
        assert "secret" not in answer.text
        assert "the secret of /home" in caplog.text
        assert counted(address, 'sira_requests_total{status="500"}') == 1


def test_prompts_that_are_too_long(lvlm, address):
    """Their text, or text and pictures together; what is as long as it may be is answered."""
    usual = lvlm.prepare([Image.open(PICTURES[0])], [PROMPT])["input_ids"].shape[1]
    with running(lvlm, limits=Limits(prompt=usual)) as own:
        assert post(own, max_tokens=2, sira={"method": "greedy"}).status_code == 200
    long, most = "umbrella " * 2048, usual - 1  # more than the model's config has positions
    whole = f"the prompt has {usual} tokens; this server takes {most}, with its pictures"
    with running(lvlm, limits=Limits(prompt=most)) as own:
        for server, change, message in (
            (own, {}, whole),
            (address, {"messages": said(long)}, "and more, without its pictures; this server takes 1,024"),
            (address, {"messages": said(system=long)}, "without its pictures"),
            (address, {"sira": {"method": "icd", "role": long}}, "without its pictures"),
            (address, {"messages": [*said(), {"role": "assistant", "content": "?" * 10**6}, *said()]}, "without its"),
        ):
            error = refusal(post(server, **change), 413)
            assert error["code"] == "context_length_exceeded"
            assert message in error["message"]


def test_a_key_is_demanded_where_one_is_set(lvlm):
    with running(lvlm, api_key="schlüssel") as address:
        for path in ("/v1/models", "/metrics", "/api/tags"):
            for sent in ("", "schlüssel", "Basic schlüssel", "Bearer schlüssels", "Bearer schlussel"):
                answer = httpx.get(address + path, headers={"Authorization": sent.encode()})
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            for scheme in ("Bearer", "bearer", "BEARER "):
                assert httpx.get(address + path, headers={"Authorization": f"{scheme} schlüssel".encode()}).is_success
        for path in ("/v1/chat/completions", "/api/chat", "/api/generate", "/api/show"):
            assert "API key" in httpx.post(address + path).text
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("sent", ["", "s", "secre", "ecret", "secrets", "secretsecret", "Secret", "secret x"])
def test_a_key_is_compared_as_a_whole(lvlm, sent):
    with running(lvlm, api_key="secret") as address:
        answer = httpx.get(f"{address}/v1/models", headers={"Authorization": f"Bearer {sent}".strip()})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_only_the_page_and_its_health_need_no_key(lvlm):
    """Every path of the application, by each of its methods."""
    server, open_paths = Server(lvlm, api_key="secret"), set()
    with served(server.app) as address:
        for route in server.app.routes:
            for method in route.methods:
                if httpx.request(method, address + route.path).status_code != 401:
                    open_paths.add(route.path)
    assert open_paths == {"/", "/health", "/page/style.css", "/page/script.js", "/page/element.js"}


OWN, ALSO_OWN = socket.gethostname(), f"{socket.gethostname().upper()}:8000"
LOCAL = ("localhost", "LocalHost:8000", "127.0.0.1", "127.8.0.1:80", "[::1]:8000", "0.0.0.0", "192.168.65.254:8000")
LOCAL += ("host.docker.internal", "Host.Containers.Internal:8000", "mac.local:8000", "sira.localhost", OWN, ALSO_OWN)
FOREIGN = ("evil.example", "evil.example:8000", "8.8.8.8", "localhost.evil.example", "internal.evil.example", "")
FOREIGN += ("xlocalhost", "evil.example:x.local", "evil.example#.local", "[::1]evil.example", "[2001:4860::1]")
FOREIGN += ("a@b.local", "localhost:", ":80", "a.local.evil.example", "a.internal.evil.example:8000")


@pytest.mark.parametrize(("host", "local"), [*((host, True) for host in LOCAL), *((host, False) for host in FOREIGN)])
def test_names_of_this_machine_and_of_private_networks_are_local(host, local):
    """As in `allowedHost` and `allowedHostsMiddleware` of Ollama 0.12.11."""
    assert is_local(host) == local


def test_without_a_key_requests_under_foreign_names_are_refused(address):
    """By an error of the path's protocol, whatever the path; it says what to do, and not how this machine is called."""
    for path in ("v1/models", "api/tags", "health", "", "nowhere"):
        assert httpx.get(f"{address}/{path}", headers={"Host": "host.docker.internal"}).status_code in (200, 404)
        answer = httpx.get(f"{address}/{path}", headers={"Host": "evil.example:8000"})
        error = answer.json()["error"]
        message = error if path == "api/tags" else error["message"]
        assert answer.status_code == 400
        assert "start it with --api-key" in message
        assert "not to Host 'evil.example:8000'" in message
        assert f"{OWN}," not in message


def test_with_a_key_any_name_is_answered(lvlm):
    with running(lvlm, api_key="secret") as address:
        headers = {"Host": "sira.example", "Authorization": "Bearer secret"}
        assert httpx.get(f"{address}/v1/models", headers=headers).status_code == 200


def test_head_works_where_get_does(lvlm):
    server = Server(lvlm)
    with served(server.app) as address:
        for route in server.app.routes:
            path = route.path.replace("{name:path}", "demo")
            if "GET" in route.methods:
                get, head = httpx.get(address + path), httpx.head(address + path)
                assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
                assert head.headers["content-type"] == get.headers["content-type"]


OPENAIS = "Not Found; this server has /v1/chat/completions, /v1/models"
OLLAMAS = "Not Found; this server has /api/chat, /api/generate, /api/show, /api/tags"
MISSING = [(path, OPENAIS) for path in ("/v1", "/v1/", "/v1/responses", "/v1/completions", "/completions", "/models")]
MISSING += [(path, OLLAMAS) for path in ("/api", "/api/pull")]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(("path", "says"), MISSING)
def test_a_path_that_is_not_here_says_what_is(address, method, path, says):
    error = httpx.request(method, address + path).json()["error"]
    assert f"{method} {path}: {says}" in (error if path.startswith("/api") else error["message"])


# --- the command


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_the_command_answers_and_ends_well(sent, code):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [SIRA, "serve", "-p", "demo", "--port", address.rpartition(":")[2], "-b", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, ThreadPoolExecutor(8) as pool:
        while f"a page to try it at {address} " not in (line := process.stderr.readline()):
            assert line or process.poll() is None, "the server ended"
        with httpx.Client(transport=httpx.HTTPTransport(retries=9)) as client:
            client.get(f"{address}/health")
        answers = [pool.submit(post, address, 120, max_tokens=100) for _ in range(8)]
        while not counted(address, "sira_batch_texts_count"):
            time.sleep(0.02)
        process.send_signal(sent)
        assert {each.result().status_code for each in answers} == {200, 503}  # only what was begun is finished
        assert process.wait(60) == code
        assert PROMPT not in process.stderr.read()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-p", "demo"], "is taken by another program: give another one"),
        (["-m", "/nonexistent", "--port", "0"], "/nonexistent"),
    ],
)
def test_what_is_wrong_is_known_before_anything_large_is_imported(given, message):
    """A port that is taken, and a model that is nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found, modules, err = imported("serve", "--port", taken.getsockname()[1], *given)
    assert found == 2
    assert not {"torch", "transformers"} & modules
    assert message in err


# --- the page at / in a real browser: two texts beside each other

TEXTS = "return [...document.querySelectorAll('.text')].map(one => one.textContent)"


@pytest.mark.smoke
def test_a_picture_is_described_by_two_methods(browser, lvlm, tmp_path):
    """A name that is code stays a name, and words to doubt are marked as in the record."""
    picture = tmp_path / "<img src=x onerror=alert(1)>.png"
    picture.write_bytes(PICTURES[3].read_bytes())
    lvlm = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=100))
    methods = ["sira", "greedy"]
    expected = [lvlm.under(lvlm.preset.method(name)).caption(picture).text for name in methods]
    with running(lvlm) as address:
        opened(browser, address)
        browser.click("#run")
        assert browser.text("#trouble") == "Choose a picture first."
        browser.type("#file", str(picture))
        assert tab(browser, 3) == ["Question", "Run Ctrl Enter", "Stop Esc"]
        browser.press("Control", "Enter", together=True)
        described(browser)
        assert browser.run("return [...document.querySelectorAll('h2')].map(one => one.textContent)") == methods
        assert browser.run(TEXTS) == expected
        sira = {"method": "greedy", "words": True}
        scored = post(address, messages=said(lvlm.preset.prompts.caption, picture), sira=sira).json()["sira"]["words"]
        doubted = [bare(word["word"]) for word in scored if says_something(word["word"]) and doubt(word["grounding"])]
        marked = "return [...document.querySelectorAll('article:last-child .tok')].map(one => one.textContent)"
        assert browser.run(marked) == doubted != []
        assert browser.text("#name") == picture.name
        browser.type("#question", "Is there a dog in the image?")
        browser.click("#run")
        described(browser)
        assert browser.run(TEXTS)[0] == lvlm.ask(picture, "Is there a dog in the image?").text
        sinks = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }"
        assert browser.run(sinks) == "TypeError"  # the policy lets no text become elements
        assert "TrustedHTML" in browser.log("browser")[0]["message"]
        assert not browser.alert()
        assert all(url.startswith((address, "data:", "blob:")) for url in browser.requests())


def test_isolating_headers(address):
    headers = httpx.get(address).headers
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    policy += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    assert headers["content-security-policy"] == policy
    for path in ("", "/page/style.css", "/page/script.js", "/page/element.js"):
        headers = httpx.get(address + path).headers
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cross-origin-resource-policy"] == "same-origin"
