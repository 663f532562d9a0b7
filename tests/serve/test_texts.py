"""Every text is that of the library or of transformers, to the character: alone, with others, and in conversations."""

from __future__ import annotations

import functools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

import sira_cli
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.claims import Verify
from sira_cli.models.presets import BUNDLED_FOLDER
from sira_cli.models.texts import TextSettings
from sira_cli.serve import Limits
from sira_cli.serve.queue import Queue
from tests.serve.helpers import (
    LONG,
    PICTURES,
    PROMPT,
    ROOT,
    ask,
    client_of,
    counted,
    data_of,
    post,
    posted,
    rows,
    running,
    said,
    streamed,
    streaming,
    text,
    wait_for,
)

# --- of one request


def test_a_text_is_that_of_the_library(client, lvlm):
    expected = lvlm.caption(PICTURES[0], PROMPT)
    answer = ask(client)
    assert (text(answer), answer.choices[0].finish_reason) == (expected.text, expected.finish_reason)
    assert answer.usage.completion_tokens == expected.output_tokens
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.sira["method"] == "sira"
    assert answer.sira["k"] == expected.k
    assert answer.sira["alpha"] == expected.alpha
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
    method = preset.method("vcd").with_values(alpha=0.5) if "method" in sira else preset.method("sira")
    answer = posted(address, messages=said(PROMPT, PICTURES[1], settings.get("system")), sira=sira, **more)
    assert answer == lvlm.under(method, preset).caption(PICTURES[1], PROMPT).text


def test_messages_of_system_and_developer_are_the_systems_in_their_order(client, lvlm):
    first = [
        {"role": role, "content": words} for role, words in (("developer", "Be brief."), ("system", "No colours."))
    ]
    lvlm = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(system="Be brief.\nNo colours."))
    answer = ask(client, [*first, *said()])
    result = lvlm.caption(PICTURES[0], PROMPT)
    assert (text(answer), answer.usage.prompt_tokens) == (result.text, result.prompt_tokens)


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


def test_texts_without_a_seed_vary(address):
    def texts(**more: object) -> set[str]:
        return {posted(address, **{"temperature": 2, "max_tokens": 16} | more) for _ in range(4)}

    assert len(texts()) > 1
    assert len(texts(seed=-1)) == len(texts(temperature=0)) == 1
    for seed in (3, 4):  # which may be decoded together
        assert post(address, temperature=2, seed=seed, max_tokens=2).json()["sira"]["seed"] == seed


def test_the_example_of_the_page(address, monkeypatch, capsys):
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    (chat,) = (block.split("```")[0] for block in page.split("```python\n")[1:])
    monkeypatch.chdir(ROOT)
    exec(chat.replace("http://127.0.0.1:8000", address), {})
    assert "'support'" in capsys.readouterr().out


# --- scores


def test_logprobs_are_those_of_the_contrast(client, lvlm):
    """Against a trace of the same text, whose rows hold both streams."""
    steps = []
    inputs = lvlm.to_device(lvlm.prepare([Image.open(PICTURES[0]).convert("RGB")], [PROMPT]))
    lvlm.generate(inputs, on_tokens=lambda tokens, step: steps.append((tokens[0], step)))
    for stream in (False, True):
        found = rows(ask(client, logprobs=True, top_logprobs=3, stream=stream))
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
    expected = whole.message.content[: None if stop is None else whole.message.content.index(stop)].strip()
    stops = stop and [stop[1:], stop]  # the first in the text counts
    for stream in (False, True):
        found = rows(ask(client, logprobs=True, stop=stops, stream=stream, max_tokens=200))
        assert "".join(row.token for row in found) == b"".join(bytes(row.bytes) for row in found).decode() == expected


def test_many_stop_strings_are_taken_and_the_last_one_stops(client):
    whole = text(ask(client))
    word = whole.split()[4]
    names = [f"\nNobody {number}:" for number in range(255)]
    for stream in (False, True):
        assert text(ask(client, stop=[*names, word], stream=stream)) == whole[: whole.index(word)].strip()


# --- a second look

# In the first, greedy names a cup that is not there; in the second, one thing after the other.
SCENES = [render(held_out(VALIDATION_SEEDS[number]))[0] for number in (500_000, 500_003)]


