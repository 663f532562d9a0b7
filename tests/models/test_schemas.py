"""Texts that follow a JSON schema, next to a slow check: all its texts are listed, and every token is tried."""

from __future__ import annotations

import itertools
import json
import sys

import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from sira_cli import SettingsError, UnfinishedJsonError, UnsupportedModelError, load, run_pictures
from sira_cli.methods import METHODS
from sira_cli.models import schema as schema_module
from sira_cli.models.reasoning import ReasoningParser
from sira_cli.models.schema import LONGEST, FollowingText, Schema, built_in
from sira_cli.models.vocabulary import EndTokens
from tests.support.checkpoints import ALWAYS_THINKING, write_qwen
from tests.support.helpers import under
from tests.support.scripted import script, written
from tests.support.shards import EXAMPLES

PICTURES = EXAMPLES[:3]
THINGS = ["dog", "a dog", "día"]
SMALL = {
    "type": "object",
    "properties": {"thing": {"enum": THINGS}, "seen": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1}},
    "required": ["thing", "seen"],
    "additionalProperties": False,
}
SIZES = {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 2, "maximum": 30}}
FREE = {"type": "object", "properties": SIZES, "required": [*SIZES], "additionalProperties": False}


def all_texts() -> set[str]:
    """Every text of SMALL: one space at most between any two of its parts."""
    found = set()
    for thing, seen in itertools.product(THINGS, ([], ["true"], ["false"])):
        parts = ["{", '"thing"', ":", json.dumps(thing, ensure_ascii=False), ",", '"seen"', ":", "[", *seen, "]", "}"]
        for spaces in itertools.product(["", " "], repeat=len(parts) - 1):
            found.add("".join(itertools.chain(*zip(parts, [*spaces, ""], strict=True))))
    return found


TEXTS = all_texts()
BEGINNINGS = {text[:end] for text in TEXTS for end in range(len(text) + 1)}


@pytest.fixture(scope="module")
def lvlm(demo):
    return under(demo, max_new_tokens=48)


@pytest.fixture(scope="module")
def images():
    return [Image.open(path).convert("RGB").resize((96, 96)) for path in PICTURES]


def prepared(lvlm, images):
    return lvlm.prepare(images, [lvlm.preset.prompts.caption] * len(images))


@pytest.mark.parametrize("name", ["demo", "Qwen2.5-VL", "LLaVA-1.5"])
def test_each_token_is_the_best_of_those_that_the_schema_allows(lvlm, checkpoint_of, images, name):
    """By the slow rule: each token of the vocabulary is tried. Vocabularies of bytes, and of pieces."""
    lvlm = lvlm if name == "demo" else load(checkpoint_of(name), max_new_tokens=80)
    tokenizer, steps, so_far = lvlm.processor.tokenizer, [], []
    (answer,) = lvlm.answer(
        prepared(lvlm, images[1:2]),
        schemas=[Schema.of(SMALL)],
        on_tokens=lambda new, step: steps.append((new[0], step.contrast[0])),
    )
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    ids = [token for token in range(len(tokenizer)) if token not in special]
    for picked, z_cd in steps:
        text = tokenizer.decode(so_far)
        longer = tokenizer.batch_decode([[*so_far, token] for token in ids])
        allowed = [
            token
            for token, new in zip(ids, longer, strict=True)
            if new != text and is_beginning(tokenizer, ids, [*so_far, token], new)
        ]
        allowed += lvlm.ends.ids if text in TEXTS else ()
        assert picked == max(allowed, key=lambda token: z_cd[token].item())
        so_far.append(picked)
    assert answer.text in TEXTS
    assert answer.data == json.loads(answer.text)
    assert answer.finish_reason == "stop"
    assert answer.error == ""


