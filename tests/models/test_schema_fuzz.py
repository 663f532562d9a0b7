"""Random schemas, sensible and absurd: a text that follows one validates, or there is one clear refusal."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from PIL import Image

from sira_cli import SettingsError, load
from sira_cli.models.following import masked
from sira_cli.models.schema import Schema
from sira_cli.models.texts import Answer

SCHEMAS, TOKENS = 40, 120
WORDS = [
    "",
    "dog",
    "día",
    "日本",
    "🐶",
    'a "quote"',
    "back\\slash",
    "line\nbreak",
    "\u2028",
    "<end>",
    "{",
    "null",
    "é" * 30,
]
PATTERNS = ["^[a-z]{2,5}$", "b", "^(ab|cd)+$", r"^\d{3}-\d{4}$", "^[^a-z]*$", "^é?日{1,3}$", "^(?=a)", "(", "^.{0,9}$"]
CLOSING = '"]}'


class Maker:
    """Makes random schemas; half of the odd ones can be followed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def schema(self) -> dict[str, Any]:
        whole = self.part(0)
        if self.random.random() < 0.7:
            whole["$defs"] = {"node": self.part(1), "leaf": self.part(3)}
        return whole

    def part(self, depth: int) -> dict[str, Any]:
        kinds = ["string", "number", "enum", "constant"]
        kinds += ["object", "array", "either", "all", "reference"] * (depth < 3) + ["odd"] * (
            self.random.random() < 0.1
        )
        return getattr(self, f"make_{self.random.choice(kinds)}")(depth)

    def some(self, **limits: Any) -> dict[str, Any]:
        """Some of these limits."""
        return {name: value for name, value in limits.items() if self.random.random() < 0.4}

    def value(self, depth: int = 0) -> Any:
        pick = self.random.randrange(7 if depth < 2 else 5)
        if pick == 5:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        if pick == 6:
            return {self.random.choice(WORDS): self.value(depth + 1) for _ in range(self.random.randrange(3))}
        return [None, True, self.random.randint(-9, 999), self.random.choice([0.5, -1e-3, 2.0]), *WORDS][
            self.random.randrange(4 + len(WORDS))
        ]

    def make_string(self, depth: int) -> dict[str, Any]:
        low = self.random.randint(0, 4)
        made = {"type": "string"} | self.some(minLength=low, maxLength=low + self.random.randint(-1, 6))
        return made | (self.some(pattern=self.random.choice(PATTERNS)))

    def make_number(self, depth: int) -> dict[str, Any]:
        low = self.random.randint(-1000, 1000)
        made = {"type": self.random.choice(["number", "integer"])}
        made |= self.some(minimum=low, exclusiveMaximum=low + self.random.randint(-1, 500))
        return made | (self.some(multipleOf=self.random.randint(1, 9)) if made["type"] == "integer" else {})

    def make_enum(self, depth: int) -> dict[str, Any]:
        return {"enum": [self.value() for _ in range(self.random.choice([0, 1, 3, 60]))]}

    def make_constant(self, depth: int) -> dict[str, Any]:
        return self.random.choice([{"const": self.value()}, {"type": ["null", "boolean"]}, {}])

    def make_object(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(WORDS, self.random.randint(0, 4))
        made: dict[str, Any] = {"type": "object", "properties": {name: self.part(depth + 1) for name in names}}
        made |= self.some(required=self.random.sample([*names, "more"], self.random.randint(0, len(names))))
        made |= self.some(additionalProperties=self.random.choice([False, True, self.part(depth + 1)]))
        return made | self.some(minProperties=self.random.randint(0, 3), patternProperties={"^x": self.part(depth + 1)})

    def make_array(self, depth: int) -> dict[str, Any]:
        low = self.random.randint(0, 3)
        made = {"type": "array", "items": self.part(depth + 1)}
        made |= self.some(minItems=low, maxItems=low + self.random.randint(-1, 4))
        return made | self.some(prefixItems=[self.part(depth + 1) for _ in range(2)])

    def make_either(self, depth: int) -> dict[str, Any]:
        return {
            self.random.choice(["anyOf", "oneOf"]): [self.part(depth + 1) for _ in range(self.random.randint(1, 3))]
        }

    def make_all(self, depth: int) -> dict[str, Any]:
        return {"allOf": [self.part(depth + 1) for _ in range(2)]}

    def make_reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": self.random.choice([*["#/$defs/node", "#/$defs/leaf", "#"] * 4, "#/nowhere"])}

    def make_odd(self, depth: int) -> dict[str, Any]:
        return self.random.choice(
            [
                {"type": "strin"},
                {"not": {"type": "string"}},
                {"if": {"const": 1}, "then": False},
                {"type": "array", "uniqueItems": True},
                {"type": "string", "minLength": 10**30},
                {"type": "string", "maxLength": 10**6},
                {"type": "string", "pattern": "^(a?){500}a{500}$"},
                {"type": "string", "pattern": "^(([a-z]{1,50}){1,50}){1,50}$"},
                {"type": "string", "format": "nothing"},
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
        )


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=TOKENS)


def written(lvlm, schema: Schema, seed: int) -> Answer:
    """A text of random tokens that follows a schema; tokens that close something are likelier."""
    text, draws = lvlm.following(schema), torch.Generator().manual_seed(seed)
    pieces = lvlm.vocabulary.pieces()
    closing = torch.tensor([piece.decode("utf-8", "replace") in CLOSING for piece in pieces]).float()
    closing[list(lvlm.ends.ids)] = 2
    tokens: list[int] = []
    while len(tokens) < TOKENS and (not tokens or tokens[-1] not in lvlm.ends.ids):
        scores = torch.rand(1, len(pieces), generator=draws) + closing * torch.rand((), generator=draws)
        left = masked([text], scores)
        assert left.max() > -torch.inf
        tokens.append(int(left.argmax()))
        text.add(tokens[-1])
    return lvlm.answer_of(tokens, 1, 1, schema)


def check(schema: dict[str, Any], answer: Answer) -> None:
    assert answer.data == json.loads(answer.text)
    with suppress(RecursionError):  # the validator goes round in a schema that is one of its own alternatives
        Draft202012Validator(schema).validate(answer.data)


def possible(given: dict[str, Any]) -> Schema | None:
    try:
        return Schema.of(given)
    except SettingsError:
        return None


def test_a_text_of_any_schema_validates_or_there_is_one_clear_refusal(demo):
    refused, finished = [], 0
    for seed in range(SCHEMAS):
        given = Maker(seed).schema()
        try:
            schema = Schema.of(given)
        except SettingsError as error:
            refused.append(str(error))
            continue
        answer = written(demo, schema, seed)
        if answer.error:
            assert (answer.finish_reason, answer.data) == ("length", None)
            continue
        finished += 1
        check(given, answer)
    assert all(message.startswith("`schema=`: ") for message in refused)
    assert all("\n" not in message and len(message) < 500 for message in refused)
    assert finished > SCHEMAS / 2
    assert len(refused) > SCHEMAS / 20


@pytest.mark.parametrize("method", ["sira", "vcd"])
def test_a_batch_of_random_schemas_is_followed_row_by_row(demo, method):
    """The model's own texts; what it does not finish is cut off, and nothing else goes wrong."""
    lvlm = demo.under(demo.preset.method(method))
    schemas = [schema for seed in range(20) if (schema := possible(Maker(seed).schema())) is not None][:8]
    image = Image.new("RGB", (64, 64), "green")
    inputs = lvlm.prepare([image] * len(schemas), [lvlm.preset.prompts.caption] * len(schemas))
    answers = lvlm.answer(inputs, schemas=schemas)
    for answer, schema in zip(answers, schemas, strict=True):
        if answer.error:
            assert answer.finish_reason == "length"
        else:
            check(json.loads(schema.content), answer)
    assert sum(not answer.error for answer in answers) >= 4
