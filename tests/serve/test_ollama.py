"""Ollama's API by its official client and by hand, against `/v1/chat/completions`."""

from __future__ import annotations

import base64
import json
from datetime import datetime

import httpx
import ollama
import pytest

from sira_cli.pictures import web
from tests.serve.helpers import PICTURES, PROMPT, ask, data_of, post, running, said, text

IMAGES = [data_of(PICTURES[0])]
CODED = base64.b64encode(IMAGES[0]).decode()
# api/types.go of Ollama 0.12.11
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
END = {"done", "done_reason", *TIMES, "prompt_eval_count", "eval_count", "sira"}
TURN = {"role": "user", "content": PROMPT, "images": IMAGES}


def send(address: str, path: str = "generate", **body) -> httpx.Response:
    messages = [{"role": "user", "content": PROMPT, "images": [CODED]}]
    asked = {"prompt": PROMPT, "images": [CODED]} if path == "generate" else {"messages": messages}
    return httpx.post(f"{address}/api/{path}", json={"model": "demo", **asked, **body}, timeout=60)


def error_of(answer: httpx.Response) -> str:
    """The text of an error, which is all that its body has."""
    (error,) = answer.json().values()
    assert answer.json() == {"error": error}
    return error


@pytest.mark.parametrize("name", ["demo", "demo:latest"])
def test_answers_are_those_of_a_chat(friend, address, name):
    """As PhotoPrism sends options."""
    same = {"temperature": 0.05, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 3, "stop": [" a", "\n\n"]}
    options = same | {"repeat_penalty": 1.1, "num_predict": 10**9, "num_ctx": 4096, "repeat_last_n": 64}
    expected = post(address, messages=said(system="Be brief."), **same, repetition_penalty=1.1, max_tokens=-1).json()
    more = {"system": "Be brief.", "suffix": "", "images": IMAGES, "format": "", "think": False, "keep_alive": "5m"}
    generated = friend.generate(name, PROMPT, options=options, **more)
    chat = friend.chat(name, [{"role": "system", "content": "Be brief."}, TURN], options=options)
    (choice,), usage = expected["choices"], expected["usage"]
    assert generated.response == chat.message.content == choice["message"]["content"] != ""
    for answer in (generated, chat):
        assert answer.model == name
        assert answer.done is True
        assert answer.done_reason == choice["finish_reason"]
        counts = answer.prompt_eval_count, answer.eval_count
        assert counts == (usage["prompt_tokens"], usage["completion_tokens"])


def test_turns_pictures_and_siras_own_settings(address, friend, client, lvlm):
    following = [{"role": "assistant", "content": "A room."}, {"role": "user", "content": "What else?"}]
    assert friend.chat("demo", [TURN, *following]).message.content == text(ask(client, [*said(), *following]))
    assert friend.generate("demo", images=IMAGES).response == lvlm.caption(PICTURES[0]).text
    answer = friend.generate("demo", PROMPT, images=[data_of(picture) for picture in PICTURES[:2]])
    assert answer.response == lvlm.caption([*PICTURES[:2]], PROMPT).text
    sira = {"method": "vcd", "alpha": 0.5, "verify": "flag"}
    told, expected = send(address, stream=False, sira=sira).json(), ask(client, sira=sira)
    assert told["response"] == text(expected)
    assert {**told["sira"], "decoding_seconds": 0} == {**expected.sira, "decoding_seconds": 0}


def test_log_probabilities(friend, client):
    expected = ask(client, logprobs=True, top_logprobs=2, max_tokens=5).choices[0].logprobs.content
    request = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 5}}
    parts = [row for part in friend.chat("demo", [TURN], stream=True, **request) for row in part.logprobs or ()]
    for found in (friend.chat("demo", [TURN], **request).logprobs, parts):
        assert [(row.token, row.logprob) for row in found] == [(row.token, row.logprob) for row in expected]
        assert [len(row.top_logprobs) for row in found] == [2] * 5