@pytest.mark.parametrize(
    ("scene", "sira", "look"),
    [
        (0, {"method": "greedy", "verify": "guide"}, Verify(mode="guide")),
        (1, {"verify": "guide", "min_support": 0.9}, Verify(0.9, mode="guide")),
        (1, {"verify": "flag", "min_support": 0.4, "words": True}, Verify(0.4, mode="flag")),
    ],
)
def test_text_things_and_draft_are_those_of_caption(client, lvlm, scene, sira, look):
    """A guided text comes in one piece, and the others as they grow."""
    lvlm = lvlm.under(sira.get("method", "sira"), lvlm.preset.with_settings(max_new_tokens=60))
    result = lvlm.caption(data_of(SCENES[scene]), PROMPT, verify=look)
    answer = ask(client, said(picture=SCENES[scene]), sira, max_tokens=60)
    assert (text(answer), answer.usage.completion_tokens) == (result.text, result.output_tokens)
    record = result.to_record()
    for name in ("verify", "draft"):
        assert answer.sira.get(name) == record.get(name)
    for name in ("objects", "removed"):
        for thing, known in zip(answer.sira.get(name, []), record.get(name, []), strict=True):
            scores = {each: pytest.approx(known[each], abs=1e-4) for each in ("support", "neither") if each in known}
            assert thing == known | scores
    if "words" in sira:
        assert [result.text[word["start"] : word["end"]] for word in answer.sira["words"]] == result.text.split()
    *chunks, last = ask(client, said(picture=SCENES[scene]), sira, max_tokens=60, stream=True)
    pieces = streamed([*chunks, last])
    assert ("".join(pieces), len(pieces) == 1) == (result.text, look.mode == "guide")
    assert [thing["thing"] for thing in last.sira["objects"]] == [thing["thing"] for thing in result.objects]


# --- of many requests at once: whoever comes and goes


@functools.cache
def single(lvlm, picture, tokens, method="sira", **settings):
    preset = lvlm.preset.with_settings(max_new_tokens=tokens, **settings)
    return lvlm.under(preset.method(method), preset).caption(picture, PROMPT).text


def test_whoever_waits_longest_begins_first(endless):
    """A method is not overtaken for ever by others. A text that a stop ends in a batch has its own tokens only."""
    words = single(endless, PICTURES[1], 4).split()
    expected = {(method, None): (single(endless, PICTURES[1], 4, method), 4) for method in ("vcd", "sira", "greedy")}
    expected["sira", words[2]] = " ".join(words[:2]), 3
    done = {}

    def one(method: str, stop: str | None) -> None:
        answer = ask(client_of(address), said(picture=PICTURES[1]), {"method": method}, max_tokens=4, stop=stop)
        done[method, stop] = text(answer), answer.usage.completion_tokens

    with running(endless, limits=Limits(tokens=LONG)) as address, ThreadPoolExecutor(4) as pool, streaming(address):
        for number, request in enumerate(expected, 1):
            wait_for(address, number, pool.submit(one, *request))
    assert (next(iter(done))[0], done) == ("vcd", expected)


def test_all_kinds_of_requests_at_once(client, address, lvlm):
    """Of other lengths, with stops, log-probabilities, seeds, second looks, schemas, streamed and not; each thrice."""
    one = functools.partial(single, lvlm, PICTURES[0])
    whole, stop = one(24), one(24).split()[5]
    few = {"type": "array", "items": {"enum": ["dog", "tree", "día"]}, "minItems": 1, "maxItems": 2}
    values = {"response_format": {"type": "json_schema", "json_schema": {"name": "few", "schema": few}}}
    guided = lvlm.under("greedy").caption(PICTURES[0], PROMPT, verify="guide").text
    kinds = [  # the request, and its text
        ({"logprobs": True, "top_logprobs": 2}, whole),
        *(({"max_tokens": 5}, one(5)), ({"max_tokens": 11, "stream": True}, one(11))),
        ({"stop": ["never said", stop], "stream": True}, whole[: whole.index(stop)].strip()),
        ({"temperature": 1.2, "seed": 3}, one(24, temperature=1.2, seed=3)),
        ({"temperature": 1.2, "seed": 4, "stream": True}, one(24, temperature=1.2, seed=4)),
        *(({"sira": {"verify": "flag"}}, whole), ({"sira": {"words": True}}, whole)),
        ({"sira": {"method": "greedy"}, "logprobs": True}, one(24, "greedy")),
        ({"sira": {"method": "greedy", "verify": "guide"}}, guided),
        (values, lvlm.caption(PICTURES[0], PROMPT, schema=few).text),
    ]
    alone = [row.logprob for row in rows(ask(client, **kinds[0][0]))]
    before = [counted(address, f"sira_batch_texts_{name}") for name in ("count", "sum")]
    with ThreadPoolExecutor(3 * len(kinds)) as pool:
        answers = list(pool.map(lambda kind: ask(client, **kind[0]), 3 * kinds))
        assert list(pool.map(text, answers)) == [expected for _, expected in 3 * kinds]
    assert [row.logprob for row in rows(answers[0])] == pytest.approx(alone, abs=1e-4)
    assert len(alone) > 20
    begun, together = (counted(address, f"sira_batch_texts_{name}") for name in ("count", "sum"))
    assert (together - before[1]) / (begun - before[0]) > 2  # of 8


