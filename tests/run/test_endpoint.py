"""`sira check --endpoint`: the questions of the second look go to a server, on real sockets."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.pictures.opening import data_url, decode_picture
from sira_cli.run import endpoint
from sira_cli.serve.app import Server
from tests.support.asgi import served
from tests.support.endpoint import named, plain, refused, scored, scripted, tokens

FIRST = VALIDATION_SEEDS[500_000]
TEXTS = (
    "A dog stands there. There is a bowl beside a blue bicycle.",
    "There is a house. A horse stands in front of it.",
    "A boat with an elephant, two chairs, a cup and a clock.",
)
KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture(scope="module")
def demo():
    return load("demo")


@pytest.fixture(scope="module")
def address(demo):
    with served(Server(demo).app) as address:
        yield f"{address}/v1"


@pytest.fixture
def captions(tmp_path):
    folder = tmp_path / "captions"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        render(held_out(FIRST + number))[0].save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text)
    return folder


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.02)


# --- our own server


def test_support_is_that_of_a_local_run(sira, address, captions, tmp_path):
    """Of the unchanged model, although `sira` is the usual method of the server."""
    server = ["--endpoint", address, "--model", "demo", "-o", tmp_path / "there.jsonl"]
    _, out, _ = sira("check", captions, "-p", "demo", "-o", tmp_path / "here.jsonl")
    code, there, err = sira("check", captions, "-p", "demo", *server)
    assert (code, there) == (0, out), err
    pairs = list(zip(records(tmp_path / "here.jsonl"), records(tmp_path / "there.jsonl"), strict=True))
    assert sum(len(record["objects"]) for record, _ in pairs) >= 8
    for local, remote in pairs:
        for one, other in zip(local["objects"], remote["objects"], strict=True):
            assert (other["thing"], other["spans"]) == (one["thing"], one["spans"])
            for name in ("support", "neither"):
                assert other[name] == pytest.approx(one[name], abs=1e-4)
        same = ("schema", "file_name", "status", "text", "prompt", "preset", "image_sha256")
        assert {name: local[name] for name in same} == {name: remote[name] for name in same}
        assert [*remote] == [*local]
        assert remote["verify"] == local["verify"] | {"source": "logprobs"}
        assert (remote["model"], remote["revision"]) == ("demo", "endpoint")


def test_a_finished_run_needs_no_server_and_a_grown_one_asks_about_the_new(sira, captions, tmp_path):
    with scripted(lambda number, body: scored()) as (server, address):
        command = ["check", captions, "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        code, out, err = sira(*command)
        assert code == 0
        assert "0.5 is not measured for m: `sira calibrate support --controls` finds one without labels" in err
        asked = len(server.bodies)
        before = records(tmp_path / "a.jsonl")
        (captions / "1.txt").write_text("There is a cup.")
        code, out, err = sira(*command)
        assert (code, "2 of them before" in err) == (0, True), err
        assert [named(body) for body in server.bodies[asked + 1 :]] == ["Is there a cup in the image?"]
        after = records(tmp_path / "a.jsonl")
        assert (after[0], after[1]["text"], after[2]) == (before[0], "There is a cup.", before[2])
        asked = len(server.bodies)
    code, again, err = sira(*command)
    assert (code, again, "3 of them before" in err) == (0, out, True), err
    assert (len(server.bodies), records(tmp_path / "a.jsonl")) == (asked, after)


def test_neither_weights_nor_torch_are_loaded(captions):
    program = "import sys; from sira_cli.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    with scripted(lambda number, body: scored()) as (_, address):
        command = [sys.executable, "-c", program, "check", str(captions), "--endpoint", address, "-m", "m"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "False"


# --- other servers


def test_a_question_is_one_token_without_sampling_about_the_file_itself(sira, captions):
    with scripted(lambda number, body: scored(), "vllm") as (server, address):
        assert sira("check", captions / "0.png", "--endpoint", address, "-m", "m")[0] == 0
    first, *rest = server.bodies
    assert [named(body) for body in rest] == [
        f"Is there a {thing} in the image?" for thing in ("dog", "bowl", "bicycle")
    ]
    for body in rest:
        kept = {name: value for name, value in body.items() if name != "messages"}
        assert kept == {
            "model": "m",
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 20,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        url = body["messages"][0]["content"][0]["image_url"]["url"]
        assert base64.b64decode(url.removeprefix("data:image/png;base64,")) == (captions / "0.png").read_bytes()
    assert first["messages"][0]["content"][0]["image_url"]["url"] != url
    assert set(server.keys) == {"Bearer none"}


def test_support_sums_over_spellings(sira, captions):
    answer = tokens({" yes": 0.3, "The": 0.25, "Yes": 0.2, "No": 0.1, "\u2581No": 0.05, "Not": 0.05, "NOT": 0.01})
    with scripted(lambda number, body: answer) as (_, address):
        _, out, _ = sira("check", captions / "0.png", "--endpoint", address, "--json")
    for claim in json.loads(out)["objects"]:
        assert (claim["support"], claim["neither"]) == pytest.approx((0.5 / 0.7, 0.3))


def test_without_logprobs_yes_and_no_are_1_and_0(sira, captions, tmp_path):
    def script(number, body):
        return plain("No." if "dog" in named(body) else " Yes")

    with scripted(script) as (_, address):
        command = ["check", captions / "0.png", "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        code, out, _ = sira(*command)
    assert code == 0
    assert out.splitlines()[-1] == "the server tells no probabilities: support is 1 for yes and 0 for no"
    [record] = records(tmp_path / "a.jsonl")
    assert record["verify"]["source"] == "answer"
    assert {claim["thing"]: claim["support"] for claim in record["objects"]} == {"dog": 0, "bowl": 1, "bicycle": 1}


def test_probabilities_and_plain_answers_do_not_mix_in_a_file(sira, captions, tmp_path):
    telling = True
    with scripted(lambda number, body: scored() if telling else plain("Yes")) as (_, address):
        command = ["check", captions, "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        assert sira(*command, "--limit", "1")[0] == 0
        telling, before = False, (tmp_path / "a.jsonl").read_bytes()
        code, _, err = sira(*command)
    assert code == 2
    assert "verify" in err
    assert (tmp_path / "a.jsonl").read_bytes() == before


@pytest.mark.parametrize(("status", "most", "source"), [(400, 5, "logprobs"), (400, 0, "answer"), (403, 0, "answer")])
def test_a_server_that_refuses_log_probabilities_is_asked_for_fewer(sira, captions, status, most, source):
    """A 403 about a field of the request is not about the key."""

    def script(number, body):
        if body.get("top_logprobs", 0) > most:
            return status, {"error": {"message": f"top_logprobs must be at most {most}"}}
        return scored() if most else plain("Yes")

    with scripted(script) as (server, address):
        _, out, _ = sira("check", captions / "0.png", "--endpoint", address, "-m", "m", "--json")
    assert json.loads(out)["verify"]["source"] == source
    assert server.bodies[-1].get("top_logprobs", 0) == most
    assert ("logprobs" in server.bodies[-1]) == bool(most)


def test_the_same_file_with_another_server_is_not_done(sira, captions, tmp_path):
    command = ["check", captions / "0.png", "-m", "m", "-o", tmp_path / "a.jsonl"]
    for _ in range(2):
        with scripted(lambda number, body: scored()) as (server, address):
            assert sira(*command, "--endpoint", address)[0] == 0
            asked = len(server.bodies)
            assert asked > 1
            assert sira(*command, "--endpoint", f"{address}/")[0] == 0
            assert len(server.bodies) == asked


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (plain("Yes"), "without log-probabilities, unlike before"),
        (plain(" \n"), "without log-probabilities, unlike before"),
        ((400, {"error": {"message": "too large"}}), "answers 400: "),
        ((503, {"error": {"message": "out of\nbreath"}}), "answers 503: "),
        (tokens({"<think>": 1.0}), "with '<think>', expected yes or no: choose a model that does not reason first"),
        (refused({"refusal": "I can't\nhelp with that."}), "in the image?': I can't help with that."),
    ],
)
def test_one_bad_answer_fails_one_picture(sira, captions, answer, message):
    def script(number, body):
        return answer if "horse" in named(body) else scored()

    with scripted(script) as (_, address):
        code, out, err = sira("check", captions, "--endpoint", address, "-m", "m")
    assert code == 3
    assert f"{captions / '1.png'}: " in err
    assert message in err
    assert "1 of 3 failed" in err
    assert "2 captions, " in out


def test_a_server_that_is_gone_ends_the_run(sira, captions):
    with scripted(lambda number, body: scored()) as (_, address):
        pass
    code, out, err = sira("check", captions, "--endpoint", address, "-m", "m")
    assert (code, out) == (1, "")
    assert f"{address} cannot be reached: [Errno 111] Connection refused: is the server running?" in err


def test_an_interrupt_does_not_wait_for_the_server(captions, tmp_path):
    def script(number, body):
        return None if number else scored()

    with scripted(script) as (server, address):
        command = [sys.executable, "-m", "sira_cli", "check", captions, "--endpoint", address, "-m", "m"]
        process = subprocess.Popen([*map(str, command), "-o", str(tmp_path / "a.jsonl")], stderr=subprocess.PIPE)
        while len(server.bodies) < 2 and process.poll() is None:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)  # the server's time limit is 300 s
    assert process.returncode == 130
    assert b"run the same command again" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--endpoint", "http:///v1", "-m", "m"], "--endpoint is not an address"),
        (["--endpoint", "http://x/v1?key=1", "-m", "m"], "--endpoint is not an address"),
        (["--endpoint", "http://x/v1", "-m", "m", "-b", "2"], "--batch-size is for a model that is loaded here"),
    ],
)
def test_options_that_do_not_fit_are_refused(sira, captions, options, message):
    code, _, err = sira("check", captions, *options)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>"), "does not answer in OpenAI's chat protocol: '<html>'"),
        ((200, {"choices": []}), "does not answer in OpenAI's chat protocol: "),
        ((401, {"error": {"message": "who?"}}), "answers 401: "),
        ((404, {"error": {"message": "no model 'm'"}}), "(is 'm' a model of this server"),
        (plain(" \n "), "sent an empty answer to "),
        (plain(None), "sent an empty answer to "),
    ],
)
def test_a_server_that_cannot_answer_is_one_line(sira, captions, answer, message):
    with scripted(lambda number, body: answer) as (_, address):
        code, out, err = sira("check", captions, "--endpoint", address, "-m", "m", "--min-support", "0.4")
    assert (code, out) == (1, "")
    assert err.startswith(f"sira: {address}")
    assert message in err
    assert len(err.splitlines()) == 1


def test_an_empty_answer_fails_its_picture_where_no_probabilities_are_told(sira, captions, tmp_path):
    """It is tried again with --retry-errors, and by no other run."""
    with scripted(lambda number, body: plain(" \n" if "horse" in named(body) and broken else "Yes")) as (_, address):
        command = ["check", captions, "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        broken = True
        code, _, err = sira(*command)
        assert (code, "1.png: " in err, "sent an empty answer to 'Is there a horse in the image?'" in err) == (
            3,
            True,
            True,
        )
        failed = records(tmp_path / "a.jsonl")[1]
        assert (failed["status"], failed["support"], failed["objects"], failed["text"]) == ("error", 0, [], TEXTS[1])
        broken = False
        assert sira(*command)[0] == 3
        assert sira(*command, "--retry-errors")[0] == 0
    assert [record["status"] for record in records(tmp_path / "a.jsonl")] == ["ok"] * 3


def test_a_busy_server_is_asked_again(sira, captions):
    def script(number, body):
        return (429, {"error": {"message": "busy"}}) if number == 1 else scored()

    with scripted(script) as (server, address):
        assert sira("check", captions / "0.png", "--endpoint", address, "-m", "m")[0] == 0
    assert len(server.bodies) == 1 + 3 + 1


@pytest.mark.parametrize(("user", "sent"), [("", f"Bearer {KEY}"), ("user:hidden@", "Basic dXNlcjpoaWRkZW4=")])
def test_keys_and_passwords_are_sent_and_never_shown(sira, captions, tmp_path, monkeypatch, user, sent):
    def script(number, body):
        return (400, {"error": {"message": f"no, {KEY}"}}) if "horse" in named(body) else scored()

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with scripted(script) as (server, address):
        place = address.replace("//", f"//{user}")
        code, out, err = sira("check", captions, "--endpoint", place, "-m", "m", "-o", tmp_path / "a.jsonl")
    assert code == 3, err
    written = "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    assert address in written
    for text in (out, err, written):
        assert not [secret for secret in (KEY, "hidden") if secret in text]
    assert set(server.keys) == {sent}


def test_the_model_may_be_asked_for_the_objects(sira, captions):
    listed = tokens({"dog": 1.0})[1] | {}
    listed["choices"][0]["message"]["content"] = "a dog, bicycle, moon"

    def script(number, body):
        return (200, listed) if named(body).startswith("Which objects") else scored()

    with scripted(script) as (_, address):
        command = ["check", captions / "0.png", "--endpoint", address, "-m", "m", "--json"]
        code, out, err = sira(*command, "--objects", "ask")
    assert code == 0, err
    assert [claim["thing"] for claim in json.loads(out)["objects"]] == ["dog", "bicycle"]


def test_a_missing_package_is_named(sira, captions, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    code, _, err = sira("check", captions, "--endpoint", "http://127.0.0.1:9/v1", "-m", "m")
    assert (code, "--endpoint needs the package openai, which is not installed: " in err) == (2, True)


@pytest.mark.parametrize(
    ("models", "message"), [(["a", "b"], "has 2 models: a, b: choose one by --model"), ([], "lists no models: choose")]
)
def test_a_model_is_chosen_where_a_server_has_several(sira, captions, models, message):
    with scripted(None) as (server, address):
        server.models = models
        code, _, err = sira("check", captions, "--endpoint", address)
    assert (code, f"{address} {message}" in err) == (2, True), err


# --- pictures


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(image):
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(image, "JPEG", exif=exif)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_files_that_every_server_reads_are_sent_as_they_are(kind):
    data = saved(Image.linear_gradient("L").convert("RGB"), kind)
    url, warnings = data_url("a", data)
    assert (url, warnings) == (f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}", ())


@pytest.mark.parametrize(
    "data",
    [
        saved(Image.linear_gradient("L").convert("RGB"), "WEBP"),
        saved(Image.linear_gradient("L").convert("RGBA"), "PNG"),
        saved(Image.linear_gradient("L").convert("CMYK"), "JPEG"),
        saved(Image.linear_gradient("L").convert("P"), "GIF"),
        turned(Image.linear_gradient("L").resize((60, 40))),
    ],
    ids=["webp", "transparent", "cmyk", "gif", "turned"],
)
def test_other_files_are_sent_as_the_model_would_see_them(data):
    url, _ = data_url("a", data)
    sent = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    seen, _ = decode_picture("a", data)
    assert (sent.mode, sent.size, sent.tobytes()) == ("RGB", seen.size, seen.tobytes())


def test_a_contrast_and_reasoning_of_the_server_play_no_part(address):
    """`begin` asks for the unchanged model in the words of our server: the default there is `sira`."""
    here = endpoint.Endpoint(address, "demo")
    assert here.begin("Is there a dog in the image?") == "logprobs"
    assert here._more["sira"]["method"] == "greedy"
    here.end()
