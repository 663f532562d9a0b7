"""The schemas that come with sira, tags for trainers, and the second look at the values of texts."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from sira_cli import SettingsError, load, run_pictures
from sira_cli.data.records.record import Answer
from sira_cli.models.schemas.boxes import FORMS
from sira_cli.models.schemas.schema import Schema, built_in
from sira_cli.runs.events import Failed, Finished
from tests.support.scripted import script, written

PICTURES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[:2]
FILES = {name: json.loads(path.read_text()) for name, path in built_in().items()}
EXAMPLES = {
    "tags": ["dog", "red car", "día"],
    "caption+tags": {"caption": "A dog.", "tags": ["dog"]},
    "alt+description": {"alt": "A dog.", "description": "A brown dog on grass."},
    "labels": {"labels": [{"name": "cat", "confidence": 0.99, "topicality": 1}]},
    "objects": {
        "scene": "A dog on grass.",
        "objects": [{"name": "dog", "attributes": ["brown"], "box": [0, 10, 500, 1000]}],
        "background": "grass",
        "style": "photograph",
        "lighting": "daylight",
    },
}
ASKED = {
    None: (None, None),
    "xyxy-1000": ("bbox_2d", "left, top, right and bottom, from 0 to 1000"),
    "xyxy-pixels": ("bbox_2d", "left, top, right and bottom, in pixels"),
    "yxyx-1000": ("box_2d", "top, left, bottom and right, from 0 to 1000"),
}
TAGS = '["Oak_Tree", "dog", "Dog", "red  car"]'


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=400)  # near a limit lists are closed


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
    assert schema.prompt == FILES[name]["x-prompt"].replace("{alt}", "125")
    assert re.match(rf"{re.escape(name)}(:125)?@", schema.label)


def asked_for(form, box):
    """Return the text that a model writes whose boxes have this form."""
    value = EXAMPLES["objects"]
    entry = {"name": "dog", "attributes": ["brown"]} | ({} if form is None else {FORMS[form].key: box})
    return json.dumps({**value, "objects": [entry]})


@pytest.mark.parametrize("form", [None, *FORMS])
def test_boxes_are_asked_for_as_the_model_writes_them(form):
    schema, (key, words) = Schema.of("objects").with_boxes(form), ASKED[form]
    assert ("{" in schema.prompt, f"{key} ({words})" in schema.prompt, "box" in schema.prompt) == (
        False,
        *[bool(key)] * 2,
    )
    schema.try_out()
    schema.read(asked_for(form, [1, 2, 3, 4]))
    for other, (name, _) in ASKED.items():
        if name != key:
            with pytest.raises(ValueError, match="does not fit"):
                schema.read(asked_for(other, [1, 2, 3, 4]))


@pytest.mark.parametrize("form", FORMS)
def test_boxes_of_records_are_thousandths_of_the_picture(form):
    """A box drawn on a picture is written in the model's form, and is the same box in the record, to half a unit."""
    draw = random.Random(form)
    for _ in range(300):
        width, height = 28 * draw.randint(1, 100), 28 * draw.randint(1, 100)
        (left, right), (top, bottom) = (sorted(draw.random() for _ in "ab") for _ in "xy")
        written_box = {
            "xyxy-1000": [1000 * left, 1000 * top, 1000 * right, 1000 * bottom],
            "yxyx-1000": [1000 * top, 1000 * left, 1000 * bottom, 1000 * right],
            "xyxy-pixels": [width * left, height * top, width * right, height * bottom],
        }[form]
        schema = Schema.of("objects").with_boxes(form).about((width, height))
        text = asked_for(form, [round(number) for number in written_box])
        answer = schema.answer(Answer(text=text, finish_reason="stop"))
        (entry,) = answer.data["objects"]
        assert entry.keys() == {"name", "attributes", "box"}
        unit = (1, 1) if form != "xyxy-pixels" else (1000 / width, 1000 / height)
        for number, true, half in zip(entry["box"], (left, top, right, bottom), unit * 2, strict=True):
            assert abs(number - 1000 * true) <= half / 2 + 0.51
        assert json.loads(answer.text) == answer.data


