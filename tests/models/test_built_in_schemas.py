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
from sira_cli.models.look.entries import NOTHING_LEFT
from sira_cli.models.look.second_look import SecondLook, Verify
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


def test_rewriting_drops_the_innermost_entries_without_support(demo, monkeypatch):
    plan(monkeypatch, json.dumps(VALUE))
    first = demo.caption(PICTURES[0], schema=NESTED, verify="flag")
    low = {thing for thing, support in claims(first).items() if support < demo.preset.verify.min_support}
    assert "clock" in low
    assert not low & {"laptop", "cat"}
    result = demo.caption(PICTURES[0], schema=NESTED, verify="rewrite")
    kept = [VALUE["objects"][2]]
    if "sofa" not in low and "wall" not in low:
        kept.insert(0, {**VALUE["objects"][1], "attributes": ["red"]})
    assert result.data == {**VALUE, "objects": kept}
    assert json.loads(result.text) == result.data
    assert result.draft == first.text
    assert {each["thing"] for each in result.removed} == low - {"clock"}  # the sentence names it still
    assert claims(result)["clock"] == claims(first)["clock"]
    assert mentions(result, "laptop") == ["laptop"]


def test_rewriting_drops_tags_and_leaves_the_trigger_word(demo, monkeypatch):
    plan(monkeypatch, '["laptop", "Clock", "cat"]')
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(prefix="clock, "))
    schema = Schema.of("tags", tags=True)
    flagged = lvlm.caption(PICTURES[0], schema=schema, verify="flag")
    assert flagged.text == "clock, laptop, clock, cat"
    assert [claim["spans"] for claim in flagged.objects] == [[[7, 13]], [[15, 20]], [[22, 25]]]
    result = lvlm.caption(PICTURES[0], schema=schema, verify="rewrite")
    assert (result.text, result.data) == ("clock, laptop, cat", ["laptop", "cat"])
    assert (result.draft, [each["thing"] for each in result.removed]) == (flagged.text, ["clock"])
    assert set(claims(result)) == {"laptop", "cat"}


@pytest.mark.parametrize("mode", ["flag", "rewrite"])
def test_lists_are_sorted_by_support(demo, monkeypatch, mode):
    """Supported entries, the best first, then what names no known thing, then what the picture does not support."""
    names = ["clock", "misty", "cat", "laptop"]
    plan(monkeypatch, json.dumps({"tags": names, "objects": [{"name": name} for name in names]}))
    usual = demo.caption(PICTURES[0], schema={"type": "object"}, verify="flag")
    least, supports = usual.verify["min_support"], claims(usual)
    assert {name for name in supports if supports[name] < least} == {"clock"}
    best = sorted(supports.keys() - {"clock"}, key=lambda name: -supports[name])
    expected = [*best, "misty", *(["clock"] if mode == "flag" else [])]
    result = demo.caption(PICTURES[0], schema={"type": "object"}, verify=Verify(mode=mode, sort="support"))
    assert result.data == {"tags": expected, "objects": [{"name": name} for name in expected]}
    assert json.loads(result.text) == result.data
    assert result.key != demo.caption(PICTURES[0], schema={"type": "object"}, verify=mode).key  # another text
    assert mentions(result, best[0]) == [best[0]] * 2
    assert result.verify == usual.verify | {"mode": mode, "sort": "support"} | (
        {"rounds": demo.preset.verify.rounds} if mode == "rewrite" else {}
    )


def test_guided_lists_have_what_is_supported_in_any_of_several_answers(demo, monkeypatch):
    """And nothing that is not: the best first, then what names no known thing, at most as many as the schema allows."""
    three = [["laptop", "clock", "misty"], ["cat", "clock", "laptop"], ["Cats", "sofa", "foggy"]]
    mixed = [["a cat on a clock", "clock"], ["cat", "clock"], ["clock", "clock"]]
    pairs, none = [[each[0], "clock"] for each in three], [["clock", "clock"]] * 3
    texts = iter([*three, *pairs, *mixed, *none, *([each[0]] for each in three)])
    tokenizer = load("demo").processor.tokenizer

    def planned(prompt):
        tags = next(texts)
        return [*written(tokenizer, json.dumps(tags if len(tags) <= 2 else {"tags": tags, "best": []})), 2]

    script(monkeypatch, planned)
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(**{"guide.captions": 3}))
    tags = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"tags": tags, "best": {**tags, "maxItems": 2}}}
    said = demo.check(PICTURES[0], "There is a laptop, a clock, a cat and a sofa.")
    supports = {claim.thing: claim.support for claim in said.objects}
    least = demo.preset.guide.threshold
    expected = sorted((name for name in supports if supports[name] >= least), key=lambda name: -supports[name])
    assert "clock" not in expected
    assert {"laptop", "cat"} <= {*expected}
    result = lvlm.caption(PICTURES[0], schema=schema, verify="guide")
    assert result.data == {"tags": [*expected, "misty"], "best": []}
    assert json.loads(result.draft) == {"tags": ["laptop", "clock", "misty"], "best": []}
    assert (result.added, result.forbidden) == (sorted({*expected} - {"laptop"}), sorted({*supports} - {*expected}))
    assert [claim["thing"] for claim in result.removed] == ["clock"]
    assert {one["thing"]: one["support"] for one in result.candidates} == pytest.approx(supports, abs=1e-4)
    tags["maxItems"] = 2
    assert lvlm.caption(PICTURES[0], schema=tags, verify="guide").data == expected[:2]
    assert lvlm.caption(PICTURES[0], schema=tags, verify="guide").data == ["cat"]  # the first entry has a clock too
    empty = lvlm.caption(PICTURES[0], schema=tags, verify="guide")
    assert (empty.data, empty.warnings) == (
        [],
        ["every entry names something that is not supported: nothing is left of it"],
    )
    tags["maxItems"] = 1  # of two that are supported
    assert lvlm.caption(PICTURES[0], schema=tags, verify="guide").data == expected[:1]


