"""What cannot be combined: each row is refused before a model is loaded, from the command and from Python."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from sira_cli.errors import SettingsError
from sira_cli.look.claims import Verify
from sira_cli.methods import find
from sira_cli.models import presets
from sira_cli.models.combinations import ROWS, check
from sira_cli.models.schema import Schema
from sira_cli.run.task import TASKS

PICTURE = sorted(Path(__file__).parents[2].glob("examples/*.png"))[0]
SCHEMA = ["--schema", "alt+description"]
# Each feature: its options, the settings of a preset, and the arguments of a request.
FEATURES: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "sampling": (["--temperature", "1"], {"temperature": 1.0}, {}),
    "beams": (["--set", "num_beams=2"], {"num_beams": 2}, {}),
    "think": (["--think"], {"think": True}, {}),
    "changes": (["--prefix", "x, "], {"prefix": "x, "}, {}),
    "own_search": (["--method", "opera"], {}, {"method": "opera"}),
    "no_beams": (["--method", "vcd"], {}, {"method": "vcd"}),
    "no_rows": (["--method", "opera"], {}, {"method": "opera"}),
    "one_stream": (["--method", "vcd"], {}, {"method": "vcd"}),
    "draws_nothing": (["--method", "opera"], {}, {"method": "opera"}),
    "no_caption": ([], {}, {"task": "ask"}),
    "words": (["--words"], {}, {"words": True}),
    "choices": (["--choices", "Yes,No"], {}, {"task": "ask", "choices": ("Yes", "No")}),
    "verify": (["--verify", "flag"], {}, {"verify": Verify()}),
    "guide": (["--verify", "guide"], {}, {"verify": Verify(mode="guide")}),
    "schema": (SCHEMA, {}, {"schema": Schema.of("alt+description")}),
    "lists": (["--schema", "labels"], {}, {"schema": Schema.of("labels")}),
    "demo": ([], {}, {}),  # the preset of all of these
    "streams": ([], {}, {"streams": "sira trace"}),
    "engine": (["--engine", "vllm"], {}, {"engine": "vllm"}),
    "other_method": (["--method", "vcd"], {}, {"method": "vcd"}),
    "repetition": (["--set", "repetition_penalty=1.2"], {"repetition_penalty": 1.2}, {}),
    "loading": (["--quantization", "8bit"], {"quantization": "8bit"}, {}),
    "thoughts": (["--think", *SCHEMA], {"think": True}, {"schema": Schema.of("alt+description")}),
    "cut": (["--set", "beta=0.1", *SCHEMA], {"beta": 0.1}, {"schema": Schema.of("alt+description")}),
}
PAIRS = [(row.one, row.other) for row in ROWS]
# No command has both: --words and --verify are of caption, --choices of ask.
ONLY_PYTHON = {("choices", "words"), ("choices", "verify"), ("guide", "no_caption")}
# What else is there where a feature is: other features of the same method, for example.
OPERA = {"other_method", "own_search", "no_beams", "no_rows", "one_stream", "draws_nothing"}
WITH_SCHEMA = {"schema", "lists", "thoughts", "cut"}
IMPLIED = dict.fromkeys(("own_search", "no_rows", "draws_nothing"), OPERA)
IMPLIED |= {
    "no_beams": {"one_stream", "other_method"},
    "one_stream": {"no_beams", "other_method"},
    "other_method": {"no_beams", "one_stream"},
    "thoughts": {"think", "schema"},
    "cut": {"schema"},
    "choices": {"no_caption"},
    "guide": {"verify"},
    "lists": {"schema"},
}


def refusal(one: str, other: str, *, run: bool = False) -> str:
    """The message, if the two are refused, also by the task of a `run`; empty if not."""
    preset = presets.find("demo").with_settings(**FEATURES[one][1] | FEATURES[other][1])
    asked = FEATURES[one][2] | FEATURES[other][2]
    if run:
        method, task = find(asked.pop("method", "sira")), TASKS[asked.pop("task", "caption")]
        with pytest.raises(SettingsError) as refused:
            task.of(preset, method, "What?", **asked)
        return str(refused.value)
    if "verify" in asked:
        asked["verify"] = asked["verify"].mode
    try:
        check(preset, find(asked.pop("method", "sira")), **asked)
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in ONLY_PYTHON], ids="-".join)
def test_a_row_is_refused_from_the_command(sira, monkeypatch, pair):
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    options = FEATURES[pair[0]][0] + FEATURES[pair[1]][0]
    command = ("trace",) if "streams" in pair else ("ask",) if "choices" in pair else ("caption",)
    code, out, err = sira(*command, PICTURE, *["Is it?"] * (command == ("ask",)), "-p", "demo", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "`" not in err  # options are named, not parameters


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.one}-{row.other}")
def test_a_row_is_refused_in_python(row):
    pair = row.one, row.other
    assert refusal(*pair)
    assert "streams" in pair or refusal(*pair, run=True)


def test_pairs_that_are_not_in_the_table_are_not_refused():
    for one, other in itertools.combinations(FEATURES, 2):
        if {one, other} <= OPERA or {one, other} <= WITH_SCHEMA:
            continue
        there = {one, other, "demo"} | IMPLIED.get(one, set()) | IMPLIED.get(other, set())
        assert bool(refusal(one, other)) == any({*pair} <= there for pair in PAIRS), (one, other)
