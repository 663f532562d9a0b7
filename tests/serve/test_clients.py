"""What programs send that was written for other servers, or in haste."""

from __future__ import annotations

import base64
import json
import logging
import socket
import subprocess
import sys
import time

import httpx2 as httpx
import pytest
import torch

from sira_cli.cli.serve import LOCAL_NAMES, address_of, listening
from sira_cli.errors import SettingsError
from sira_cli.models.preset import Generation
from sira_cli.models.sampling import sampler
from sira_cli.serve.limits import Limits, check_length
from sira_cli.serve.pictures import picture_data
from sira_cli.serve.protocol import REFUSED, ChatRequest, RequestError
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, PROMPT, data_of, said

OPTIONAL = (
    *("model", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "stream_options"),
    *("logprobs", "top_logprobs", "sira", "tools", "tool_choice", "response_format", "logit_bias", "user", "store"),
)


def post(address, **body):
    return httpx.post(f"{address}/v1/chat/completions", json={"messages": said(), "max_tokens": 4} | body, timeout=60)


def text_of(answer):
    return answer.json()["choices"][0]["message"]["content"]


def test_null_is_a_key_that_is_left_out(address):
    plain = text_of(post(address))
    assert text_of(post(address, **dict.fromkeys(OPTIONAL))) == plain
    options = dict.fromkeys(("method", "task", "words", "verify", "min_support"))
    assert text_of(post(address, sira=options)) == plain
    usage = post(address, stream=True, stream_options={"include_usage": None})
    assert usage.status_code == 200
    assert "usage" not in usage.text


def test_seeds_and_shares_in_openai_s_ranges(address):
    plain = text_of(post(address))
    assert text_of(post(address, temperature=2, top_p=0, seed=3)) == plain  # of all tokens, the best one is left
    seeds = [ChatRequest(messages=said(), seed=seed).seed for seed in (-1, -2, 0, 5)]
    assert len({*seeds}) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[2:] == [0, 5]
    assert text_of(post(address, temperature=2, seed=-1)) == text_of(post(address, temperature=2, seed=-1))


def test_a_temperature_of_almost_nothing_takes_the_best_token():
    scores = torch.tensor([[1.0, 2.0, 1.9], [-40.0, -60.0, -50.0]])
    for temperature in (1e-300, 1e-40, 1e-9):
        assert sampler([0, 1], Generation(temperature=temperature))(torch.zeros(2, 1), scores).argmax(-1).tolist() == [
            1,
            0,
        ]


@pytest.mark.parametrize(
    "form",
    [
        lambda data: "data:image/png;base64," + base64.encodebytes(data).decode(),
        lambda data: "data:image/png;base64,\r\n " + base64.b64encode(data).decode().replace("A", "A\r\n"),
        lambda data: "DATA:Image/PNG;BASE64," + base64.b64encode(data).decode(),
        lambda data: "data:;base64," + base64.b64encode(data).decode().rstrip("="),
    ],
)
def test_base64_as_programs_write_it(form):
    for data in (data_of(PICTURES[0]), b"1", b"12", b"123"):
        assert picture_data(form(data), 10**6, {}) == data


@pytest.mark.parametrize("coded", ["\xe9", "AAAAA", "AA=A", "_-_-"])
def test_what_is_no_base64(coded):
    with pytest.raises(RequestError, match="is not base64") as refused:
        picture_data(f"data:image/png;base64,{coded}", 10**6, {})
    assert refused.value.status == 400


def test_a_text_longer_than_the_context_is_refused_before_it_is_decoded(address, lvlm):
    longest = lvlm.model.config.get_text_config().max_position_embeddings
    word = "umbrella "
    for change in (
        {"messages": said(word * 2 * longest)},
        {"messages": said(system=word * 2 * longest)},
        {"sira": {"method": "icd", "role": word * 2 * longest}},
        {"messages": [*said(), {"role": "assistant", "content": "?" * 10**6}, {"role": "user", "content": PROMPT}]},
    ):
        answer = post(address, **change)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "context_length_exceeded")
    chat = ChatRequest(messages=said(word * 9))
    count = len(lvlm.vocabulary.encode(chat.messages[0].texts()))
    check_length(chat, lvlm.vocabulary, count)
    with pytest.raises(RequestError, match=f"has {count} tokens and more"):
        check_length(chat, lvlm.vocabulary, count - 1)


