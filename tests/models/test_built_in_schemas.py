"""The schemas that come with sira, tags for trainers, and the second look at the values of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from sira_cli import SettingsError, load, run_pictures
from sira_cli.models.schema import Schema, built_in
from tests.support.scripted import script, written

PICTURES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[:2]
FILES = {name: json.loads(path.read_text()) for name, path in built_in().items()}
EXAMPLES = {
    "tags": ["dog", "red car", "día"],
    "caption+tags": {"caption": "A dog.", "tags": ["dog"]},
    "alt+description": {"alt": "A dog.", "description": "A brown dog on grass."},
    "labels": {"labels": [{"name": "cat", "confidence": 0.99, "topicality": 1}]},
}
TAGS = '["Oak_Tree", "dog", "Dog", "red  car"]'


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=400)


def plan(monkeypatch, text):
    tokenizer, ends = load("demo").processor.tokenizer, [2]
    script(monkeypatch, lambda prompt: [*written(tokenizer, text), *ends])


@pytest.mark.parametrize("name", EXAMPLES)
def test_built_in_schemas_are_schemas_with_a_prompt(name):
    assert FILES.keys() == EXAMPLES.keys()
    Draft202012Validator.check_schema(FILES[name])
    Draft202012Validator(FILES[name]).validate(EXAMPLES[name])
    schema = Schema.of(name)
    assert schema.read(json.dumps(EXAMPLES[name], ensure_ascii=False)) == EXAMPLES[name]
    assert schema.prompt == FILES[name]["x-prompt"]
    assert schema.label.startswith(f"{name}@")


def test_the_prompt_is_the_users_the_schemas_or_the_presets(demo):
    plain = {"type": "integer", "maximum": 9, "minimum": 0}
    own = {**plain, "x-prompt": "How many?"}
    events = [*run_pictures(demo, PICTURES[0], schema=own), *run_pictures(demo, PICTURES[0], schema=own, prompt="Say.")]
    prompts = [event.record.prompt for event in events if hasattr(event, "record")]
    prompts += [demo.caption(PICTURES[0], schema=own).prompt, demo.caption(PICTURES[0], schema=plain).prompt]
    assert prompts == ["How many?", "Say.", "How many?", demo.preset.prompts.caption]
    assert demo.ask(PICTURES[0], "One?", schema=own).prompt == "One?"
    with pytest.raises(SettingsError, match="x-prompt"):
        Schema.of({**plain, "x-prompt": 3})


@pytest.mark.parametrize("name", ["tags", "caption+tags"])
def test_lists_of_tags_have_a_limit(name):
    value = ["one", "two", "three"] if name == "tags" else {"caption": "A.", "tags": ["one", "two", "three"]}
    assert Schema.of(f"{name}:3").read(json.dumps(value)) == value
    with pytest.raises(ValueError, match="does not fit"):
        Schema.of(f"{name}:2").read(json.dumps(value))
    assert Schema.of(f"{name}:2").label != Schema.of(name).label


def test_a_schema_without_tags_has_no_limit_of_tags():
    with pytest.raises(SettingsError, match="labels: has no list of tags"):
        Schema.of("labels:3")
    with pytest.raises(SettingsError, match="labels: has no list of tags"):
        Schema.of("labels", tags=True)
    with pytest.raises(SettingsError, match="list of strings"):
        Schema.of("caption+tags", tags=True)


def test_tags_are_text_files_as_trainers_expect_them(sira, tmp_path, monkeypatch):
    plan(monkeypatch, TAGS)
    for picture in PICTURES:
        Image.open(picture).save(tmp_path / picture.name)
    out = tmp_path / "out.jsonl"
    preset = tmp_path / "mine.yaml"  # the preset demo refuses lists
    preset.write_text("model: bundled\n")
    command = ["caption", tmp_path, "-p", preset, "--tags", "--prefix", "ohwx, ", "--sidecar", "-b", 2, "-o", out]
    code, _, err = sira(*command)
    assert code == 0, err
    for picture in PICTURES:
        assert (tmp_path / picture.name).with_suffix(".txt").read_text() == "ohwx, oak tree, dog, red car\n"
    for row in map(json.loads, out.open()):
        assert row["data"] == ["oak tree", "dog", "red car"]
        assert row["prompt"] == FILES["tags"]["x-prompt"]
        assert row["json_schema"].startswith("tags@")
        assert row["json_schema"].endswith(" as text")
    code, _, err = sira(*command, "--schema", "tags:5")
    assert code == 2
    assert "json_schema" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schema", "labels:3"], "--schema labels: has no list of tags"),
        (
            ["--schema", "nowhere.json"],
            "expected a file of a JSON schema, or alt+description, caption+tags, labels, tags",
        ),
        (["--tags", "--set", "max_sentences=2"], "which nothing changes: leave out --set max_sentences"),
        (["--tags"], "sira: --tags: the bundled model cannot make lists: use another preset (sira doctor)"),
    ],
)
def test_options_that_do_not_go_together_are_refused(sira, options, message):
    code, out, err = sira("caption", PICTURES[0], "-p", "demo", *options)
    assert (code, out) == (2, "")
    assert message in err


def claims(result):
    return {claim["thing"]: claim["support"] for claim in result.objects}


def mentions(result, thing):
    (spans,) = (claim["spans"] for claim in result.objects if claim["thing"] == thing)
    return [result.text[start:end] for start, end in spans]


NESTED = {
    "type": "object",
    "properties": {
        "person": {"type": "string"},  # the name of a key is no object of the picture
        "objects": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "where": {"type": "object", "properties": {"near": {"type": "string"}}},
                    "attributes": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
}
VALUE = {
    "person": 'There is a "clock" \\ cat.',
    "objects": [
        {"name": "cup", "where": {"near": "clock"}, "attributes": []},
        {"name": "sofa", "where": {"near": "wall"}, "attributes": ["red", "with a clock", "clock"]},
        {"name": "laptop"},
    ],
}


def test_every_string_of_a_value_is_looked_at(demo, monkeypatch):
    text = json.dumps(VALUE)
    plan(monkeypatch, text)
    result = demo.caption(PICTURES[0], schema=NESTED, verify="flag")
    assert (result.text, result.data) == (text, VALUE)
    said = demo.check(PICTURES[0], "There is a clock, a cat, a cup, a sofa, a wall and a laptop.")
    assert claims(result) == pytest.approx({claim.thing: claim.support for claim in said.objects}, abs=1e-4)
    assert mentions(result, "clock") == ["clock"] * 4
    assert mentions(result, "cat") == ["cat"]
    assert mentions(result, "cup") == ["cup"]  # a word that is a noun only where one is expected
    assert "person" not in claims(result)


def test_answers_are_of_a_schema_too(sira, tmp_path):
    (tmp_path / "yes.json").write_text(
        '{"type": "object", "properties": {"dog": {"type": "boolean"}}, '
        '"required": ["dog"], "additionalProperties": false}'
    )
    code, out, err = sira(
        "ask", PICTURES[0], "Is there a dog?", "-p", "demo", "--schema", tmp_path / "yes.json", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["data"] in ({"dog": True}, {"dog": False})
