"""`sira serve`, by the official client of OpenAI: every text is that of the library, to the character."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import openai
import pytest
from PIL import Image

from sira_cli.serve.limits import Limits
from sira_cli.serve.ollama import OllamaChat
from sira_cli.serve.protocol import ChatRequest
from sira_cli.serve.settings import settings_of
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, PROMPT, ROOT, ask, said
from tests.support.helpers import SIRA

# --- the same texts


def test_a_text_is_that_of_the_library(client, lvlm):
    expected = lvlm.caption(PICTURES[0], PROMPT)
    answer = ask(client)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == expected.output_tokens
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.sira["method"] == "sira"
    assert (answer.sira["k"], answer.sira["alpha"]) == (expected.k, expected.alpha)


def test_without_a_text_the_prompt_is_that_of_the_preset(client, lvlm):
    messages = said()
    del messages[0]["content"][1]
    assert ask(client, messages).choices[0].message.content == lvlm.caption(PICTURES[0]).text


def test_methods_settings_system_and_length_are_those_of_the_request(client, lvlm):
    preset = lvlm.preset.with_settings(system="Be brief.", max_new_tokens=9)
    expected = lvlm.under(preset.method("vcd").with_values(alpha=0.5), preset).caption(PICTURES[1], PROMPT)
    answer = ask(
        client, said(PROMPT, PICTURES[1], "Be brief."), {"method": "vcd", "alpha": 0.5}, max_completion_tokens=9
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.sira["method"] == "vcd"
    other = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(k=3, alpha=2.0)).caption(PICTURES[1], PROMPT)
    assert ask(client, said(PROMPT, PICTURES[1]), {"k": 3, "alpha": 2.0}).choices[0].message.content == other.text


def test_a_sampled_text_is_that_of_its_seed(client, lvlm):
    preset = lvlm.preset.with_settings(temperature=1.5, top_p=0.9, seed=7)
    expected = lvlm.under(lvlm.decoder, preset).caption(PICTURES[0], PROMPT).text
    texts = [ask(client, temperature=1.5, top_p=0.9, seed=seed).choices[0].message.content for seed in (7, 8, 7)]
    assert texts[0] == texts[2] == expected != texts[1]


@pytest.mark.parametrize("sira", [{}, {"words": True}, {"method": "opera"}])
def test_a_stream_is_the_same_text(client, lvlm, sira):
    whole = ask(client, sira=sira).choices[0].message.content
    chunks = list(ask(client, sira=sira, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece for piece in deltas if piece) == whole
    assert (sum(bool(piece) for piece in deltas) > 3) == (sira.get("method") != "opera")  # which shows nothing before
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-2].sira["method"] == sira.get("method", "sira")
    assert chunks[-1].usage.completion_tokens > 0


def test_a_stop_ends_the_text_before_it(client):
    whole = ask(client).choices[0].message.content
    stop = whole.split()[4]
    for stream in (False, True):
        answer = ask(client, stop=[stop, "never said"], stream=stream)
        text = (
            "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            if stream
            else answer.choices[0].message.content
        )
        assert text == whole[: whole.index(stop)].strip()
    assert ask(client, stop=stop).choices[0].finish_reason == "stop"
    assert ask(client, stop=stop).usage.completion_tokens < ask(client).usage.completion_tokens


def test_the_example_of_the_page(address, monkeypatch, capsys):
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0].replace("http://127.0.0.1:8000", address)
    monkeypatch.chdir(ROOT)
    exec(compile(code, "server.md", "exec"), {})
    assert "'support'" in capsys.readouterr().out


# --- scores


def test_logprobs_are_those_of_the_contrast(client, lvlm):
    """Against a trace of the same text, whose rows hold both streams."""
    steps = []
    inputs = lvlm.to_device(lvlm.prepare([Image.open(PICTURES[0]).convert("RGB")], [PROMPT]))
    lvlm.generate(inputs, on_tokens=lambda tokens, step: steps.append((tokens[0], step)))
    for stream in (False, True):
        answer = ask(client, logprobs=True, top_logprobs=3, stream=stream)
        found = (
            [row for chunk in answer for row in (chunk.choices[0].logprobs or NONE).content or []]
            if stream
            else answer.choices[0].logprobs.content
        )
        assert len(found) == len(steps)
        for row, (token, step) in zip(found, steps, strict=True):
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
    text = whole.message.content[: None if stop is None else whole.message.content.index(stop)].strip()
    for stream in (False, True):
        answer = ask(client, logprobs=True, stop=stop, stream=stream, max_tokens=200)
        found = (
            [row for chunk in answer for row in (chunk.choices[0].logprobs or NONE).content or []]
            if stream
            else answer.choices[0].logprobs.content
        )
        assert "".join(row.token for row in found) == b"".join(bytes(row.bytes) for row in found).decode() == text


def test_words_and_things_come_beside_the_text(client, lvlm):
    answer = ask(client, sira={"words": True, "verify": "flag", "min_support": 0.9})
    text = answer.choices[0].message.content
    assert [text[word["start"] : word["end"]] for word in answer.sira["words"]] == text.split()
    check = lvlm.check(PICTURES[0], text)
    assert [thing["thing"] for thing in answer.sira["objects"]] == [claim.thing for claim in check.objects]
    assert [thing["support"] for thing in answer.sira["objects"]] == pytest.approx(
        [claim.support for claim in check.objects], abs=1e-4
    )
    assert answer.sira["verify"]["min_support"] == 0.9


# --- many at once


def test_64_clients_at_once_get_the_texts_of_single_requests(client, lvlm):
    asked = [(PICTURES[number % 2], ("sira", "greedy")[number // 2 % 2], 4 + number % 3) for number in range(64)]
    expected = {}
    for picture, method, tokens in set(asked):
        preset = lvlm.preset.with_settings(max_new_tokens=tokens)
        expected[picture, method, tokens] = lvlm.under(preset.method(method), preset).caption(picture, PROMPT).text

    def one(row: tuple) -> str:
        picture, method, tokens = row
        return ask(client, said(PROMPT, picture), {"method": method}, max_tokens=tokens).choices[0].message.content

    def counted() -> tuple[float, float]:
        text = httpx.get(str(client.base_url).replace("/v1/", "/metrics")).text
        count, total = (text.split(f"sira_batch_texts_{name} ")[1].split()[0] for name in ("count", "sum"))
        return float(count), float(total)

    before = counted()
    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(one, asked))
    assert texts == [expected[row] for row in asked]
    begun, together = (after - earlier for after, earlier in zip(counted(), before, strict=True))
    assert together / begun > 4  # of 8


def test_who_comes_when_too_many_wait_is_told_to_come_again(lvlm):
    with running(lvlm, most_waiting=1, batch_size=1) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)

        def one(_: int) -> str:
            try:
                return ask(client).choices[0].message.content
            except openai.RateLimitError as error:
                return f"come again after {error.response.headers['retry-after']} s"

        with ThreadPoolExecutor(12) as pool:
            texts = set(pool.map(one, range(12)))
        assert texts == {"come again after 2 s", lvlm.caption(PICTURES[0], PROMPT).text}


def test_a_client_that_goes_frees_the_decoder(endless):
    """Of a text that would never end."""
    never_ends = {"messages": said(), "max_tokens": 10**6}
    with running(endless, limits=Limits(tokens=10**6), batch_size=1) as address:
        url = f"{address}/v1/chat/completions"
        for body in (never_ends, {**never_ends, "stream": True}):
            with suppress(httpx.ReadTimeout), httpx.stream("POST", url, json=body, timeout=1.0) as answer:
                next(answer.iter_bytes())
        short = httpx.post(url, json={"messages": said(), "max_tokens": 2}, timeout=60).json()
        assert short["usage"]["completion_tokens"] == 2


def test_a_text_that_takes_too_long(endless):
    body = {"messages": said(), "max_tokens": 10**6}
    with running(endless, limits=Limits(tokens=10**6, seconds=1.5)) as address:
        url = f"{address}/v1/chat/completions"
        whole = httpx.post(url, json=body, timeout=60)
        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "timeout")
        stream = httpx.post(url, json=body | {"stream": True}, timeout=60).text.split("\n\n")
        assert json.loads(stream[-3].removeprefix("data: "))["error"]["code"] == "timeout"
        assert stream[-2] == "data: [DONE]"


# --- what is refused


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            {"messages": [{"role": "user", "content": "no picture"}]},
            400,
            "got none. SIRA is about what a picture supports",
        ),
        ({"messages": said(picture="https://example.org/a.png")}, 400, "only if it was started with --allow-urls"),
        ({"messages": said(picture="file:///etc/passwd")}, 400, "opens no files"),
        ({"messages": said(picture="data:image/png;base64,!!!!")}, 400, "not base64"),
        ({"messages": said("what is <image> here?")}, 400, "placeholder"),
        ({"model": "gpt-4o"}, 404, "this server has 'demo'"),
        ({"max_tokens": 0}, 400, "max_tokens: expected at least 1, or -1 for as many as this server decodes"),
        ({"sira": {"noise": 3}}, 400, "noise"),
        ({"sira": {"k": 99}}, 400, "out of range"),
        ({"sira": {"method": "ict", "calibration": "/etc/passwd"}}, 400, "no file is opened for a client"),
        ({"sira": {"method": "vcd"}, "logprobs": True}, 400, "logprobs"),
    ],
)
def test_what_cannot_be_answered_as_asked_is_refused(address, change, status, words):
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": said()} | change, timeout=60)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    if set(change) == {"sira"}:
        named = [f"sira.{key}" for key in change["sira"]]
        assert answer.json()["error"]["param"] == named[-1]
    again = httpx.post(f"{address}/v1/chat/completions", json={"messages": said(), "stream": True} | change, timeout=60)
    assert again.status_code == status  # before a stream begins


def test_neutral_settings_of_other_servers_are_taken(client):
    assert ask(client, frequency_penalty=0, presence_penalty=0, user="someone", response_format={"type": "text"})
    plain = ask(client).choices[0].message.content
    for more in ({"top_k": 20, "min_p": 0.1, "temperature": 0}, {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}):
        answer = httpx.post(f"{client.base_url}chat/completions", json={"messages": said()} | more, timeout=60)
        assert answer.json()["choices"][0]["message"]["content"] == plain


def test_a_client_without_a_limit_gets_the_servers_and_is_told_when_the_text_was_cut(lvlm):
    for given in ({"max_tokens": -1}, {"max_completion_tokens": 10**9}):
        request = ChatRequest.read({"messages": said(), **given})
        assert settings_of(request, lvlm.preset, "sira", 5, lvlm.layers)[0].generation.max_new_tokens == 5
    request = OllamaChat.read({"model": "demo", "messages": [], "options": {"num_predict": -2}})
    assert request.options.chat()["max_completion_tokens"] == -1


def test_further_cut_offs_of_sampling_take_part(address, lvlm):
    texts = []
    for more in ({}, {"top_k": 1}, {"min_p": 1.0}):
        body = {"messages": said(), "temperature": 2.0, "seed": 5, "max_tokens": 40, **more}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).json()
        texts.append(answer["choices"][0]["message"]["content"])
    greedy = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=40)).caption(PICTURES[0], PROMPT).text
    assert texts[1] == texts[2] == greedy != texts[0]


def test_a_penalty_of_repetition_is_that_of_the_commands(address, lvlm):
    body = {"messages": said(), "repetition_penalty": 1.3}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).json()
    preset = lvlm.preset.with_settings(repetition_penalty=1.3)
    expected = lvlm.under(lvlm.decoder, preset).caption(PICTURES[0], PROMPT).text
    assert answer["choices"][0]["message"]["content"] == expected != lvlm.caption(PICTURES[0], PROMPT).text


@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"\xff\xfe", b""])
def test_bodies_that_are_no_requests(address, body):
    answer = httpx.post(
        f"{address}/v1/chat/completions", content=body, headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_urls_are_fetched_where_that_is_allowed_and_only_from_public_addresses(lvlm, monkeypatch):
    with running(lvlm, allow_urls=True) as address:
        url = f"{address}/v1/chat/completions"
        named = f"{address}/metrics".replace("127.0.0.1", "localhost")
        private = httpx.post(url, json={"messages": said(picture=named)}, timeout=60)
        assert private.status_code == 400
        assert "failed_to_download: localhost has no public address" in private.text
        assert "127.0.0.1" not in private.text  # where a name leads to is not told
        assert "::1" not in private.text
        assert "allow" not in private.text  # the server has no option for it
        monkeypatch.setattr("sira_cli.pictures.web.is_public", lambda ip: True)
        there = httpx.post(url, json={"messages": said(picture=f"{address}/metrics")}, timeout=60)
        assert "failed_to_decode" in there.text  # it was fetched, and is no picture


def test_large_requests_and_pictures(lvlm):
    with running(lvlm, limits=Limits(pixels=1000, data=10**6)) as address:
        url = f"{address}/v1/chat/completions"
        large = httpx.post(url, json={"messages": said("x" * 10**6)})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
        many_pixels = httpx.post(url, json={"messages": said()})
        assert many_pixels.status_code == 413
        assert "the picture has" in many_pixels.text
        assert "pixels; this server takes 1,000" in many_pixels.json()["error"]["message"]


def test_a_picture_that_is_a_bomb(address):
    """Few bytes that would be more samples than Pillow decodes."""
    answer = httpx.post(
        f"{address}/v1/chat/completions", json={"messages": said(picture=Image.new("1", (14_000,) * 2))}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "the picture: has more than" in answer.text


def test_prompts_that_are_too_long(lvlm):
    """Their text, or text and pictures together; what is as long as it may be is answered."""
    rest = {"max_tokens": 2, "sira": {"method": "greedy"}}
    usual = lvlm.prepare([Image.open(PICTURES[0])], [PROMPT])["input_ids"].shape[1]
    for most, status in ((usual, 200), (usual - 1, 413)):
        with running(lvlm, limits=Limits(prompt=most)) as address:
            answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": said(), **rest}, timeout=60)
        assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"the prompt has {usual} tokens; this server takes {usual - 1}, with its pictures" in error["message"]
    with running(lvlm) as address:  # as many as the model's config has positions
        body = {"messages": said("a " * 400_000), **rest}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 413
        assert "and more, without its pictures; this server takes 1,024" in answer.text


def test_a_key_is_demanded_where_one_is_set(lvlm):
    with running(lvlm, api_key="secret") as address:
        for path in ("/v1/models", "/metrics"):
            assert httpx.get(address + path).status_code == 401
            assert httpx.get(address + path, headers={"Authorization": "Bearer secrets"}).status_code == 401
            for scheme in ("Bearer", "bearer"):
                assert httpx.get(address + path, headers={"Authorization": f"{scheme} secret"}).status_code == 200
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}
        with pytest.raises(openai.AuthenticationError):
            ask(openai.OpenAI(base_url=f"{address}/v1", api_key="guess", max_retries=0))


def test_long_names_of_things_that_are_not_here_are_not_sent_back_whole(address):
    for path in ("x" * 50_000, "v1/models/" + "x" * 50_000):
        answer = httpx.get(f"{address}/{path}")
        assert answer.status_code == 404
        assert "xxx ... xxx" in answer.json()["error"]["message"]
        assert len(answer.text) < 400
    answer = httpx.post(
        f"{address}/v1/chat/completions", json={"messages": said(), "sira": {"x" * 50_000: 1}}, timeout=60
    )
    assert answer.status_code == 400
    assert len(answer.text) < 1200
    assert "its settings: k, k_fraction" in answer.text


def test_models(client, lvlm):
    assert [model.id for model in client.models.list()] == list(dict.fromkeys([lvlm.preset.name, lvlm.preset.model]))
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


# --- the command


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_the_command_answers_and_ends_well(sent, code):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [SIRA, "serve", "-p", "demo", "--port", str(port), "--max-new-tokens", "200"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "http://127.0.0.1" not in (line := process.stderr.readline()):
            assert line or process.poll() is None, "the server ended"
        for _ in range(100):
            try:
                httpx.get(f"http://127.0.0.1:{port}/health")
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        assert f"a page to try it at http://127.0.0.1:{port} " in line
        assert "<title>sira</title>" in httpx.get(f"http://127.0.0.1:{port}").text
        answers = []
        body = {"messages": said(), "max_tokens": 100}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        thread = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=120)))
        thread.start()
        while "sira_batch_texts_count 1.0" not in httpx.get(f"http://127.0.0.1:{port}/metrics").text:
            time.sleep(0.02)
        process.send_signal(sent)
        thread.join()
        assert answers[0].status_code == 200  # what was begun is finished
        assert process.wait(60) == code
        said_more = process.stderr.read()
        assert PROMPT not in said_more


def test_a_port_that_is_taken_is_known_before_anything_large_is_imported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        script = (
            f"import sys; sys.argv = ['sira', 'serve', '-p', 'demo', '--port', '{taken.getsockname()[1]}']\n"
            "from sira_cli.cli import main\n"
            "try: main()\n"
            "except SystemExit as stop: print(stop.code, {'torch', 'transformers', 'fastapi'} & set(sys.modules))"
        )
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout == "2 set()\n"
    assert "is taken by another program: give another one" in process.stderr


def test_the_line_has_a_longest_length(sira):
    for given, message in (("waiting=1025", "from 1 to 1024"), ("mb=x", "whole number"), ("rows=3", "one of waiting,")):
        code, _, err = sira("serve", "-p", "demo", "--limit", given)
        assert (code, f"--limit {given}: expected" in err, message in err) == (2, True, True)


def test_other_machines_need_a_key(sira):
    code, _, err = sira("serve", "-p", "demo", "--host", "0.0.0.0")
    assert code == 2
    assert "set --api-key" in err


class NONE:
    content = None


def test_limits_are_for_all_pictures_of_a_conversation(lvlm):
    """One picture is within them, two are too large, and three too many."""
    square = Image.new("RGB", (32, 32), "red")
    answered = {"role": "assistant", "content": "A red one."}
    turns = [*said(picture=square), answered, *said("And now?", square), answered, *said("Now?", square)]
    with running(lvlm, limits=Limits(pixels=1500, pictures=2)) as address:
        url = f"{address}/v1/chat/completions"
        one, two, three = (httpx.post(url, json={"messages": turns[:end], "max_tokens": 2}) for end in (1, 3, 5))
    assert one.status_code == 200
    assert (two.status_code, three.status_code) == (413, 413)
    assert "the pictures have 2,048 pixels; this server takes 1,500" in two.text
    assert "3 pictures; this server takes 2 in one conversation" in three.text
