"""Random schemas, sensible and absurd: a text that follows one validates, or there is one clear refusal."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import torch
from jsonschema import Draft202012Validator

from sira_cli import SettingsError
from sira_cli.models.sampling import masked
from sira_cli.models.schema import Schema

SCHEMAS, TOKENS = 40, 120
WORDS = ["", "dog", "día", "日本", "🐶", 'a "quote"', "back\\slash", "line\nbreak", "\u2028", "<end>", "null", "é" * 30]
PATTERNS = ["^[a-z]{2,5}$", "b", "^(ab|cd)+$", r"^\d{3}-\d{4}$", "^[^a-z]*$", "^é?日{1,3}$", "^(?=a)", "(", "^.{0,9}$"]
ODD: list[dict[str, Any]] = [
    {"type": "strin"},
    {"not": {"type": "string"}},
    {"if": {"const": 1}, "then": False},
    {"type": "string", "minLength": 10**30},
    {"type": "string", "pattern": "^(a?){500}a{500}$"},
    {"type": "string", "format": "date"},
    {"minimum": "three"},
    {"properties": 3},
    {"enum": "dog"},
    {"type": "array", "minItems": 10**9},
    {"type": "integer", "minimum": 10**40},
    {"$ref": "https://example.com/schema.json"},
    {"description": "no limits", "x-guidance": {"whitespace_pattern": ".*", "lenient": True}},
    {"properties": {f"p{number}": {} for number in range(300)}},
]
CLOSING = '"]}'


class Maker(random.Random):
    """Makes random schemas; half of the odd ones can be followed."""

    def schema(self) -> dict[str, Any]:
        return self.part(0) | ({"$defs": {"node": self.part(1), "leaf": self.part(3)}} if self.random() < 0.7 else {})

    def some(self, **limits: Any) -> dict[str, Any]:
        return {name: value for name, value in limits.items() if self.random() < 0.4}

    def value(self) -> Any:
        plain = [None, True, self.randint(-9, 999), self.choice([0.5, -1e-3, 2.0]), *WORDS]
        return self.choice([*plain, [self.choice(plain), self.choice(plain)], {self.choice(WORDS): self.choice(plain)}])

    def part(self, depth: int) -> dict[str, Any]:
        kinds = ["string", "number", "enum", "const"] + ["object", "array", "either", "all", "$ref"] * (depth < 3)
        low, kind = self.randint(0, 4), "odd" if self.random() < 0.05 else self.choice(kinds)
        if kind == "string":
            limits = self.some(minLength=low, maxLength=low + self.randint(-1, 6), pattern=self.choice(PATTERNS))
            return {"type": "string", **limits}
        if kind == "number":
            limits = self.some(minimum=low, exclusiveMaximum=low + self.randint(-1, 500))
            return self.choice([{"type": "number"}, {"type": "integer", "multipleOf": self.randint(1, 9)}]) | limits
        if kind == "enum":
            return {"enum": [self.value() for _ in range(self.choice([0, 1, 3, 60]))]}
        if kind == "const":
            return self.choice([{"const": self.value()}, {"type": ["null", "boolean"]}, {}])
        if kind == "object":
            names = self.sample(WORDS, self.randint(0, 4))
            properties = {name: self.part(depth + 1) for name in names}
            required = self.sample([*names, "more"], self.randint(0, len(names)))
            more = self.choice([False, True, self.part(depth + 1)])
            limits = self.some(required=required, additionalProperties=more, minProperties=self.randint(0, 3))
            return {"type": "object", "properties": properties, **limits}
        if kind == "array":
            limits = self.some(minItems=low, maxItems=low + self.randint(-1, 4), prefixItems=[self.part(depth + 1)] * 2)
            return {"type": "array", "items": self.part(depth + 1), **limits}
        if kind in ("either", "all"):
            name = "allOf" if kind == "all" else self.choice(["anyOf", "oneOf"])
            return {name: [self.part(depth + 1) for _ in range(self.randint(1, 3))]}
        if kind == "$ref":
            return {"$ref": self.choice([*["#/$defs/node", "#/$defs/leaf", "#"] * 4, "#/nowhere"])}
        return self.choice(ODD)


def test_a_text_of_any_schema_validates_or_there_is_one_clear_refusal(demo):
    """Its tokens are random; those that close something are likelier."""
    pieces, refused, finished = demo.vocabulary.pieces(), [], 0
    closing = torch.tensor([piece.decode("utf-8", "replace") in CLOSING for piece in pieces]).float()
    closing[list(demo.ends.ids)] = 2
    for seed in range(SCHEMAS):
        given = Maker(seed).schema()
        try:
            schema = Schema.of(given)
        except SettingsError as error:
            refused.append(str(error))
            continue
        text, draws, tokens = demo.following(schema), torch.Generator().manual_seed(seed), list[int]()
        while len(tokens) < TOKENS and (not tokens or tokens[-1] not in demo.ends.ids):
            scores = torch.rand(1, len(pieces), generator=draws) + closing * torch.rand((), generator=draws)
            left = masked([text], scores)
            assert left.max() > -torch.inf
            tokens.append(int(left.argmax()))
            text.add(tokens[-1])
        answer = demo.answer_of(tokens, 1, 1, schema)
        if answer.error:
            assert (answer.finish_reason, answer.data) == ("length", None)
            continue
        finished += 1
        assert answer.data == json.loads(answer.text)
        with suppress(RecursionError):  # the validator goes round in a schema that is one of its own alternatives
            Draft202012Validator(given).validate(answer.data)
    assert all(message.startswith("`schema=`: ") for message in refused)
    assert all("\n" not in message and len(message) < 500 for message in refused)
    assert finished > SCHEMAS / 2
    assert len(refused) > SCHEMAS / 20