@pytest.mark.parametrize(("path", "sira"), [("chat", None), ("generate", None), ("generate", {"method": "opera"})])
def test_without_a_word_about_it_an_answer_is_a_stream(address, path, sira):
    whole, answer = send(address, path, stream=False, sira=sira), send(address, path, sira=sira)
    types = [each.headers["content-type"] for each in (whole, answer)]
    assert types == ["application/json", "application/x-ndjson"]
    expected, (*parts, last) = whole.json(), map(json.loads, answer.text.splitlines())
    key = "response" if path == "generate" else "message"
    for part in parts:
        assert part.keys() == {"model", "created_at", key, "done"}
        assert part["done"] is False
    texts = [part[key] if path == "generate" else part[key]["content"] for part in [*parts, last]]
    assert ((len(texts) > 4), texts[-1]) == (sira is None, "")
    joined = "".join(texts)
    assert expected[key] == (joined if path == "generate" else {"role": "assistant", "content": joined})
    for end in (expected, last):
        assert end.keys() == {"model", "created_at", key, *END}
        assert end["total_duration"] >= end["load_duration"] + end["eval_duration"] > end["eval_duration"] > 0
    for name in ("done", "done_reason", "prompt_eval_count", "eval_count"):
        assert last[name] == expected[name]


def test_the_model_is_described(address, friend, lvlm):
    size = sum(weight.numel() for weight in lvlm.model.parameters())
    for models in (friend.list().models, friend.ps().models):
        assert [model.model for model in models] == [f"{lvlm.preset.name}:latest"]
        assert (models[0].details.family, models[0].details.parameter_size) == ("llava", f"{size / 10**6:.2f}M")
    shown = friend.show("demo:latest")
    assert (shown.capabilities, shown.details.format) == (["completion", "vision"], "safetensors")
    assert shown.modelinfo["llava.context_length"] == lvlm.model.config.get_text_config().max_position_embeddings
    assert tuple(map(int, httpx.get(f"{address}/api/version").json()["version"].split("."))) > (0, 5)


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_a_request_that_asks_nothing_loads_the_model(address, path):
    """As in docs/api.md of Ollama 0.12.11: one object, also where the answers are streams."""
    empty = {"response": ""} if path == "generate" else {"message": {"role": "assistant", "content": ""}}
    for more in ({}, {"keep_alive": 0}, {"keep_alive": "0s"}):
        told = httpx.post(f"{address}/api/{path}", json={"model": "demo:latest", **more}).json()
        assert datetime.fromisoformat(told.pop("created_at"))
        assert told == {"model": "demo:latest", **empty, "done": True, "done_reason": "unload" if more else "load"}
    assert httpx.post(f"{address}/api/{path}", json={"model": "llava"}).status_code == 404


def test_what_the_server_has_not(address, friend):
    for call, name, message in (
        (friend.pull, "llava", "Not Found; this server has /api/chat, /api/gen"),
        (friend.show, "llava:latest", "model 'llava' not found"),
    ):
        with pytest.raises(ollama.ResponseError, match=message) as refused:
            call(name)
        assert refused.value.status_code == 404
    wrong = httpx.get(f"{address}/api/chat")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert "Method Not" in error_of(wrong)


@pytest.mark.parametrize(
    ("path", "change", "begins"),
    [
        ("chat", {"messages": [{"role": "user", "content": PROMPT}]}, "messages: expected images of the user; got"),
        ("chat", {"tools": [{"type": "function"}]}, "tools: not supported"),
        ("generate", {"context": [1, 2]}, "context: not supported here; send turns to /api/chat"),
        ("generate", {"images": None}, "images: expected a picture; got none"),
        ("generate", {"images": ["+?"]}, "images: is not base64"),
        ("generate", {"options": {"top_p": 2}}, "options.top_p: "),
        ("generate", {"options": {"repeat_penalty": -1}}, "options.repeat_penalty: "),
        ("chat", {"format": {"type": "objekt"}}, "format: cannot be followed"),
        ("generate", {"prompt": "a " * 50_000}, "prompt: the prompt has"),
        ("generate", {"sira": {"metod": "vcd"}}, "sira.metod: no such key; did you mean `method`?"),
    ],
)
def test_errors_name_the_keys_that_were_sent(address, path, change, begins):
    for stream in (True, False):  # before a stream begins
        answer = send(address, path, stream=stream, **change)
        assert answer.status_code in (400, 413)
        assert error_of(answer).startswith(begins)


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_pictures_are_bytes_and_no_places(lvlm, monkeypatch, path):
    """Not even where URLs may be downloaded: a path, a URL or a data URL is no base64."""
    monkeypatch.setattr(web, "is_public", lambda ip: True)
    with running(lvlm, allow_urls=True) as address:
        for place in (str(PICTURES[0]), "file:///etc/passwd", f"{address}/metrics", f"data:image/png;base64,{CODED}"):
            message = {"role": "user", "content": PROMPT, "images": [place]}
            assert "is not base64" in error_of(send(address, path, images=[place], messages=[message]))
