"""`sira check --fix rewrite --endpoint`: a server goes on with the text before an unsupported object.

The server is scripted: it stands for those that continue an assistant's message (vLLM, llama-server, Ollama), and for
those that do not.
"""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image

from sira_cli import load
from sira_cli.remote.rewriting import joined
from sira_cli.serve.app import Server
from sira_cli.serve.connections import Connection
from tests.support.asgi import served
from tests.support.endpoint import plain, scripted, tokens

TEXT = "A dog stands there. There is a bowl beside a blue bicycle."
PROBE = "The picture is grey all over."


class Model:
    """Sees a bowl, a cat and a bicycle. `texts`: what it goes on with, one after the other."""

    def __init__(self, *texts, echoes=False, continues=True):
        self.texts, self.echoes, self.continues = [*texts], echoes, continues

    def __call__(self, number, body):
        *_, last = body["messages"]
        if last["role"] == "assistant":
            head = last["content"]
            if not self.continues:
                return plain(PROBE)
            _, unusual, begun = head.rpartition("In short: ")
            rest = PROBE.removeprefix(begun) if unusual else self.texts.pop(0)
            return plain(head + rest if self.echoes else rest)
        question = last["content"][-1]["text"]
        if not question.startswith("Is there"):
            status, answer = tokens({"The": 1.0})
            answer["choices"][0]["message"]["content"] = PROBE
            return status, answer
        seen = any(thing in question for thing in ("bowl", "cat", "bicycle"))
        return tokens({"Yes": 0.9, "No": 0.1} if seen else {"Yes": 0.1, "No": 0.9})


@pytest.fixture
def run(sira, tmp_path):
    folder = tmp_path / "captions"
    folder.mkdir()
    Image.linear_gradient("L").convert("RGB").save(folder / "a.png")
    (folder / "a.txt").write_text(TEXT)

    def run(model, owner="somebody", address=""):
        with scripted(model, owner) as (server, own):
            files = ("--fixed", tmp_path / "fixed", "-o", tmp_path / "a.jsonl", "--overwrite")
            command = (
                "check",
                folder,
                "--fix",
                "rewrite",
                *files,
                "--endpoint",
                address or own,
                "-m",
                "m" if model else "demo",
            )
            code, _, err = sira(*command)
            done = server.bodies, code, err
        if code:
            return None, *done
        again = sira(*(each for each in command if each != "--overwrite"))  # no server
        assert again[0] == 0, again
        record = json.loads((tmp_path / "a.jsonl").read_text())
        assert (tmp_path / "fixed" / "a.txt").read_text().strip() == record["fixed"]
        return record, *done

    return run


def written(bodies):
    """The requests to go on with a caption."""
    return [body for body in bodies[3:] if body["messages"][-1]["role"] == "assistant"]


@pytest.mark.parametrize("echoes", [False, True])
@pytest.mark.parametrize("rest", [" cat sits there.", "cat sits there.\n"])
def test_the_text_before_an_object_stays_and_the_server_goes_on(run, rest, echoes):
    record, bodies, _, _ = run(Model(rest, echoes=echoes))
    assert record["fixed"] == "A cat sits there."
    assert record["text"] == TEXT
    assert [each["thing"] for each in record["removed"]] == ["dog"]
    assert [each["thing"] for each in record["objects"]] == ["dog", "bowl", "bicycle"]
    assert "dropped" not in record
    [body] = written(bodies)
    prompt = body["messages"][0]["content"][-1]["text"]
    assert prompt == "Please describe this image in detail. Do not mention a dog."
    assert body["messages"][-1]["content"] == "A"
    assert (body["temperature"], body["max_tokens"]) == (0, 512)
    assert not body.keys() & {"seed", "logprobs", "continue_final_message", "add_generation_prompt"}


def test_a_word_that_comes_twice_does_not_decide_whether_a_server_goes_on(run, monkeypatch):
    monkeypatch.setitem(globals(), "PROBE", "Grey is Grey all over.")
    assert run(Model(" cat."))[0]["fixed"] == "A cat."


def test_an_object_is_asked_about_once(run):
    _, bodies, _, _ = run(Model(" cat and a bowl."))
    asked = [body["messages"][-1]["content"][-1]["text"] for body in bodies[3:] if body not in written(bodies)]
    assert asked == [f"Is there a {thing} in the image?" for thing in ("dog", "bowl", "bicycle", "cat")]


def test_named_again_it_is_sampled_and_then_dropped(run):
    record, bodies, _, _ = run(Model(" dog again. A cat.", " horse. A cat.", " dog. There is a cat."))
    assert record["fixed"] == "There is a cat."
    assert [each["thing"] for each in record["removed"]] == ["dog", "horse"]
    assert [(body["temperature"], body.get("seed")) for body in written(bodies)] == [(0, None), (1, 1), (1, 2)]
    assert written(bodies)[2]["messages"][0]["content"][-1]["text"].endswith("Do not mention a dog or a horse.")


def test_vllm_is_asked_in_its_words(run):
    _, bodies, _, _ = run(Model(" cat."), "vllm")
    [body] = written(bodies)
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert not any("continue_final_message" in body for body in bodies if body["messages"][-1]["role"] == "user")


@pytest.mark.parametrize("probe", [PROBE, "Grey is Grey all over."])
def test_a_server_that_begins_anew_is_one_line(run, probe, monkeypatch):
    monkeypatch.setitem(globals(), "PROBE", probe)
    _, bodies, code, err = run(Model(continues=False))
    assert code == 1
    assert "does not go on with the beginning of a text, which rewriting needs" in err
    assert len(bodies) == 3


def test_our_own_server_does_not_go_on_with_texts(run):
    """It answers the last message, and says so."""
    with served(Server(load("demo", method="greedy")).app, http=Connection, ws="none") as address:
        _, code, err = run(None, address=f"{address}/v1")[1:]
    assert code == 1
    assert re.search(r"does not go on with the beginning of a text \(answers 400: .*\), which rewriting needs", err)


def test_a_supported_text_stays(run, tmp_path):
    (tmp_path / "captions" / "a.txt").write_text("A bowl.")
    record, bodies, _, _ = run(Model())
    assert (record["fixed"], record["removed"], written(bodies)) == ("A bowl.", [], [])


@pytest.mark.parametrize(
    ("head", "rest", "whole"),
    [("A", "cat", "A cat"), ("A", " cat", "A cat"), ("A cat", ".", "A cat."), ("", "A", "A"), ("一", "二", "一二")],
)
def test_a_space_that_a_server_dropped_comes_back(head, rest, whole):
    assert joined(head, rest) == whole
