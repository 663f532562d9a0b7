"""`sira check --endpoint`: the questions of the second look go to a server, on real sockets."""

from __future__ import annotations

import base64
import io
import json
import signal
import subprocess
import time

import pytest
from PIL import Image

from sira_cli import load
from sira_cli.pictures.opening import decode_picture
from sira_cli.run.endpoint import data_url
from sira_cli.serve.app import Server
from tests.run.helpers import draw, read
from tests.support.asgi import named, plain, scored, scripted, served, tokens
from tests.support.helpers import SIRA, imported

TEXTS = (
    "A dog stands there. There is a bowl beside a blue bicycle.",
    "There is a house. A horse stands in front of it.",
    "A boat with an elephant, two chairs, a cup and a clock.",
)
KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture
def captions(tmp_path):
    return draw(tmp_path / "captions", *TEXTS)


@pytest.fixture
def check(sira, captions, tmp_path):
    """Runs the command on a server, on all captions or on one, into a file."""

    def run(address, *options, one=None, into=True):
        files = ("-o", tmp_path / "a.jsonl") if into else ("--json",)
        place = captions if one is None else captions / one
        return sira("check", place, "--endpoint", address, "-m", "m", *files, *options)

    return run


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.02)


def test_support_is_that_of_a_local_run(sira, captions, tmp_path):
    """Of the unchanged model, although `sira` is the usual method of the server."""
    with served(Server(load("demo")).app) as address:
        server = ["--endpoint", f"{address}/v1", "--model", "demo", "-o", tmp_path / "there.jsonl"]
        code, there, err = sira("check", captions, "-p", "demo", *server)
    _, out, _ = sira("check", captions, "-p", "demo", "-o", tmp_path / "here.jsonl")
    assert (code, there) == (0, out), err
    pairs = list(zip(read(tmp_path / "here.jsonl"), read(tmp_path / "there.jsonl"), strict=True))
    assert sum(len(record["objects"]) for record, _ in pairs) >= 8
    for local, remote in pairs:
        for one, other in zip(local["objects"], remote["objects"], strict=True):
            assert other == one | {name: pytest.approx(one[name], abs=1e-4) for name in ("support", "neither")}
        same = ("schema", "file_name", "status", "text", "prompt", "preset", "image_sha256")
        assert {name: local[name] for name in same} == {name: remote[name] for name in same}
        assert ([*remote], remote["verify"]) == ([*local], local["verify"] | {"source": "logprobs"})
        assert (remote["model"], remote["revision"]) == ("demo", "endpoint")


def test_a_finished_run_needs_no_server_and_a_grown_one_asks_about_the_new(check, captions, tmp_path):
    output = tmp_path / "a.jsonl"
    with scripted(lambda number, body: scored()) as (server, address):
        assert check(address)[0] == 0
        asked, before = len(server.bodies), read(output)
        (captions / "1.txt").write_text("There is a cup.")
        code, out, _ = check(address)
        assert (code, [named(body) for body in server.bodies[asked + 1 :]]) == (0, ["Is there a cup in the image?"])
        after = read(output)
        assert after[0] == before[0]
        assert after[1]["text"] == "There is a cup."
        assert after[2] == before[2]
    code, again, err = check(f"{address}/")
    assert code == 0
    assert again == out
    assert read(output) == after
    assert "3 of them before" in err
    with scripted(lambda number, body: scored()) as (server, address):  # another server has not done it
        assert check(address)[0] == 0
        assert len(server.bodies) > 3


def test_neither_weights_nor_torch_are_loaded(captions):
    with scripted(lambda number, body: scored()) as (_, address):
        code, modules, err = imported("check", captions, "--endpoint", address, "-m", "m")
    assert code == 0, err
    assert "torch" not in modules, err