def test_a_pass_that_fails_is_tried_again_in_halves(endless, monkeypatch):
    expected = [single(endless, picture, 24) for picture in PICTURES[:3]]
    passes = []
    ready = []  # requests whose pictures are open

    def with_pictures(queue, job, begun=Queue._ready) -> None:
        begun(queue, job)
        ready.append(job)

    monkeypatch.setattr(Queue, "_ready", with_pictures)

    def failing(model, arguments, named):
        passes.append(len(named["input_ids"]))
        if passes[-1] == 3 and passes.count(3) == 6:
            raise RuntimeError("out of memory")

    def one(picture) -> str:
        return text(ask(client_of(address), said(picture=picture), stream=True, max_tokens=24))

    hook = endless.model.register_forward_pre_hook(failing, with_kwargs=True)
    try:
        with running(endless, limits=Limits(tokens=LONG)) as address, ThreadPoolExecutor(3) as pool:
            with streaming(address, PICTURES[3]):
                texts = [pool.submit(one, picture) for picture in PICTURES[:3]]
                while len(ready) < 4:
                    time.sleep(0.01)
            assert [each.result() for each in texts] == expected
    finally:
        hook.remove()
    assert passes.count(3) == 6


def test_a_text_that_repeats_itself_is_told(address):
    """As in records of `sira caption`."""
    thrice = {"type": "array", "items": {"enum": ["cat"]}, "minItems": 3, "maxItems": 3}
    form = {"type": "json_schema", "json_schema": {"schema": thrice}}
    repeated = post(address, max_tokens=30, response_format=form).json()
    assert json.loads(repeated["choices"][0]["message"]["content"]) == ["cat"] * 3
    assert repeated["sira"]["warnings"] == ["says 'cat' again and again"]


def test_a_text_that_is_changed_at_its_end_comes_in_one_piece(lvlm):
    """Its beginnings are not those of what the preset makes of it."""
    changed = lvlm.preset.model_copy(update={"text": TextSettings(prefix="photo: ", max_sentences=1)})
    lvlm = lvlm.under(lvlm.decoder, changed)
    expected = lvlm.caption(PICTURES[0], PROMPT).text
    assert expected.startswith("photo: ")
    with running(lvlm) as address:
        assert streamed(ask(client_of(address), stream=True)) == [expected]


# --- conversations of several turns, against transformers' own rendering and decoding

FOLLOWING = [{"role": "assistant", "content": "There is a dog."}, {"role": "user", "content": "What is on the left?"}]
AGAIN = [*FOLLOWING, {"role": "assistant", "content": [{"type": "text", "text": "A cup."}]}]
AGAIN += [{"role": "user", "content": [{"type": "text", "text": "Is there a tree?"}]}]


