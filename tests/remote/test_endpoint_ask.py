"""`sira ask --endpoint`: a question about many pictures goes to a server."""

from __future__ import annotations

import json
import math

import pytest

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.remote.answer import Reply, check_choices, read_choices
from sira_cli.remote.endpoint import Endpoint
from sira_cli.serve.app import Server
from tests.support.asgi import served
from tests.support.endpoint import named, plain, scripted, tokens

QUESTION = "Is there a dog in the image?"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        render(held_out(VALIDATION_SEEDS[500_000 + number]))[0].save(folder / f"{number}.png")
    return folder


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_our_own_server_answers_as_a_local_run(sira, photos, tmp_path):
    lvlm = load("demo", method="greedy")
    asked = {"yes or no": [QUESTION], "choice": [QUESTION, "--choices", "Yes,No"], "text": ["What is in the image?"]}
    with served(Server(lvlm).app) as address:
        for name, question in asked.items():
            here, there = tmp_path / f"here {name}.jsonl", tmp_path / f"there {name}.jsonl"
            command = ["ask", photos, *question, "-p", "demo"]
            assert sira(*command, "--method", "greedy", "-o", here)[0] == 0
            code, _, err = sira(*command, "--endpoint", f"{address}/v1", "-m", "demo", "-o", there)
            assert code == 0, err
            for local, remote in zip(records(here), records(there), strict=True):
                same = ("schema", "file_name", "status", "text", "prompt", "method", "finish_reason", "output_tokens")
                same = (*same, "image_sha256", "prompt_tokens", "max_new_tokens")
                if name == "choice":  # one token is decoded there, and none here
                    local["output_tokens"] = 1
                assert {each: remote[each] for each in same} == {each: local[each] for each in same}
                if name == "choice":
                    for one, other in zip(local["choices"], remote["choices"], strict=True):
                        assert other["choice"] == one["choice"]
                        assert other["probability"]["full"] == pytest.approx(one["probability"]["full"], abs=1e-4)
                assert ("support" in remote) == (name == "yes or no")
    by_choice = [record["choices"][0]["probability"]["full"] for record in records(tmp_path / "there choice.jsonl")]
    by_text = [record["support"] for record in records(tmp_path / "there yes or no.jsonl")]
    assert by_text == pytest.approx(by_choice, abs=1e-5)


def test_an_answer_is_one_request_with_the_likeliest_tokens(sira, photos):
    answer = {"content": " A dog.\n", "reasoning_content": "Hm."}
    usage = {"prompt_tokens": 70, "completion_tokens": 5}
    body = {"choices": [{"message": answer, "finish_reason": "length"}], "usage": usage}
    with scripted(lambda number, body: (200, told), "vllm") as (server, address):
        told = body
        command = ["ask", photos / "0.png", "What?", "--endpoint", address, "--max-new-tokens", 7, "--json"]
        code, out, _ = sira(*command, "--system", "Be brief.", "--set", "max_sentences=1")
        assert code == 0
    _, sent = server.bodies
    assert (sent["max_tokens"], sent["temperature"], named(sent)) == (7, 0, "What?")
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    record = json.loads(out)
    expected = {
        "text": "A dog.",
        "reasoning": "Hm.",
        "finish_reason": "length",
        "temperature": 0.0,
        "system": "Be brief.",
    }
    expected |= {"prompt_tokens": 70, "output_tokens": 5, "model": "m", "revision": "endpoint", "method": "greedy"}
    assert {name: record[name] for name in expected} == expected
    assert not record.keys() & {"support", "choices", "objects", "verify"}


def test_a_yes_or_a_no_has_its_probability(sira, photos):
    with scripted(lambda number, body: tokens({"Yes": 0.6, "No": 0.2})) as (_, address):
        command = ["ask", photos / "0.png", QUESTION, "--endpoint", address, "-m", "m"]
        assert sira(*command)[1] == "Yes (yes: 75.0%)\n"
        assert sira(*command, "--choices", "no,yes")[1] == "yes (75.0%)\n"
        assert json.loads(sira(*command, "--json")[1])["support"] == pytest.approx(0.75)


def test_a_text_that_says_neither_has_no_probability_of_yes(sira, photos):
    with scripted(lambda number, body: tokens({"A": 0.6, "Yes": 0.2, "No": 0.1})) as (_, address):
        assert sira("ask", photos / "0.png", "What?", "--endpoint", address, "-m", "m")[1] == "A\n"


def test_choices_without_probabilities(sira, photos):
    with scripted(lambda number, body: plain("No, there is not.")) as (_, address):
        command = ["ask", photos / "0.png", QUESTION, "--endpoint", address, "-m", "m"]
        record = json.loads(sira(*command, "--choices", "Yes,No", "--json")[1])
        assert [each["probability"]["full"] for each in record["choices"]] == [0, 1]
        assert record["warnings"] == ["the server tells no probabilities: 1 for its answer"]
        code, _, err = sira(*command, "--choices", "A,B")
    assert code == 3
    assert f"begins its answer to {QUESTION!r} with 'No, there is not.', expected one of A, B: name the" in err