def test_a_question_is_one_token_without_sampling_about_the_file_itself(check, captions):
    with scripted(lambda number, body: scored(), "vllm") as (server, address):
        assert check(address, one="0.png")[0] == 0
    first, *rest = server.bodies
    things = ("dog", "bowl", "bicycle")
    assert [named(body) for body in rest] == [f"Is there a {thing} in the image?" for thing in things]
    more = {"logprobs": True, "top_logprobs": 20, "chat_template_kwargs": {"enable_thinking": False}}
    for body in rest:
        (message,) = body.pop("messages")
        assert body == {"model": "m", "max_tokens": 1, "temperature": 0, **more}
        url = message["content"][0]["image_url"]["url"]
        assert base64.b64decode(url.removeprefix("data:image/png;base64,")) == (captions / "0.png").read_bytes()
    assert first["messages"][0]["content"][0]["image_url"]["url"] != url
    assert set(server.keys) == {"Bearer none"}


def test_support_sums_over_spellings(check):
    answer = tokens({" yes": 0.3, "The": 0.25, "Yes": 0.2, "No": 0.1, "\u2581No": 0.05, "Not": 0.05, "NOT": 0.01})
    with scripted(lambda number, body: answer) as (_, address):
        _, out, _ = check(address, one="0.png", into=False)
    for claim in json.loads(out)["objects"]:
        assert (claim["support"], claim["neither"]) == pytest.approx((0.5 / 0.7, 0.3))


def test_without_logprobs_support_is_1_or_0(check, tmp_path):
    telling = False
    answer = lambda number, body: scored() if telling else plain("No." if "dog" in named(body) else " Yes")  # noqa: E731
    with scripted(answer) as (_, address):
        code, out, _ = check(address, one="0.png")
        (record,) = read(tmp_path / "a.jsonl")
        said = "the server tells no probabilities: support is 1 for yes and 0 for no"
        assert code == 0
        assert out.splitlines()[-1] == said
        assert record["verify"]["source"] == "answer"
        found = {claim["thing"]: claim["support"] for claim in record["objects"]}
        assert found == {"dog": 0, "bowl": 1, "bicycle": 1}
        telling = True
        code, _, err = check(address)
    assert code == 2
    assert "verify" in err
    assert read(tmp_path / "a.jsonl") == [record]


@pytest.mark.parametrize(("status", "most", "source"), [(400, 5, "logprobs"), (400, 0, "answer"), (403, 0, "answer")])
def test_a_server_that_refuses_log_probabilities_is_asked_for_fewer(check, status, most, source):
    """A 403 about a field of the request is not about the key; and some have another name for the number of tokens."""

    def script(number, body):
        if "max_tokens" in body and status == 400:
            return status, {"error": {"message": "Use 'max_completion_tokens' instead."}}
        if body.get("top_logprobs", 0) > most:
            return status, {"error": {"message": f"top_logprobs must be at most {most}"}}
        return scored() if most else plain("Yes")

    with scripted(script) as (server, address):
        _, out, _ = check(address, one="0.png", into=False)
    assert json.loads(out)["verify"]["source"] == source
    assert server.bodies[-1].get("top_logprobs", 0) == most
    assert ("logprobs" in server.bodies[-1]) == bool(most)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (plain(" \n"), "without log-probabilities, unlike before"),
        ((400, {"error": {"message": "too large"}}), "answers 400: "),
        ((503, {"error": {"message": "out of\nbreath"}}), "answers 503: "),
        (tokens({"<think>": 1.0}), "with '<think>', expected yes or no: choose a model that does not reason first"),
        ((200, {"choices": [{"message": {"refusal": "I can't\nhelp."}}]}), "in the image?': I can't help."),
    ],
)
def test_one_bad_answer_fails_one_picture(check, captions, answer, message):
    with scripted(lambda number, body: answer if "horse" in named(body) else scored()) as (_, address):
        code, out, err = check(address)
    assert code == 3
    assert "2 captions, " in out
    for part in (f"{captions / '1.png'}: ", message, "1 of 3 failed"):
        assert part in err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "cannot be reached: [Errno 111] Connection refused: is the server running?"),
        ((200, b"<html>"), "does not answer in OpenAI's chat protocol: '<html>'"),
        ((200, {"choices": []}), "does not answer in OpenAI's chat protocol: "),
        ((401, {"error": {"message": "who?"}}), "answers 401: "),
        ((404, {"error": {"message": "no model 'm'"}}), "(is 'm' a model of this server"),
        *((plain(text), "sent an empty answer to ") for text in (" \n ", None)),
    ],
)
def test_a_server_that_cannot_answer_is_one_line(check, answer, message):
    with scripted(lambda number, body: answer) as (_, address):
        found = check(address, "--min-support", "0.4", into=False) if answer else ()
    code, out, err = found or check(address, "--min-support", "0.4", into=False)  # None: nobody is there any more
    assert code == 1, err
    assert out == "", err
    assert message in err, err
    assert len(err.splitlines()) == 1, err
    assert err.startswith(f"sira: {address}")