def shown(*pictures: Path) -> list[dict]:
    """One message with several pictures."""
    parts = [said(picture=picture)[0]["content"][0] for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": PROMPT}]}]


def mixed(*texts: str) -> list[dict]:
    """One message with a picture after each of some texts, but for the last one."""
    images = shown(*PICTURES[: len(texts) - 1])[0]["content"]  # and a text, which is cut off
    pairs = zip(({"type": "text", "text": text} for text in texts), images, strict=True)
    return [{"role": "user", "content": [part for pair in pairs for part in pair][:-1]}]


def reference(lvlm, messages: list[dict], *pictures: Path, method: str = "greedy") -> str:
    """What plain `generate` says behind the prompt that transformers makes of the messages."""
    processor = AutoProcessor.from_pretrained(BUNDLED_FOLDER)
    images = iter([Image.open(picture).convert("RGB") for picture in pictures or PICTURES[:1]])
    chat = []
    for message in messages:
        parts = message["content"]
        parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
        parts = [{"type": "image", "image": next(images)} if part["type"] == "image_url" else part for part in parts]
        chat.append({"role": message["role"], "content": parts})
    inputs = processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with sira_cli.attach(lvlm.model, lvlm.sira, method=method), torch.no_grad():
        output = lvlm.model.generate(**inputs, do_sample=False, max_new_tokens=24)
    return processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


CONVERSATIONS = {  # with their pictures
    "five turns": ([*said(), *AGAIN], PICTURES[:1]),
    "a later picture": ([{"role": "user", "content": "Hello."}, FOLLOWING[0], *said()], PICTURES[:1]),
    "a picture per turn": ([*said(), FOLLOWING[0], *said("What is new?", PICTURES[1])], PICTURES[:2]),
    "two pictures in a message": (shown(*PICTURES[:2]), PICTURES[:2]),
    "five pictures": ([*shown(*PICTURES[:3]), FOLLOWING[0], *shown(*PICTURES[:2])], [*PICTURES[:3], *PICTURES[:2]]),
    "between words": (mixed("A dog?", "Or here", "a cat?"), PICTURES[:2]),
}


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_answers_are_those_of_transformers(client, lvlm, method):
    """The stream that does not see sees none of the pictures; conversations with one to five share batches."""
    expected = [reference(lvlm, each, *seen, method=method) for each, seen in CONVERSATIONS.values()]
    with ThreadPoolExecutor(len(expected)) as pool:
        answers = list(pool.map(lambda each: ask(client, each[0], {"method": method}), CONVERSATIONS.values()))
    assert [text(answer) for answer in answers] == expected
    assert len(set(expected)) > 4  # of six
    counts = [answer.sira["image_tokens"] for answer in answers]
    assert counts == [64 * len(seen) for _, seen in CONVERSATIONS.values()]
    messages = CONVERSATIONS["five turns"][0]
    assert "".join(streamed(ask(client, messages, {"method": method}, stream=True))) == expected[0]


def test_seeds_know_all_pictures(client):
    one, other = ([*said(picture=first), FOLLOWING[0], *said("And here?", PICTURES[2])] for first in PICTURES[:2])
    drawn = [text(ask(client, each, temperature=1.0, seed=0, max_tokens=12)) for each in (one, other, one)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_prompts_are_those_of_the_commands(client, lvlm):
    """In the last turn, and where the picture came without words; a picture after all words comes first."""
    messages = [*said(), *FOLLOWING]
    del messages[0]["content"][1]
    question = {"role": "user", "content": lvlm.preset.prompts.asking("What is on the left?")}
    worded = [*said(lvlm.preset.prompts.caption), FOLLOWING[0], question]
    assert text(ask(client, messages, {"task": "ask", "method": "greedy"})) == reference(lvlm, worded)
    assert text(ask(client, said("Is there a dog?"), {"task": "ask"})) == lvlm.ask(PICTURES[0], "Is there a dog?").text
    assert text(ask(client, [{"role": "user", "content": said()[0]["content"][::-1]}])) == text(ask(client))


@pytest.mark.parametrize("verify", ["flag", "guide"])
def test_a_second_look_is_at_all_pictures(client, lvlm, verify):
    answer = ask(client, CONVERSATIONS["a picture per turn"][0], {"verify": verify})
    expected = lvlm.check(PICTURES[:2], text(answer))
    found = [(each["thing"], each["image"]) for each in answer.sira["objects"]]
    assert found == [(claim.thing, claim.image) for claim in expected.objects] != []


def test_a_template_without_the_assistant_is_refused(client, lvlm, monkeypatch):
    old = lvlm.processor.chat_template
    monkeypatch.setattr(
        lvlm.processor, "chat_template", "{% set messages = messages | selectattr('role', 'eq', 'user') %}" + old
    )
    with pytest.raises(openai.BadRequestError, match="does not take the turns user, assistant, user"):
        ask(client, [*said(), *FOLLOWING])
    assert text(ask(client))