def test_who_goes_before_the_body_ends_is_no_failure_of_the_server(address, caplog):
    def count(status):
        lines = httpx.get(f"{address}/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith(f'sira_requests_total{{status="{status}"')
        )

    gone, failed = count(499), count(500)
    host, port = address.removeprefix("http://").split(":")
    with caplog.at_level(logging.ERROR), socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        connection.close()
        for _ in range(1_000):
            if count(499) + count(500) > gone + failed:
                break
            time.sleep(0.02)
    assert (count(499), count(500)) == (gone + 1, failed)
    assert not caplog.records


def test_a_wrong_method_is_told_the_right_one(address):
    answer = httpx.get(f"{address}/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_that_is_said_can_be_opened(host, shown):
    try:
        listener = listening(host, 0)
    except SettingsError:
        pytest.skip("this machine has no IPv6")
    with listener:
        address = httpx.URL(address_of(host, listener))
        assert (address.netloc.decode().rpartition(":")[0], address.host) == (shown, host)
        assert address.port == listener.getsockname()[1]


def test_answers_do_not_wait_for_an_acknowledgement():
    """Servers of asyncio send at once only what comes by a socket whose protocol is TCP."""
    with listening("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["count"],
}


@pytest.mark.parametrize(
    "more",
    [{"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA, "regex": None}}],
    ids=["its text", "structured_outputs"],
)
def test_a_schema_by_any_key_is_followed_and_closed(address, more):
    """A class's schema says nothing of other keys; an open object need never end."""
    choice = post(address, max_tokens=24, **more).json()["choices"][0]
    assert (choice["finish_reason"], [*json.loads(choice["message"]["content"])]) == ("stop", ["count"])


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_would_change_a_text_are_refused_and_their_neutral_values_are_not(address, name):
    refused = httpx.post(f"{address}/v1/chat/completions", json={"messages": said(), name: ["x"], "max_tokens": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    ChatRequest(messages=said(), **{name: None}).check()
    for value in REFUSED[name]:
        ChatRequest(messages=said(), **{name: value}).check()


def test_ollama_s_clients_need_no_content_type_and_other_sites_pages_do(address):
    picture = base64.b64encode(PICTURES[0].read_bytes()).decode()
    asked = {"model": "demo", "stream": False, "prompt": "Describe.", "options": {"num_predict": 2}}
    body = json.dumps(asked | {"images": [picture]})
    assert httpx.post(f"{address}/api/generate", content=body, timeout=60).status_code == 200
    for header in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Content-Type": "text/plain"}):
        assert httpx.post(f"{address}/api/generate", content=body, headers=header).status_code == 415
    assert httpx.post(f"{address}/v1/chat/completions", content=body).status_code == 415
    assert httpx.head(address).status_code == 200


def test_streams_that_are_left_are_counted(endless):
    body = {"messages": said(), "max_tokens": 1000, "stream": True}
    with running(endless, limits=Limits(tokens=2000)) as address:
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as answer:
            next(answer.iter_lines())
        until = time.monotonic() + 30
        while 'sira_requests_total{status="499"} 1.0' not in httpx.get(f"{address}/metrics").text:
            assert time.monotonic() < until


def test_a_key_beyond_ascii_and_this_machine_s_name_in_version_6(lvlm):
    with running(lvlm, api_key="schlüssel") as address:
        for sent, code in (("schlüssel", 200), ("schlussel", 401)):
            headers = {"Authorization": f"Bearer {sent}".encode()}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == code
    with running(lvlm, hosts=list(LOCAL_NAMES)) as address:
        for host, code in (("[::1]:8000", 200), ("localhost", 200), ("evil.example", 400)):
            assert httpx.get(f"{address}/v1/models", headers={"Host": host}).status_code == code


def test_a_model_that_is_nowhere_is_said_before_torch_is_imported(tmp_path):
    script = (
        "import sys\nsys.argv = ['sira', 'serve', '-m', '/nonexistent', '--port', '0']\nfrom sira_cli.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    print(stop.code, 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "1 False\n"
    assert "/nonexistent" in ended.stderr


def test_structured_outputs_other_than_json_are_refused(address):
    body = {"messages": said(), "structured_outputs": {"regex": "a"}}
    assert httpx.post(f"{address}/v1/chat/completions", json=body).json()["error"]["param"] == "structured_outputs"


def test_texts_without_a_seed_vary(address):
    def texts(**more: object) -> set[str]:
        return {text_of(post(address, **{"temperature": 2, "max_tokens": 16} | more)) for _ in range(4)}

    assert len(texts()) > 1
    assert len(texts(seed=5)) == len(texts(temperature=0)) == 1