def test_an_interrupt_does_not_wait_for_the_server(captions, tmp_path):
    with scripted(lambda number, body: None if number else scored()) as (server, address):
        command = [SIRA, "check", captions, "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)
        while len(server.bodies) < 2 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)  # the server's time limit is 300 s
    assert process.returncode == 130
    assert b"run the same command again" in err


@pytest.mark.parametrize(("user", "sent"), [("", f"Bearer {KEY}"), ("user:hidden@", "Basic dXNlcjpoaWRkZW4=")])
def test_keys_and_passwords_are_sent_and_never_shown(check, tmp_path, monkeypatch, user, sent):
    def script(number, body):
        return (400, {"error": {"message": f"no, {KEY}"}}) if "horse" in named(body) else scored()

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with scripted(script) as (server, address):
        code, out, err = check(address.replace("//", f"//{user}"))
    written = "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    assert code == 3, err
    assert address in written, err
    assert set(server.keys) == {sent}, err
    assert not [secret for secret in (KEY, "hidden") for text in (out, err, written) if secret in text]


def test_the_model_may_be_asked_for_the_objects(check):
    listed = tokens({"dog": 1.0})
    listed[1]["choices"][0]["message"]["content"] = "a dog, bicycle, moon"
    with scripted(lambda number, body: listed if named(body).startswith("Which objects") else scored()) as (_, address):
        code, out, err = check(address, "--objects", "ask", one="0.png", into=False)
    assert code == 0, err
    assert [claim["thing"] for claim in json.loads(out)["objects"]] == ["dog", "bicycle"]


@pytest.mark.parametrize(
    ("models", "message"), [(["a", "b"], "has 2 models: a, b: choose one by --model"), ([], "lists no models: choose")]
)
def test_a_model_is_chosen_where_a_server_has_several(sira, captions, models, message):
    with scripted(None) as (server, address):
        server.models = models
        code, _, err = sira("check", captions, "--endpoint", address)
    assert code == 2, err
    assert f"{address} {message}" in err, err


TURNED = Image.Exif()
TURNED[0x0112] = 3  # upside down, of the same size


@pytest.mark.parametrize(
    ("kind", "mode", "more", "as_it_is"),
    [
        *(("JPEG", "RGB", {}, True), ("PNG", "RGB", {}, True), ("WEBP", "RGB", {}, False)),
        *(("PNG", "RGBA", {}, False), ("JPEG", "CMYK", {}, False), ("JPEG", "RGB", {"exif": TURNED}, False)),
    ],
)
def test_a_file_is_sent_as_it_is_if_every_server_reads_it(kind, mode, more, as_it_is):
    Image.linear_gradient("L").resize((60, 40)).convert(mode).save(file := io.BytesIO(), kind, **more)
    seen, _ = decode_picture("a", data := file.getvalue())
    form, _, sent = data_url(data, seen).partition(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(sent)))
    assert (base64.b64decode(sent) == data, form) == (as_it_is, f"data:image/{image.format.lower()}")
    assert image.mode == "RGB"
    assert image.size == seen.size
    assert image.tobytes() == seen.tobytes()
