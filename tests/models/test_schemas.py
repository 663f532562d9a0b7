"""Texts that follow a JSON schema, next to a slow check: all its texts are listed, and every token is tried."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from PIL import Image

from sira_cli import SettingsError, UnfinishedJsonError, UnsupportedModelError, load, run_pictures
from sira_cli.methods import METHODS
from sira_cli.models import schema as schema_module
from sira_cli.models.following import SchemaTokens, masked
from sira_cli.models.reasoning import ReasoningParser
from sira_cli.models.schema import LONGEST, Schema
from sira_cli.models.vocabulary import EndTokens
from tests.support.checkpoints import ALWAYS_THINKING, write_qwen
from tests.support.scripted import script, written

PICTURES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[:3]
THINGS = ["dog", "a dog", "día"]
SMALL = {
    "type": "object",
    "properties": {"thing": {"enum": THINGS}, "seen": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1}},
    "required": ["thing", "seen"],
    "additionalProperties": False,
}
LISTS = [[list(seen) for seen in itertools.product(["true", "false"], repeat=count)] for count in range(2)]
FREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 2, "maximum": 30},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}


def all_texts() -> set[str]:
    """Every text of SMALL: one space at most between any two of its parts."""
    found = set()
    for thing, seen in itertools.product(THINGS, itertools.chain(*LISTS)):
        listed = [part for number, each in enumerate(seen) for part in ([","] if number else []) + [each]]
        parts = ["{", '"thing"', ":", json.dumps(thing, ensure_ascii=False), ",", '"seen"', ":", "[", *listed, "]", "}"]
        for spaces in itertools.product(["", " "], repeat=len(parts) - 1):
            found.add("".join(itertools.chain(*zip(parts, [*spaces, ""], strict=True))))
    return found


TEXTS = all_texts()
BEGINNINGS = {text[:end] for text in TEXTS for end in range(len(text) + 1)}


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=48)


@pytest.fixture(scope="module")
def images():
    return [Image.open(path).convert("RGB").resize((96, 96)) for path in PICTURES]


def prepared(lvlm, images):
    return lvlm.prepare(images, [lvlm.preset.prompts.caption] * len(images))


def check_steps(lvlm, inputs):
    """Decode a text of SMALL, and find each of its tokens among all of the vocabulary by the slow rule."""
    tokenizer, steps = lvlm.processor.tokenizer, []
    (answer,) = lvlm.answer(
        inputs, schemas=[Schema.of(SMALL)], on_tokens=lambda new, step: steps.append((new[0], step.contrast[0]))
    )
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    ids = [token for token in range(len(tokenizer)) if token not in special]
    so_far: list[int] = []
    for picked, z_cd in steps:
        text = tokenizer.decode(so_far)
        longer = tokenizer.batch_decode([[*so_far, token] for token in ids])
        allowed = [
            token
            for token, new in zip(ids, longer, strict=True)
            if new != text and is_beginning(tokenizer, ids, [*so_far, token], new)
        ]
        if text in TEXTS:
            allowed += lvlm.ends.ids
        assert picked == max(allowed, key=lambda token: z_cd[token].item())
        so_far.append(picked)
    assert answer.text in TEXTS
    assert answer.data == json.loads(answer.text)
    assert (answer.finish_reason, answer.error) == ("stop", "")


def is_beginning(tokenizer, ids, tokens, text: str) -> bool:
    """Whether a text begins one of TEXTS; if its last character is incomplete, some token must make it right."""
    whole = text.rstrip("�")
    if whole == text or f"{whole}í" not in BEGINNINGS:
        return text in BEGINNINGS
    return f"{whole}í" in tokenizer.batch_decode([[*tokens, token] for token in ids])


@pytest.mark.parametrize("method", ["sira", "greedy"])
def test_each_token_is_the_best_of_those_that_the_schema_allows(demo, images, method):
    lvlm = demo.under(demo.preset.method(method))
    check_steps(lvlm, prepared(lvlm, images[1:2]))


@pytest.mark.parametrize("name", ["Qwen2.5-VL", "LLaVA-1.5", "LLaVA-NeXT", "Gemma 3", "Idefics3"])
def test_each_token_is_the_best_in_vocabularies_of_each_kind(checkpoint_of, images, name):
    lvlm = load(str(checkpoint_of(name)), max_new_tokens=80)
    check_steps(lvlm, prepared(lvlm, images[:1]))


def test_an_empty_schema_allows_any_json_and_an_empty_name_is_an_error(demo):
    result = demo.caption(PICTURES[0], schema={})
    assert result.data == json.loads(result.text)
    with pytest.raises(SettingsError, match="schema"):
        demo.caption(PICTURES[0], schema="")


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].own_search])
def test_texts_of_every_method_follow_a_schema(demo, images, name):
    lvlm = demo.under(demo.preset.method(name))
    for answer in lvlm.answer(prepared(lvlm, images[:2]), schemas=[Schema.of(FREE)] * 2):
        Draft202012Validator(FREE).validate(answer.data)
        assert answer.data == json.loads(answer.text)


def test_a_cut_off_that_leaves_nothing_is_taken_among_the_allowed(demo, images):
    """With beta = 1 only the best of all tokens is plausible, and JSON hardly ever begins with it."""
    greedy = demo.under(demo.preset.method("greedy"))
    cut = demo.under(demo.preset.method("greedy+apc").with_values(beta=1.0))
    vcd = demo.under(demo.preset.method("vcd").with_values(beta=1.0, alpha=4.0))  # the contrast has no say then
    schemas = [Schema.of(SMALL), Schema.of(FREE)]
    expected, *found = (lvlm.answer(prepared(lvlm, images[:2]), schemas=schemas) for lvlm in (greedy, cut, vcd))
    assert found == [expected, expected]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_rows_follow_schemas_of_their_own(demo, images, temperature):
    """Each text is that of a single picture, with the schema or without."""
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(temperature=temperature))
    asked = [Schema.of(SMALL), None, Schema.of(FREE)]
    inputs, seeds = prepared(lvlm, images), lvlm.text_seeds(["a", "b", "c"], ["", "", ""])
    alone = [
        lvlm.answer(prepared(lvlm, [image]), seeds=[seed], schemas=[schema])[0]
        for image, seed, schema in zip(images, seeds, asked, strict=True)
    ]
    assert alone[1] == lvlm.answer(prepared(lvlm, images[1:2]), seeds=seeds[1:2])[0]
    assert alone[1].json_schema is alone[1].data is None
    assert lvlm.answer(inputs, seeds=seeds, schemas=asked) == alone
    for answer, schema in zip(alone, (SMALL, None, FREE), strict=True):
        if schema is not None:
            Draft202012Validator(schema).validate(answer.data)


def test_ngrams_that_may_not_come_again_leave_what_the_schema_allows(demo, images):
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(no_repeat_ngram_size=2, repetition_penalty=1.3))
    twice = {"type": "array", "items": {"const": "dog dog"}, "minItems": 4, "maxItems": 4}
    (answer,) = lvlm.answer(prepared(lvlm, images[:1]), schemas=[Schema.of(twice)])
    assert answer.data == ["dog dog"] * 4


def test_a_text_that_is_cut_off_is_an_error_of_its_picture(demo, images, tmp_path):
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(max_new_tokens=5))
    with pytest.raises(UnfinishedJsonError, match=r"cut off after 5 tokens: raise max_new_tokens$"):
        lvlm.caption(PICTURES[0], schema=SMALL)
    (result,) = [
        event.record for event in run_pictures(lvlm, PICTURES[0], schema=SMALL) if getattr(event, "record", None)
    ]
    assert (result.status, result.text, result.data, result.finish_reason) == ("error", "", None, "length")
    short = {"type": "integer", "minimum": 1000, "maximum": 9999}
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(max_new_tokens=2))
    with pytest.raises(UnfinishedJsonError, match="cut off"):  # two digits are JSON, but not of the schema
        lvlm.caption(PICTURES[0], schema=short)


def test_a_schema_that_becomes_too_large_while_it_is_followed_says_so(demo):
    """The engine tracks all parts of the pattern at once, and gives up within a string of random tokens."""
    parts = "|".join(f".*{chr(97 + number % 26)}.{{{10 + 3 * number}}}" for number in range(200))
    schema = Schema.of({"type": "string", "pattern": f"^({parts})$"})
    text, draws, tokens = demo.following(schema), torch.Generator().manual_seed(0), []
    while not tokens or tokens[-1] not in demo.ends.ids:
        left = masked([text], torch.rand(1, len(demo.vocabulary.pieces()), generator=draws))
        tokens.append(int(left.argmax()))
        text.add(tokens[-1])
    answer = demo.answer_of(tokens, 1, 1, schema)
    assert (answer.finish_reason, answer.text, answer.data) == ("stop", "", None)
    assert answer.error.startswith(
        f"the JSON broke off after {answer.output_tokens} tokens, as there the schema became"
    )


def test_thoughts_are_free_and_the_answer_follows(tmp_path, images, monkeypatch):
    """The prompt opens the thought, which holds JSON, quotes and an end of its own."""
    lvlm = load(str(write_qwen(tmp_path / "qwen", "3", thinking=ALWAYS_THINKING)), max_new_tokens=80)
    thought = 'A "dog", {1} or [2].'
    plan = written(lvlm.processor.tokenizer, f"{thought}\n</think>\n\nThe answer")
    script(monkeypatch, lambda prompt: plan)
    (answer,) = lvlm.answer(prepared(lvlm, images[:1]), schemas=[Schema.of(SMALL)])
    assert answer.reasoning == thought
    assert answer.text in TEXTS


def test_a_model_that_is_not_asked_to_think_does_not_begin(checkpoint_of, images, monkeypatch):
    lvlm = load(checkpoint_of("Qwen3-VL"), max_new_tokens=80)
    plan = written(lvlm.processor.tokenizer, "<think>No.</think>")
    script(monkeypatch, lambda prompt: plan)
    (answer,) = lvlm.answer(prepared(lvlm, images[:1]), schemas=[Schema.of(SMALL)])
    assert answer.text in TEXTS
    assert not answer.reasoning


def test_tokens_that_are_no_text_are_not_in_strings(checkpoint_of, images, monkeypatch):
    lvlm = load(checkpoint_of("Qwen3-VL"), max_new_tokens=80)
    odd = written(lvlm.processor.tokenizer, "<think></think><|im_start|><|vision_end|>")
    assert len(odd) == 4
    script(monkeypatch, lambda prompt: [*written(lvlm.processor.tokenizer, '"'), *odd])
    (answer,) = lvlm.answer(prepared(lvlm, images[:1]), schemas=[Schema.of({"type": "string", "maxLength": 40})])
    assert len(answer.data) <= 40
    assert not {*answer.tokens} & {*odd}


def test_thoughts_without_a_token_at_their_end_are_refused(tmp_path):
    lvlm = load(str(write_qwen(tmp_path / "qwen", thinking=ALWAYS_THINKING)))
    with pytest.raises(SettingsError, match="not a token of this model: switch thinking off"):
        next(iter(run_pictures(lvlm, PICTURES[0], schema=SMALL)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ({"$ref": "#"}, "no value fits a part of it"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "string", "pattern": "^(([a-z]{1,50}){1,50}){1,50}$"}, "too many"),
        ({"enum": ["x" * LONGEST]}, "characters"),
        ("nowhere.json", "`schema=` nowhere.json: No such file"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(given, message):
    with pytest.raises(SettingsError, match=r"`schema=`") as refused:
        Schema.of(given)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string", "pattern": f".*{chr(97 + n)}.{{{20 + n}}}$"} for n in range(20)]},
        {"allOf": [{"type": "integer", "multipleOf": factor} for factor in (99991, 2, 3, 5)]},
        {"type": "integer", "multipleOf": 9973 * 9967},
        {"type": "array", "prefixItems": [{"type": "integer", "multipleOf": factor} for factor in range(9000, 9100)]},
    ],
    ids=["patterns", "factors", "a large number", "many numbers"],
)
def test_a_schema_that_would_take_minutes_or_gigabytes_is_refused_at_once(schema):
    """The engine takes 100 s and 2.3 GB for the first, and minutes for the others."""
    started = time.perf_counter()
    with pytest.raises(SettingsError, match=r"cannot be followed: it(s values of multipleOf| joins)"):
        Schema.of(schema)
    assert time.perf_counter() - started < 5
    properties = {f"m{step}": {"type": "number", "multipleOf": step} for step in (0.01, 0.25, 5, 10, 60, 1000)}
    assert Schema.of({"type": "object", "properties": properties})  # usual multiples are followed


def test_words_about_a_schema_are_no_part_of_it(monkeypatch):
    """Yet a key of such a name is, and so is a value that looks like a schema."""
    plain = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "of": {"anyOf": [{"$ref": "#/$defs/a"}, {"const": {"title": "b"}}]},
        },
        "required": ["title", "of"],
        "$defs": {"a": {"type": "array", "items": {"enum": ["description"]}}},
    }

    def noted(value):
        """Words at each schema inside, as the table of JSON Schema's keywords has them."""
        value = {**value, "title": "A", "description": "B", "$comment": f"C {id(value)}"}
        for key in ("properties", "$defs"):
            if key in value:
                value[key] = {name: noted(each) for name, each in value[key].items()}
        if "anyOf" in value:
            value["anyOf"] = [noted(each) for each in value["anyOf"]]
        if "items" in value:
            value["items"] = noted(value["items"])
        return value

    Schema.of(plain)
    monkeypatch.setattr(subprocess, "run", lambda *given, **more: pytest.fail("it is tried again"))
    schema = Schema.of(noted(plain))
    monkeypatch.undo()
    assert (schema.grammar, schema == Schema.of(plain)) == (Schema.of(plain).grammar, False)
    text = '{"title": "x", "of": {"title": "b"}}'
    assert schema.read(text) == json.loads(text)
    for wrong in (text.replace('"b"', '"c"'), text.replace('"x"', "1"), '{"of": []}'):
        with pytest.raises(ValueError, match="does not fit"):
            schema.read(wrong)