def is_beginning(tokenizer, ids, tokens, text: str) -> bool:
    """Whether a text begins one of TEXTS; if its last character is incomplete, some token must make it right."""
    whole = text.rstrip("�")
    if whole == text or f"{whole}í" not in BEGINNINGS:
        return text in BEGINNINGS
    return f"{whole}í" in tokenizer.batch_decode([[*tokens, token] for token in ids])


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].own_search])
def test_texts_of_every_method_follow_a_schema(lvlm, images, name):
    lvlm = under(lvlm, name)
    for answer in lvlm.answer(prepared(lvlm, images[:2]), schemas=[Schema.of(FREE)] * 2):
        Draft202012Validator(FREE).validate(answer.data)
        assert answer.data == json.loads(answer.text)


def test_a_cut_off_that_leaves_nothing_is_taken_among_the_allowed(demo, images):
    """With beta = 1 only the best of all tokens is plausible, and JSON hardly ever begins with it; n-grams alike."""
    demo = under(demo, max_new_tokens=48)
    cut = demo.under(demo.preset.method("greedy+apc").with_values(beta=1.0))
    vcd = demo.under(demo.preset.method("vcd").with_values(beta=1.0, alpha=4.0))  # the contrast has no say then
    schemas = [Schema.of(SMALL), Schema.of(FREE)]
    expected, *found = (
        lvlm.answer(prepared(lvlm, images[:2]), schemas=schemas) for lvlm in (demo.under("greedy"), cut, vcd)
    )
    assert found == [expected, expected]
    twice = {"type": "array", "items": {"const": "dog dog"}, "minItems": 4, "maxItems": 4}
    lvlm = under(demo, no_repeat_ngram_size=2, repetition_penalty=1.3)
    (answer,) = lvlm.answer(prepared(lvlm, images[:1]), schemas=[Schema.of(twice)])
    assert answer.data == ["dog dog"] * 4


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_rows_follow_schemas_of_their_own(lvlm, images, temperature):
    """Each text is that of a single picture, with the schema or without."""
    lvlm = under(lvlm, temperature=temperature)
    asked = [Schema.of(SMALL), None, Schema.of(FREE)]
    inputs, seeds = prepared(lvlm, images), lvlm.text_seeds(["a", "b", "c"], ["", "", ""])
    alone = [
        lvlm.answer(prepared(lvlm, [image]), seeds=[seed], schemas=[schema])[0]
        for image, seed, schema in zip(images, seeds, asked, strict=True)
    ]
    assert alone[1] == lvlm.answer(prepared(lvlm, images[1:2]), seeds=seeds[1:2])[0]
    assert alone[1].json_schema is alone[1].data is None
    assert lvlm.answer(inputs, seeds=seeds, schemas=asked) == alone
    for answer, schema in zip(alone, (SMALL, {}, FREE), strict=True):
        Draft202012Validator(schema).validate(answer.data)


def test_a_text_that_is_cut_off_is_an_error_of_its_picture(demo):
    short = under(demo, max_new_tokens=5)
    (result,) = [event.record for event in run_pictures(short, PICTURES[0], schema=SMALL) if hasattr(event, "record")]
    assert result.status == "error"
    assert result.text == ""
    assert result.data is None
    assert result.finish_reason == "length"
    digits = {"type": "integer", "minimum": 1000, "maximum": 9999}  # two of them are JSON, but not of the schema
    with pytest.raises(UnfinishedJsonError, match=r"cut off after 2 tokens: raise max_new_tokens$"):
        under(demo, max_new_tokens=2).caption(PICTURES[0], schema=digits)


THOUGHT = 'A "dog", {1} or [2].'
STRING = {"type": "string", "maxLength": 40}


@pytest.mark.parametrize(
    ("always", "plan", "schema", "reasoning"),
    [
        (True, f"{THOUGHT}\n</think>\n\nThe answer", SMALL, THOUGHT),  # the prompt opens the thought, which is free
        (False, "<think>No.</think>", SMALL, None),  # who is not asked to think does not begin
        (False, '"<think></think><|im_start|><|vision_end|>', STRING, None),  # what is no text is not in strings
    ],
)
def test_thoughts_are_free_and_other_markers_are_no_text(
    tmp_path, checkpoint_of, images, monkeypatch, always, plan, schema, reasoning
):
    folder = write_qwen(tmp_path / "qwen", "3", thinking=ALWAYS_THINKING) if always else checkpoint_of("Qwen3-VL")
    lvlm = load(folder, max_new_tokens=80)
    tokens = written(lvlm.processor.tokenizer, plan)
    script(monkeypatch, lambda prompt: tokens)
    (answer,) = lvlm.answer(prepared(lvlm, images[:1]), schemas=[Schema.of(schema)])
    assert answer.reasoning == reasoning
    Draft202012Validator(schema).validate(answer.data)
    assert reasoning or not {*answer.tokens} & {*tokens[1:]}