def test_texts_in_words_are_not_sorted(sira):
    code, _, err = sira("caption", PICTURES[0], "-p", "demo", "--verify", "flag", "--sort", "support")
    assert (code, "--sort is for lists" in err) == (2, True)
    assert sira("caption", PICTURES[0], "-p", "demo", "--tags", "--sort", "support")[0] == 2  # without a second look


@pytest.mark.parametrize(
    ("around", "left"),
    [({"prefix": "ohwx, "}, "ohwx"), ({"prefix": "ohwx, ", "suffix": ", photo"}, "ohwx, photo"), ({}, "")],
)
def test_tags_of_which_none_is_left_have_a_warning(demo, monkeypatch, around, left):
    plan(monkeypatch, '["laptop", "clock"]')
    lvlm = demo.under(demo.decoder, demo.preset.with_settings(**around))
    schema, look = Schema.of("tags", tags=True), Verify(1.0, mode="rewrite")
    result = lvlm.caption(PICTURES[0], schema=schema, verify=look)
    assert (result.status, result.text, result.data, result.objects) == ("ok", left, [], [])
    assert result.warnings == [NOTHING_LEFT]
    assert result.draft == f"{around.get('prefix', '')}laptop, clock{around.get('suffix', '')}"
    assert {each["thing"] for each in result.removed} == {"laptop", "clock"}


@pytest.mark.parametrize(
    ("more", "warnings"), [({}, [NOTHING_LEFT]), ({"count": 0}, None), ({"scene": "A laptop."}, None)]
)
def test_json_of_which_nothing_is_left_has_a_warning(demo, monkeypatch, more, warnings):
    value = {"tags": ["clock"], "seen": {"objects": [{"name": "clock"}]}, **more}
    plan(monkeypatch, json.dumps(value))
    look = Verify(1.0, mode="rewrite")
    result = demo.caption(PICTURES[0], schema={"type": "object"}, verify=look)
    assert result.data == {"tags": [], "seen": {"objects": []}, **more}
    assert json.loads(result.text) == result.data
    assert result.warnings == warnings


def test_in_other_languages_a_short_string_is_an_object(demo, monkeypatch):
    plan(monkeypatch, '{"titel": "Ein Hund und eine Katze sitzen dort.", "dinge": ["Hund", "rote Katze"]}')
    strings = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"titel": {"type": "string"}, "dinge": strings}}
    result = demo.caption(PICTURES[0], schema=schema, verify=Verify(language="de"))
    assert [claim["thing"] for claim in result.objects] == ["Hund", "rote Katze"]
    assert mentions(result, "Hund") == ["Hund"]


def test_a_server_is_not_asked_for_a_schema(sira):
    code, _, err = sira("ask", PICTURES[0], "?", "-m", "x", "--endpoint", "http://127.0.0.1:9/v1", "--schema", "tags")
    assert code == 2
    assert "--schema is for a model that is loaded here" in err


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


def test_a_run_looks_twice_as_the_library_does(demo, monkeypatch, tmp_path):
    plan(monkeypatch, '["laptop", "clock", "cat"]')
    events = run_pictures(demo, PICTURES, schema="tags", verify="rewrite", batch_size=2, output=tmp_path / "a.jsonl")
    for event in list(events)[1:]:
        expected = demo.caption(event.picture.location, schema="tags", verify="rewrite")
        assert event.record.data == expected.data
        assert event.record.draft == expected.draft
    low = demo.caption(PICTURES[0], schema={"type": "integer", "minimum": 10}, verify="flag")
    assert low.objects == []


def test_colours_are_looked_at_in_tags(demo, monkeypatch):
    plan(monkeypatch, '["orange cat", "laptop"]')
    result = demo.caption(PICTURES[0], schema="tags", verify=Verify(claims="objects,colors"))
    assert [claim["thing"] for claim in result.objects] == ["cat", "laptop"]
    (color,) = result.claims
    assert (color["thing"], color["value"]) == ("cat", "orange")
    assert result.text[slice(*color["spans"][0])] == "orange"
    image = Image.open(PICTURES[0]).convert("RGB")
    said = SecondLook(demo, Verify(claims="objects,colors")).check(image, "There is an orange cat.")
    assert color["support"] == pytest.approx(said.claims[0].support, abs=1e-4)