@pytest.mark.parametrize("text", ["", "[1]", "[" * 5000 + "]" * 5000, "{", '{"a": NaN,}', "null"])
def test_a_file_that_holds_no_schema_is_refused(tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(SettingsError, match=r"`schema=` .*odd\.json: "):
        Schema.of(tmp_path / "odd.json")


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    schema_module._bytes.cache_clear()
    with pytest.raises(SettingsError, match=r"pip install .*\[json\]'"):
        Schema.of(SMALL)


@pytest.mark.parametrize("version", ["0.7.30", "1.7.6", "1.8.0"])
def test_an_older_engine_is_refused_by_name(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    schema_module._bytes.cache_clear()
    with pytest.raises(SettingsError, match=f"from 1.9 on .* and {version} is installed"):
        Schema.of(SMALL)


@pytest.mark.parametrize(
    ("given", "text", "message"),
    [
        ({"type": "number"}, "1e999", "Out of range"),
        ({"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}, '{"a":1,"a":2}', "fit"),
        ({"type": "number", "exclusiveMaximum": 0.1}, "0.09999999999999999999999999", "fit"),
        ({"type": "array"}, "[" * 200 + "]" * 200, "100 values inside"),
        ({"type": "array"}, "[" * 9000 + "]" * 9000, "100 values inside"),
    ],
)
def test_a_value_that_is_another_one_when_read_is_refused(given, text, message):
    with pytest.raises(ValueError, match=message):
        Schema.of(given).read(text)


def test_records_name_the_schema_and_hold_the_value(demo, tmp_path):
    (tmp_path / "small.json").write_text(json.dumps(SMALL), encoding="utf-8-sig")  # with a byte order mark
    output, plain = tmp_path / "out.jsonl", tmp_path / "plain.jsonl"
    kinds = []
    for _ in range(2):
        events = run_pictures(demo, PICTURES[:2], schema=tmp_path / "small.json", output=output, batch_size=2)
        kinds.append([type(event).__name__ for event in events])
    assert kinds == [["Started", "Finished", "Finished"], ["Started", "Skipped", "Skipped"]]
    records = [json.loads(line) for line in output.read_text().splitlines()]
    for record in records:
        Draft202012Validator(SMALL).validate(record["data"])
        assert record["json_schema"] == Schema.of(tmp_path / "small.json").label
        assert list(record)[-1] == "data"
    assert records[0]["json_schema"].startswith("small@")
    list(run_pictures(demo, PICTURES[:2], output=plain))
    keys = [json.loads(line)["key"] for line in plain.read_text().splitlines()]
    assert {record["key"] for record in records}.isdisjoint(keys)
    for schema in (FREE, None):
        with pytest.raises(SettingsError, match="json_schema"):
            list(run_pictures(demo, PICTURES[:2], schema=schema, output=output))


def test_a_model_without_an_end_token_is_refused(demo):
    with pytest.raises(UnsupportedModelError, match="ends a text"):
        SchemaTokens(ReasoningParser(demo.vocabulary), EndTokens((), 0))


def test_a_streamed_text_is_the_whole_text(demo):
    pieces: list[str] = []
    result = demo.ask(PICTURES[0], "What is there?", schema=SMALL, on_text=pieces.append)
    assert "".join(pieces) == result.text
    assert len(pieces) > 3


def test_a_schema_changes_no_random_state(demo):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    demo.caption(PICTURES[0], schema=SMALL)
    assert torch.equal(torch.rand(1), expected)