@pytest.mark.parametrize("choices", [["--choices", "red dog,red cat"], []])
def test_a_run_that_never_began_leaves_no_file(sira, photos, tmp_path, choices):
    with scripted(lambda number, body: (404, {"error": "no such model"})) as (_, address):
        command = ["ask", photos, "Which?", *choices, "--endpoint", address, "-m", "m", "-o"]
        code, _, err = sira(*command, tmp_path / "a.jsonl")
        assert (code, choices == [] or "begin with the same word" in err) == (2 if choices else 1, True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
        (tmp_path / "a.jsonl").touch()
        sira(*command, tmp_path / "a.jsonl")
        assert (tmp_path / "a.jsonl").exists()  # it was there before


def test_questions_of_a_file_go_on_where_they_stopped(sira, photos, tmp_path):
    def script(number, body):
        return (400, {"error": "no"}) if broken and "horse" in named(body) else tokens({"Yes": 0.6, "No": 0.2})

    questions = [
        {"image": f"{number}.png", "question": f"A {what}?"} for number in range(3) for what in ("dog", "horse")
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, questions)))
    broken = True
    with scripted(script) as (server, address):
        command = ["ask", photos, "--questions", file, "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        assert sira(*command)[0] == 3
        asked, broken = len(server.bodies), False
        assert sira(*command, "--retry-errors")[0] == 0
        assert [named(body) for body in server.bodies[asked + 1 :]] == ["A horse?"] * 3
    assert [record["text"] for record in records(tmp_path / "a.jsonl")] == ["Yes"] * 6
    assert sira(*command)[0] == 0  # no server


def test_reasoning_without_an_answer_fails(sira, photos):
    for reason, advice in (("length", "raise max_new_tokens, or choose a"), ("stop", "'What?': choose a model")):
        answer = {"choices": [{"message": {"content": "", "reasoning": "Let me"}, "finish_reason": reason}]}
        with scripted(lambda number, body, answer=answer: (200, answer)) as (_, address):
            code, _, err = sira("ask", photos / "0.png", "What?", "--endpoint", address, "-m", "m")
        assert (code, advice in err, "sends reasoning alone" in err) == (3, True, True)


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [(plain("No, there is not."), False), (plain("<think>"), True), (tokens({"C": 0.9, "<think>": 0.1}), False)],
)
def test_advice_on_another_answer_fits_its_cause(answer, reasons):
    endpoint, reply = Endpoint("http://localhost/v1", "m"), Reply.of(answer[1])
    said = str(endpoint.unlike(reply, QUESTION, "A or B", "name the choices"))
    assert ("does not reason first" in said, "name the choices" in said) == (reasons, not reasons)


def test_a_server_that_wants_another_word_for_the_limit_gets_it(sira, photos):
    def script(number, body):
        if "max_tokens" in body:
            return 400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead"}}
        return tokens({"Yes": 0.6, "No": 0.2})

    with scripted(script) as (server, address):
        assert sira("ask", photos, QUESTION, "--endpoint", address, "-m", "m")[0] == 0
    assert [("max_tokens" in body, body.get("max_completion_tokens")) for body in server.bodies[:2]] == [
        (True, None),
        (False, 1),
    ]
    assert all("max_tokens" not in body and body["max_completion_tokens"] > 1 for body in server.bodies[2:])


@pytest.mark.parametrize(
    ("top", "choices", "expected"),
    [
        ({"Yes": 0.5, " yes": 0.1, "No": 0.2, "Maybe": 0.1}, ("Yes", "No"), (0.75, 0.25)),
        ({"ele": 0.3, "horse": 0.1, "e": 0.1}, ("elephant", "eagle", "horse"), (0.75, 0, 0.25)),
        ({"A": 0.4, "AB": 0.1}, ("A", "AB"), (0.8, 0.2)),
        ({"": 0.5, " ": 0.2, "The": 0.3}, ("A", "B"), None),
    ],
)
def test_a_token_counts_for_the_choice_that_it_begins(top, choices, expected):
    reply = Reply("", None, "stop", tuple((token, math.log(each)) for token, each in top.items()), 0, 0)
    found = read_choices(reply, choices)
    assert found == (None if expected is None else pytest.approx(list(expected)))


def test_choices_that_a_first_word_does_not_tell_apart_are_refused_before_asking(sira, photos, tmp_path):
    with scripted(lambda number, body: tokens({"dark": 0.9, "Yes": 0.1})) as (server, address):
        command = ["ask", photos, "What?", "--endpoint", address, "-m", "m", "-o", tmp_path / "a.jsonl"]
        code, _, err = sira(*command, "--choices", "No,Yes,yes there is")
    assert (code, server.bodies) == (2, [])
    assert "--choices 'Yes' and 'yes there is' begin with the same word" in err


@pytest.mark.parametrize(
    "choices", [("A", "AB"), ("-1", "1"), ("+", "-"), ("red", "reddish"), ("blue", "dark blue"), ()]
)
def test_choices_that_differ_in_their_first_word_are_asked(choices):
    check_choices(choices)