def test_a_model_whose_answer_cannot_be_told_is_refused(demo, tmp_path):
    lvlm = load(write_qwen(tmp_path / "qwen", thinking=ALWAYS_THINKING))
    with pytest.raises(SettingsError, match="not a token of this model: switch thinking off"):
        next(iter(run_pictures(lvlm, PICTURES[0], schema=SMALL)))
    with pytest.raises(UnsupportedModelError, match="ends a text"):
        FollowingText(ReasoningParser(demo.vocabulary), EndTokens((), 0), Schema.of(SMALL))


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
        ({"x-prompt": 3}, "x-prompt"),
        ("none.json", "none.json: No such file or directory: expected a file of a JSON schema, or alt+description, ca"),
        ("", "`schema=`"),
        ("labels:3", "labels: has no list of tags"),
        *((text.encode(), "odd.json: ") for text in ("", "[1]", "[" * 5000 + "]" * 5000, '{"a": NaN,}')),
        *((given, "`schema=`: ") for given in ({"enum": []}, {"$ref": "https://example.com/schema.json"})),
        # The engine would take 100 s and 2.3 GB for the first of these, and minutes for the others.
        ({"allOf": [{"type": "string", "pattern": f".*{chr(97 + n)}.{{{20 + n}}}$"} for n in range(20)]}, "it joins"),
        ({"allOf": [{"type": "integer", "multipleOf": factor} for factor in (99991, 2, 3, 5)]}, "multipleOf"),
        ({"prefixItems": [{"type": "integer", "multipleOf": factor} for factor in range(9000, 9100)]}, "multipleOf"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(given, message, tmp_path):
    if isinstance(given, bytes):
        (tmp_path / "odd.json").write_bytes(given)
        given = tmp_path / "odd.json"
    with pytest.raises(SettingsError, match=r"`schema=`") as refused:
        Schema.of(given)
    said = str(refused.value)
    assert message in said
    assert len(said) < 500
    assert "\n" not in said


def test_a_missing_engine_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    schema_module._bytes.cache_clear()
    with pytest.raises(SettingsError, match=r"pip install 'llguidance>=[\d.]+'"):
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


# --- the schemas that come with sira, tags for trainers, and the second look at values

FILES = {name: json.loads(path.read_text()) for name, path in built_in().items()}
BUILT_IN = {
    "tags": ["dog", "red car", "día"],
    "caption+tags": {"caption": "A dog.", "tags": ["dog", "cat", "car"]},
    "alt+description": {"alt": "A dog.", "description": "A brown dog on grass."},
    "labels": {"labels": [{"name": "cat", "confidence": 0.99, "topicality": 1}]},
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_schemas_are_schemas_with_a_prompt(name):
    assert FILES.keys() == BUILT_IN.keys()
    Draft202012Validator.check_schema(FILES[name])
    schema, text = Schema.of(name), json.dumps(BUILT_IN[name], ensure_ascii=False)
    assert (schema.read(text), schema.prompt) == (BUILT_IN[name], FILES[name]["x-prompt"])
    if "tags" in name:
        assert Schema.of(f"{name}:3").read(text) == BUILT_IN[name]
        assert Schema.of(f"{name}:3").label != schema.label
        with pytest.raises(ValueError, match="does not fit"):
            Schema.of(f"{name}:2").read(text)


def test_the_prompt_is_the_users_the_schemas_or_the_presets(demo):
    plain = {"type": "integer", "maximum": 9, "minimum": 0}
    own = {**plain, "x-prompt": "How many?"}
    given = {"schema": own}, {"schema": own, "prompt": "Say."}, {"schema": plain}
    prompts = [demo.caption(PICTURES[0], **each).prompt for each in given]
    assert prompts == ["How many?", "Say.", demo.preset.prompts.caption]
    assert demo.ask(PICTURES[0], "One?", schema=own).prompt == "One?"


def test_tags_are_text_files_as_trainers_expect_them(demo, sira, tmp_path, monkeypatch):
    plan = written(demo.processor.tokenizer, '["Oak_Tree", "dog", "Dog", "red  car"]')
    script(monkeypatch, lambda prompt: [*plan, *demo.ends.ids])
    for picture in PICTURES[:2]:
        Image.open(picture).save(tmp_path / picture.name)
    out, preset = tmp_path / "out.jsonl", tmp_path / "mine.yaml"  # the preset demo refuses lists
    preset.write_text("model: bundled\n")
    command = ["caption", tmp_path, "-p", preset, "--tags", "--prefix", "ohwx, ", "--sidecar", "-b", 2, "-o", out]
    code, _, err = sira(*command)
    assert code == 0, err
    for picture, row in zip(PICTURES[:2], map(json.loads, out.open()), strict=True):
        assert (tmp_path / picture.name).with_suffix(".txt").read_text() == "ohwx, oak tree, dog, red car\n"
        assert (row["data"], row["prompt"]) == (["oak tree", "dog", "red car"], FILES["tags"]["x-prompt"])
        assert (row["json_schema"][:5], row["json_schema"][-8:]) == ("tags@", " as text")
    code, _, err = sira(*command, "--schema", "tags:5")
    assert code == 2
    assert "json_schema" in err


def test_every_string_of_a_value_is_looked_at(demo, monkeypatch):
    value = {
        "person": 'There is a "clock" \\ cat.',  # the name of a key is no object of the picture
        "objects": [{"name": "cup", "attributes": []}, {"name": "sofa", "attributes": ["with a clock", "clock"]}],
    }
    text, demo = json.dumps(value), under(demo, max_new_tokens=400)
    plan = written(demo.processor.tokenizer, text)
    script(monkeypatch, lambda prompt: [*plan, *demo.ends.ids])
    result = demo.caption(PICTURES[0], schema={"type": "object"}, verify="flag")
    assert (result.text, result.data) == (text, value)
    supports = {claim["thing"]: claim["support"] for claim in result.objects}
    plain = demo.check(PICTURES[0], "There is a clock, a cat, a cup and a sofa.").objects
    assert supports == pytest.approx({claim.thing: claim.support for claim in plain}, abs=1e-4)
    spans = {claim["thing"]: [text[start:end] for start, end in claim["spans"]] for claim in result.objects}
    assert spans["clock"] == ["clock"] * 3
    assert spans["cat"] == ["cat"]
    assert spans["cup"] == ["cup"]


def test_the_confidence_of_a_label_is_its_support(demo, monkeypatch):
    """PhotoPrism's; without a second look, or for a name that is no known object, it is the model's own word."""
    labels = [{"name": name, "confidence": 0.95, "topicality": 0.5} for name in ("clock", "sofa", "wisdom")]
    text, demo = json.dumps({"labels": labels}), under(demo, max_new_tokens=400)
    plan = written(demo.processor.tokenizer, text)
    script(monkeypatch, lambda prompt: [*plan, *demo.ends.ids])
    assert demo.caption(PICTURES[0], schema={"type": "object"}).data == {"labels": labels}
    result = demo.caption(PICTURES[0], schema={"type": "object"}, verify="flag")
    support = {claim.thing: claim.support for claim in demo.check(PICTURES[0], "There is a clock and a sofa.").objects}
    assert json.loads(result.text) == result.data
    found = {label["name"]: label["confidence"] for label in result.data["labels"]}
    assert found == pytest.approx({**support, "wisdom": 0.95}, abs=0.006)
    assert support["clock"] != pytest.approx(0.95, abs=0.01)
    for claim in result.objects:
        assert [result.text[start:end] for start, end in claim["spans"]] == [claim["thing"]]
