"""`sira serve`, by the official client of OpenAI: every text is that of the library, to the character."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import openai
import pytest
from PIL import Image

from sira_cli.cli.serve import LOCAL_NAMES, address_of, listening
from sira_cli.errors import SettingsError
from sira_cli.serve import Limits
from tests.serve.conftest import running
from tests.serve.helpers import (
    LONG,
    PICTURES,
    PROMPT,
    ROOT,
    ask,
    client_of,
    counted,
    post,
    posted,
    refusal,
    rows,
    said,
    text,
)
from tests.support.helpers import SIRA

# --- the same texts


def test_a_text_is_that_of_the_library(client, lvlm):
    expected = lvlm.caption(PICTURES[0], PROMPT)
    answer = ask(client)
    assert (text(answer), answer.choices[0].finish_reason) == (expected.text, expected.finish_reason)
    assert answer.usage.completion_tokens == expected.output_tokens
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert (answer.sira["method"], answer.sira["k"], answer.sira["alpha"]) == ("sira", expected.k, expected.alpha)
    messages = said()
    del messages[0]["content"][1]
    assert text(ask(client, messages)) == lvlm.caption(PICTURES[0]).text  # by the preset's prompt


@pytest.mark.parametrize(
    ("sira", "more", "settings"),
    [
        ({"method": "vcd", "alpha": 0.5}, {"max_completion_tokens": 9}, {"max_new_tokens": 9, "system": "Be brief."}),
        ({"k": 3, "alpha": 2.0}, {}, {"k": 3, "alpha": 2.0}),
        ({}, {"temperature": 1.5, "top_p": 0.9, "seed": 7}, {"temperature": 1.5, "top_p": 0.9, "seed": 7}),
        ({}, {"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({}, {"temperature": 2.0, "seed": 5, "top_k": 1}, {}),
        ({}, {"temperature": 2.0, "seed": 5, "min_p": 1.0}, {}),
        ({}, {"temperature": 2, "top_p": 0, "seed": 3}, {}),
        ({}, {"top_k": 20, "min_p": 0.1, "temperature": 0, "frequency_penalty": 0, "user": "someone"}, {}),
    ],
)
def test_settings_are_those_of_the_request(address, lvlm, sira, more, settings):
    preset = lvlm.preset.with_settings(**settings)
    method = preset.method(sira.get("method", "sira"))
    expected = lvlm.under(method.with_values(alpha=0.5) if "method" in sira else method, preset)
    answer = posted(address, messages=said(PROMPT, PICTURES[1], settings.get("system")), sira=sira, **more)
    assert answer == expected.caption(PICTURES[1], PROMPT).text
    if not settings:
        assert answer == lvlm.caption(PICTURES[1], PROMPT).text


@pytest.mark.parametrize("sira", [{}, {"words": True}, {"method": "opera"}])
def test_a_stream_is_the_same_text(client, sira):
    whole = text(ask(client, sira=sira))
    chunks = list(ask(client, sira=sira, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece for piece in deltas if piece) == whole
    assert (sum(bool(piece) for piece in deltas) > 3) == (sira.get("method") != "opera")  # which shows nothing before
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-2].sira["method"] == sira.get("method", "sira")
    assert chunks[-1].usage.completion_tokens > 0


def test_a_stop_ends_the_text_before_it(client):
    whole = ask(client)
    stop = text(whole).split()[4]
    for stream in (False, True):
        assert text(ask(client, stop=[stop, "never said"], stream=stream)) == text(whole).split(stop)[0].strip()
        assert text(ask(client, stop="room.", stream=stream)) == text(whole).split(" room.")[0]
    cut = ask(client, stop=stop)
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < whole.usage.completion_tokens


def test_texts_without_a_seed_vary(address):
    def texts(**more: object) -> set[str]:
        return {posted(address, **{"temperature": 2, "max_tokens": 16} | more) for _ in range(4)}

    assert len(texts()) > 1
    assert len(texts(seed=-1)) == len(texts(temperature=0)) == 1
    for seed in (3, 4):  # which may be decoded together
        assert post(address, temperature=2, seed=seed, max_tokens=2).json()["sira"]["seed"] == seed


def test_the_examples_of_the_page(address, monkeypatch, capsys, lvlm):
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    chat, generate = (block.split("```")[0] for block in page.split("```python\n")[1:])
    monkeypatch.chdir(ROOT)
    exec(chat.replace("http://127.0.0.1:8000", address), made := {})
    assert "'support'" in capsys.readouterr().out
    exec(generate.replace("http://127.0.0.1:8000", address), made)
    made["client"].close()
    assert capsys.readouterr().out.strip() == lvlm.caption(ROOT / "examples" / "scene-2900000.png", PROMPT).text


# --- scores


def test_logprobs_are_those_of_the_contrast(client, lvlm):
    """Against a trace of the same text, whose rows hold both streams."""
    steps = []
    inputs = lvlm.to_device(lvlm.prepare([Image.open(PICTURES[0]).convert("RGB")], [PROMPT]))
    lvlm.generate(inputs, on_tokens=lambda tokens, step: steps.append((tokens[0], step)))
    for stream in (False, True):
        for row, (token, step) in zip(
            rows(ask(client, logprobs=True, top_logprobs=3, stream=stream)), steps, strict=True
        ):
            scores = ((1 + lvlm.alpha) * step.full[0] - lvlm.alpha * step.cf[0]).log_softmax(dim=-1)
            assert row.logprob == pytest.approx(scores[token].item(), abs=1e-4)
            assert [top.logprob for top in row.top_logprobs] == pytest.approx(scores.topk(3).values.tolist(), abs=1e-4)
            assert bytes(row.bytes).decode("utf-8", "replace") == row.token
            assert (row.token, row.bytes) in [(top.token, top.bytes) for top in row.top_logprobs]  # also the first one


@pytest.mark.parametrize("stop", [None, " a living", "oom. Th"])
def test_tokens_of_logprobs_make_up_the_text(client, stop):
    """Without an end token, and without what a string cuts off that ends the text, be it within a token."""
    whole = ask(client, max_tokens=200).choices[0]
    assert whole.finish_reason == "stop"
    expected = whole.message.content[: None if stop is None else whole.message.content.index(stop)].strip()
    for stream in (False, True):
        found = rows(ask(client, logprobs=True, stop=stop, stream=stream, max_tokens=200))
        assert "".join(row.token for row in found) == b"".join(bytes(row.bytes) for row in found).decode() == expected


# --- who goes, and who comes too often


def test_who_comes_when_too_many_wait_is_told_to_come_again(lvlm):
    with running(lvlm, limits=Limits(waiting=1), batch_size=1) as address:

        def one(_: int) -> str:
            try:
                return text(ask(client_of(address)))
            except openai.RateLimitError as error:
                return f"come again after {error.response.headers['retry-after']} s"

        with ThreadPoolExecutor(12) as pool:
            assert {*pool.map(one, range(12))} == {"come again after 2 s", lvlm.caption(PICTURES[0], PROMPT).text}


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


def test_who_goes_before_the_body_ends_is_no_failure_of_the_server(lvlm, caplog):
    with running(lvlm) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        until = time.monotonic() + 20
        while not (left := counted(address, 'sira_requests_total{status="499"}')) and time.monotonic() < until:
            time.sleep(0.02)
        assert (left, counted(address, 'sira_requests_total{status="500"}'), caplog.records) == (1, 0, [])


def test_a_text_that_takes_too_long(endless):
    with running(endless, limits=Limits(tokens=LONG, seconds=1.5)) as address:
        assert refusal(post(address, max_tokens=LONG), 504)["code"] == "timeout"
        stream = post(address, max_tokens=LONG, stream=True).text.split("\n\n")
        assert json.loads(stream[-3].removeprefix("data: "))["error"]["code"] == "timeout"
        assert stream[-2] == "data: [DONE]"


# --- limits


def test_urls_are_fetched_where_that_is_allowed_and_only_from_public_addresses(lvlm, monkeypatch):
    with running(lvlm, allow_urls=True) as address:
        named = f"{address}/metrics".replace("127.0.0.1", "localhost")
        private = refusal(post(address, messages=said(picture=named)))["message"]
        assert "failed_to_download: localhost has no public address" in private
        assert not any(each in private for each in ("127.0.0.1", "::1", "allow"))  # where a name leads is not told
        monkeypatch.setattr("sira_cli.pictures.web.is_public", lambda ip: True)
        there = post(address, messages=said(picture=f"{address}/metrics"))
        assert "is not a picture" in there.text  # it was fetched, and is no picture


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
            assert (error["code"], message in error["message"]) == ("too_large", True)


def test_prompts_that_are_too_long(lvlm, address):
    """Their text, or text and pictures together; what is as long as it may be is answered."""
    usual = lvlm.prepare([Image.open(PICTURES[0])], [PROMPT])["input_ids"].shape[1]
    for most in (usual, usual - 1):
        with running(lvlm, limits=Limits(prompt=most)) as own:
            answer = post(own, max_tokens=2, sira={"method": "greedy"})
        if most == usual:
            assert answer.status_code == 200
    error = refusal(answer, 413)
    assert error["code"] == "context_length_exceeded"
    assert f"the prompt has {usual} tokens; this server takes {usual - 1}, with its pictures" in error["message"]
    long = "umbrella " * 2048  # more than the model's config has positions
    for change in (
        {"messages": said(long)},
        {"messages": said(system=long)},
        {"sira": {"method": "icd", "role": long}},
        {"messages": [*said(), {"role": "assistant", "content": "?" * 10**6}, {"role": "user", "content": PROMPT}]},
    ):
        error = refusal(post(address, **change), 413)
        assert error["code"] == "context_length_exceeded"
        assert "and more, without its pictures; this server takes 1,024" in error["message"]


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
        with pytest.raises(openai.AuthenticationError):
            ask(client_of(address, "guess"))


def test_hosts_are_those_of_this_machine(lvlm):
    with running(lvlm, hosts=list(LOCAL_NAMES)) as address:
        for host, code in (("[::1]:8000", 200), ("localhost", 200), ("evil.example", 400)):
            assert httpx.get(f"{address}/v1/models", headers={"Host": host}).status_code == code


# --- the command


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_the_command_answers_and_ends_well(sent, code):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [SIRA, "serve", "-p", "demo", "--port", str(port), "--max-new-tokens", "200"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, ThreadPoolExecutor(1) as pool:
        while "http://127.0.0.1" not in (line := process.stderr.readline()):
            assert line or process.poll() is None, "the server ended"
        for _ in range(100):
            with suppress(httpx.ConnectError):
                httpx.get(f"{address}/health")
                break
            time.sleep(0.1)
        assert f"a page to try it at {address} " in line
        answer = pool.submit(post, address, 120, max_tokens=100)
        while not counted(address, "sira_batch_texts_count"):
            time.sleep(0.02)
        process.send_signal(sent)
        assert answer.result().status_code == 200  # what was begun is finished
        assert process.wait(60) == code
        assert PROMPT not in process.stderr.read()


@pytest.mark.parametrize(("given", "code"), [(["-p", "demo"], 2), (["-m", "/nonexistent", "--port", "0"], 1)])
def test_what_is_wrong_is_known_before_anything_large_is_imported(given, code):
    """A port that is taken, and a model that is nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = given if code == 1 else [*given, "--port", str(taken.getsockname()[1])]
        script = (
            f"import sys; sys.argv = {['sira', 'serve', *given]}\nfrom sira_cli.cli import main\n"
            "try: main()\n"
            "except SystemExit as stop: print(stop.code, {'torch', 'transformers'} & set(sys.modules))"
        )
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout == f"{code} set()\n"
    assert ("is taken by another program: give another one" if code == 2 else "/nonexistent") in process.stderr


def test_options_that_are_refused(sira):
    for given, message in (("waiting=1025", "from 1 to 1024"), ("mb=x", "whole number"), ("rows=3", "one of waiting,")):
        code, _, err = sira("serve", "-p", "demo", "--limit", given)
        assert (code, f"--limit {given}: expected" in err, message in err) == (2, True, True)
    code, _, err = sira("serve", "-p", "demo", "--host", "0.0.0.0")
    assert (code, "set --api-key" in err) == (2, True)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_that_is_said_can_be_opened(host, shown):
    """Servers of asyncio send at once only what comes by a socket whose protocol is TCP."""
    try:
        listener = listening(host, 0)
    except SettingsError:
        pytest.skip("this machine has no IPv6")
    with listener:
        address = httpx.URL(address_of(host, listener))
        assert (address.netloc.decode().rpartition(":")[0], address.host) == (shown, host)
        assert (address.port, listener.proto) == (listener.getsockname()[1], socket.IPPROTO_TCP)