def test_pixels_are_those_of_the_picture_that_the_model_sees(qwen_folder, tmp_path, monkeypatch):
    """Qwen2.5-VL resizes to multiples of 28 pixels; transformers' own function says which."""
    lvlm = load(qwen_folder, max_new_tokens=900, boxes="xyxy-pixels", max_pixels=60_000)
    sides, pictures = [(300, 200), (90, 400)], [tmp_path / "a.png", tmp_path / "b.png"]
    for size, picture in zip(sides, pictures, strict=True):
        Image.new("RGB", size, "gray").save(picture)
    sizes = [smart_resize(height, width, 28, 56 * 56, 60_000)[::-1] for width, height in sides]
    assert sizes != sides
    width, height = sizes[0]
    text = asked_for("xyxy-pixels", [width // 4, height // 2, width, 99_999])
    tokenizer = lvlm.processor.tokenizer
    script(monkeypatch, lambda prompt: [*written(tokenizer, text), tokenizer.eos_token_id])
    result = lvlm.caption(pictures[0], schema="objects")
    assert result.data["objects"][0]["box"] == [250, 500, 1000, 1000]
    found = [each.record for each in run_pictures(lvlm, pictures, schema="objects") if isinstance(each, Finished)]
    boxes = [record.data["objects"][0]["box"] for record in found]
    assert boxes == [
        [round(1000 * (width // 4) / w), round(1000 * (height // 2) / h), min(1000, round(1000 * width / w)), 1000]
        for w, h in sizes
    ]
    events = run_pictures(lvlm, pictures, schema="objects", together=True)
    (error,) = [each.record.error for each in events if isinstance(each, Failed)]
    assert "pixels of one picture, and the prompt has several" in error


def test_a_model_without_a_known_form_is_not_asked_for_boxes(monkeypatch, sira):
    plan(monkeypatch, asked_for(None, None))
    code, out, err = sira(
        "caption", PICTURES[0], "-p", "demo", "--max-new-tokens", 400, "--schema", "objects", "--json"
    )
    assert (code, json.loads(out)["data"]["objects"]) == (0, [{"name": "dog", "attributes": ["brown"]}])
    assert err.count("preset demo names no form of boxes") == 1


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"type": "array", "items": {"type": "string", "pattern": "^[a-z]{4}$"}}, 40),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 10}}}, 60),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["x,]", "y"]}}}, "required": ["a"],
          "additionalProperties": False}, 40),
    ],
)  # fmt: skip
def test_lists_are_closed_before_the_limit(demo, schema, limit):
    """Whatever the model would rather write: here, anything that is allowed but the end."""
    schema = Schema.of(schema)
    draw = random.Random(0)
    for _ in range(15):
        text, tokens = demo.following(schema, limit), []
        while len(tokens) < limit:
            bits = text.allowed()
            allowed = [token for token in range(8 * len(bits)) if bits[token // 8] >> token % 8 & 1]
            going_on = [token for token in allowed if token not in demo.ends.ids]
            if not going_on:
                break
            tokens.append(draw.choice(going_on))
            text.add(tokens[-1])
        assert len(tokens) < limit
        assert schema.accepts(demo.processor.tokenizer.decode(tokens).encode())


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
    command = ["caption", tmp_path, "-p", "demo", "--tags", "--prefix", "ohwx, ", "--sidecar", "-b", 2, "-o", out]
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
            "expected a file of a JSON schema, or alt+description, caption+tags, labels, objects, tags",
        ),
        (
            ["--tags", "--set", "max_sentences=2"],
            "which stay as they are: leave out --set max_sentences",
        ),
        (["--tags", "--set", "num_beams=2"], "--tags follows one text per picture: leave out --set num_beams"),
        (["--tags", "--method", "greedy,opera"], "--tags rules out tokens one by one, but method opera"),
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
