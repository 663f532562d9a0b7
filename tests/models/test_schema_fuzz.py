"""Sensible and absurd schemas: a text of random tokens that follows one validates, or there is one clear refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from sira_cli import SettingsError
from sira_cli.models.sampling import masked
from sira_cli.models.schema import Schema

TOKENS = 120
WORDS = ["", "dog", "día", "日本", "🐶", 'a "quote"', "back\\slash", "line\nbreak", "\u2028", "<end>", "null", "é" * 30]
PATTERNS = ["^[a-z]{2,5}$", "b", "^(ab|cd)+$", r"^\d{3}-\d{4}$", "^[^a-z]*$", "^é?日{1,3}$", "^.{0,9}$"]
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "null"}}, "required": ["n"]}
FOLLOWED: list[dict[str, Any]] = [
    {},
    {"enum": [*WORDS, None, True, -9, 0.5, {"": [1e-3]}]},
    {"const": {"title": "b", "é": [[]]}},
    {"type": ["null", "boolean"]},
    {"type": "string", "minLength": 3, "maxLength": 6},
    {"allOf": [{"type": "string", "maxLength": 9}, {"pattern": "b"}]},
    *({"type": "string", "pattern": pattern} for pattern in PATTERNS),
    {"type": "string", "format": "date"},
    {"type": "number", "minimum": -1000, "exclusiveMaximum": -3},
    {"type": "integer", "multipleOf": 7, "minimum": 5, "maximum": 500},
    {"type": "array", "items": {"enum": WORDS}, "minItems": 1, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}] * 2, "items": False},
    {"type": "object", "properties": {word: {"const": word} for word in WORDS}, "required": WORDS[:3]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 2, "maxProperties": 3},
    {"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": False},
    {"anyOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"const": "a"}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"description": "no limits", "x-guidance": {"whitespace_pattern": ".*", "lenient": True}},
    {"properties": {f"p{number}": {} for number in range(300)}},
    {"type": "array", "minItems": 10**9},
]
REFUSED: list[dict[str, Any]] = [
    {"enum": []},
    {"type": "string", "minLength": 4, "maxLength": 3},
    {"type": "string", "pattern": "^(?=a)"},
    {"$ref": "#/nowhere"},
    {"$ref": "https://example.com/schema.json"},
    {"not": {"type": "string"}},
    {"if": {"const": 1}, "then": False},
    {"minimum": "three"},
    {"properties": 3},
    {"enum": "dog"},
    {"type": "string", "minLength": 10**30},
]


@pytest.mark.parametrize("given", FOLLOWED, ids=str)
def test_a_text_of_random_tokens_validates(demo, given):
    """Those that close something are likelier."""
    pieces, schema, tokens = demo.vocabulary.pieces(), Schema.of(given), list[int]()
    text, draws = demo.following(schema), torch.Generator().manual_seed(len(str(given)))
    closing = torch.tensor([piece.decode("utf-8", "replace") in '"]}' for piece in pieces]).float()
    closing[list(demo.ends.ids)] = 2
    while len(tokens) < TOKENS and (not tokens or tokens[-1] not in demo.ends.ids):
        scores = torch.rand(1, len(pieces), generator=draws) + closing * torch.rand((), generator=draws)
        left = masked([text], scores)
        assert left.max() > -torch.inf
        tokens.append(int(left.argmax()))
        text.add(tokens[-1])
    answer = demo.answer_of(tokens, 1, 1, schema)
    if answer.error:
        assert (answer.finish_reason, answer.data) == ("length", None)
    else:
        assert answer.data == json.loads(answer.text)
        Draft202012Validator(given).validate(answer.data)


@pytest.mark.parametrize("given", REFUSED, ids=str)
def test_one_clear_refusal(given):
    with pytest.raises(SettingsError, match="`schema=`: ") as refused:
        Schema.of(given)
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)
