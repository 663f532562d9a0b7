"""Presets: what ships, where they are looked up, messages that name file, key and nearest name; calibrations; and what
cannot be combined: each row is refused before a model is loaded, from the command and from Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from sira_cli.analysis.trace.task import Trace
from sira_cli.core.config import SiraConfig
from sira_cli.core.image_tokens import Between, ImageTokens
from sira_cli.errors import DataError, SettingsError
from sira_cli.look.claims import Verify
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from sira_cli.models import combinations, presets
from sira_cli.models.combinations import CONFLICTS
from sira_cli.models.preset import Generation, Preset
from sira_cli.models.presets import calibrated
from sira_cli.models.schema import Schema
from sira_cli.run.task import Ask, Caption
from tests.support.shards import EXAMPLES

MEASURED = ("demo", "qwen2.5-vl-7b", "llava-1.5-7b", "llava-1.5-7b-original")
REVISION = "folder-0123456789ab"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_what_ships():
    for name in presets.available():
        preset = presets.find(name)
        assert (preset.name, preset.sira.alpha) == (name, 0.5)
        assert (preset.sira.k_fraction == 0.5) == ("rule of thumb, not measured" in preset.description)
        assert name in MEASURED or preset.sira.k_fraction == 0.5
    assert presets.find("qwen2.5-vl-7b").sira_config == SiraConfig(k=14, alpha=0.5)  # the paper's
    assert presets.find("llava-1.5-7b").sira_config == SiraConfig(k=16, alpha=0.5)


def test_what_a_preset_may_say(tmp_path):
    path = write(
        tmp_path / "mine.yaml",
        """
        model: owner/model
        sira: {k_fraction: 0.25, alpha: 1, beta: 0.1}
        image_tokens:
          from_config: true
          ids: [151655]
          tokens: ["<|image_pad|>"]
          between: {start: "<|vision_start|>", end: 5, inclusive: true}
        prompts: {ask: "Q: {question}"}
        generation: {max_new_tokens: 7, top_p: 0.9, seed: 3, no_repeat_ngram_size: 3, think: true}
        text: {prefix: "ohwx, ", max_sentences: 2}
        """,
    )
    preset = presets.find(str(path))
    rule = ImageTokens(True, (151655,), ("<|image_pad|>",), Between("<|vision_start|>", 5, True))
    assert preset.sira_config == SiraConfig(k_fraction=0.25, alpha=1.0, beta=0.1, image_tokens=rule)
    assert preset.text.given() == {"prefix": "ohwx, ", "max_sentences": 2}
    assert presets.read(write(tmp_path / "again.yaml", presets.to_yaml(preset))) == preset
    always = {"max_new_tokens": 7, "temperature": 0.0, "top_p": 0.9, "seed": 3, "num_beams": 1}
    assert preset.decisive()["generation"] == always | {"no_repeat_ngram_size": 3, "think": True}
    assert Preset(model="x").decisive()["generation"].keys() == always.keys()  # what is off is not in keys


def test_a_setting_that_is_added_is_in_keys_where_it_is_set():
    class Longer(Generation):
        added: int = 0

    class Larger(Preset):
        generation: Longer = Longer()
        added: Longer = Longer()

    assert Larger(model="x").decisive()["generation"] == Preset(model="x").decisive()["generation"]
    larger = Larger(model="x", generation=Longer(added=1), added=Longer(added=2))
    assert larger.decisive()["generation"] == Preset(model="x").decisive()["generation"] | {"added": 1}
    assert larger.decisive()["added"]["added"] == 2
    assert (Larger(model="x").later()["added"], larger.later()["added"]) == (None, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: x\nsira: {kk: 3}", r"unknown key `sira\.kk`; did you mean `k`\?"),
        ("modle: x", r"`model` is missing; unknown key `modle`; did you mean `model`\?"),
        ("model: x\nsira: {k: 0}", "`sira.k`: expected a whole number from 1, or none, got 0"),
        ("model: x\ngeneration: {temperature: -1}", r"`generation\.temperature`: expected a number from 0, got -1"),
        ("model: x\ngeneration: {no_repeat_ngram_size: 1}", r"`.*_size`: must be 0 \(off\) or at least 2, got 1"),
        ("model: x\nprompts: {ask: hi}", r"`prompts\.ask`: must contain \{question\}, got 'hi'"),
        ("model: x\nprompts: {verify: hi}", r"`prompts\.verify`: must contain \{thing\}, or \{name\} without an art"),
        ("model: x\nverify: {yes: 'Yes,'}", r"`verify\.yes`: expected words between commas, got 'Yes,'"),
        ("model: x\nmethods: {sira: {k: 3}}", "k of method sira belongs in `sira`"),
        ("model: [", r"line 1, column 9: not valid YAML"),
        ("- 1", "a preset is a mapping"),
        # a short text that stands for an endless value, or that ends Python's stack
        ("model: x\ntext: &a\n  text: *a", r"line 3, column 9: .*write the value out instead of the alias \*a$"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nmodel: x", r"line 2, column 8: .*instead of the alias \*a$"),
        ("model: " + "[" * 5000 + "]" * 5000, r"line 1, column 28: .*more than 20 values inside each other$"),
        # scalars that their types do not hold
        ("model: x\nsira: {k: " + "1" * 5000 + "}", r"line 2, column 11: .*cannot be read as int$"),
        ("model: x\ndescription: 2026-99-99", r"line 2, column 14: .*cannot be read as timestamp$"),
        ("model: !!bool abc", r"line 1, column 8: .*cannot be read as bool$"),
        ("model: !!float ''", r"line 1, column 8: .*cannot be read as float$"),
        ("model: !!timestamp x", r"line 1, column 8: .*cannot be read as timestamp$"),
        ('model: "\\ud800"', r"line 1, column 8: .*holds half of a surrogate pair$"),
        ("model: x\n2026-01-01: a", "unknown key `2026-01-01`"),
        ("model: \0", "special characters are not allowed"),
        ("model: x\nsira: {kk: 1}\ngeneration: {seed: -1}", r"sira\.kk.*generation\.seed"),  # all at once
    ],
)
def test_mistakes_are_named_with_their_file(tmp_path, text, message):
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(SettingsError, match=message) as raised:
        presets.find(str(path))
    assert str(raised.value).startswith(f"{path}:")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("levels", "message"), [(19, "expected a text"), (20, "more than 20 values")])
def test_a_preset_may_have_20_values_inside_each_other(tmp_path, levels, message):
    path = write(tmp_path / "deep.yaml", "model: " + "[" * levels + "x" + "]" * levels)
    with pytest.raises(SettingsError, match=message):
        presets.read(path)


def test_where_presets_and_their_models_are_looked_up(home, tmp_path, monkeypatch):
    assert presets.resolve("llava-1.5-7b").model == "llava-hf/llava-1.5-7b-hf"
    write(home / "presets/llava-1.5-7b.yaml", "model: mine/llava")
    write(home / "presets/other.yml", "model: mine/other")
    assert presets.find("llava-1.5-7b").model == "mine/llava"  # a user's before a shipped one
    assert presets.find("other") == Preset(name="other", model="mine/other")
    path = write(tmp_path / "sub/mine.yaml", "model: ../weights")
    assert presets.read(path).model == str(tmp_path / "weights")
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    for model in ("owner/name", "weights", str(tmp_path)):
        assert presets.resolve(model).model == model
    for name, message in (("wieghts", "no preset named 'wieghts'"), ("nowhere/x.yaml", r"preset file nowhere/x\.yaml")):
        with pytest.raises(SettingsError, match=message):
            presets.resolve(name)


@dataclass(frozen=True)
class Needy(Calibrated):
    """A method for these tests that needs a calibration."""

    name = "needy"


def calibration(path: Path, kind: str = "needy", revision: str = REVISION, value: float = 1.0) -> Path:
    origin = Origin(kind, "/models/tiny", revision, {"pictures": 3}, "0.3.0")
    Calibration(origin, {"directions": torch.full((2, 3), value)}).write(path)
    return path


def test_a_calibration_is_found_by_the_revision_and_the_users_own_first(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "SHIPPED_CALIBRATIONS", tmp_path / "shipped")
    with pytest.raises(SettingsError, match=r"needs a calibration of tiny.*`sira calibrate needy -m tiny -h`"):
        calibrated(Needy(), "tiny", REVISION)
    shipped = calibration(tmp_path / "shipped" / "needy" / "tiny@0123456789ab.safetensors", value=2.0)
    assert calibrated(Needy(), "/elsewhere/renamed", REVISION) == Needy(calibration=str(shipped))
    own = calibration(presets.calibration_path("needy", "/models/tiny", REVISION))
    assert calibrated(Needy(), "/elsewhere/renamed", REVISION) == Needy(calibration=str(own))
    again = Calibration.read(own)
    assert again.origin == Origin("needy", "/models/tiny", REVISION, {"pictures": 3}, "0.3.0")
    assert torch.equal(again.tensors["directions"], torch.ones(2, 3))


def test_that_of_another_model_or_method_and_what_is_none_are_refused(tmp_path):
    other = {"revision": "folder-ffffffffffff"}, r"made for /models/tiny \(folder-ffffffffffff\), not for tiny"
    for given, message in (other, ({"kind": "ict"}, "a calibration for ict, not for needy")):
        path = calibration(tmp_path / "other.safetensors", **given)
        with pytest.raises(SettingsError, match=message):
            calibrated(Needy(calibration=str(path)), "tiny", REVISION)
    for content in (b"no tensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"other\.safetensors"):
            Calibration.read(path)


def test_keys_follow_the_content_of_a_calibration_and_not_its_place(tmp_path):
    def key(name: str, value: float) -> str:
        method = Needy(calibration=str(calibration(tmp_path / name, value=value)))
        return Caption(presets.find("demo"), method, "").at(REVISION).key("p.jpg", "", "What?")

    assert key("a", 1.0) == key("b", 1.0) != key("c", 2.0)


# --- what cannot be combined

SCHEMA = "--schema alt+description"
OPTIONS = {  # of each feature, on the command line
    "sampling": "--temperature 1",
    "beams": "--set num_beams=2",
    "think": "--think",
    "text_changes": "--prefix x",
    **dict.fromkeys(("own_search", "no_sampling"), "--method opera"),
    **dict.fromkeys(("no_beams", "one_stream", "other_method"), "--method vcd"),
    "words": "--words",
    "choices": "--choices Yes,No",
    "verify": "--verify flag",
    "guide": "--verify guide",
    "best": "--verify best",
    "schema": SCHEMA,
    "lists": "--schema labels",
    "engine": "--engine vllm",
    "loading": "--quantization 8bit",
    "repetition": "--set repetition_penalty=1.2",
    "schema_and_think": f"--think {SCHEMA}",
    "schema_and_rule": f"--method flb {SCHEMA}",
    **dict.fromkeys(("bundled", "streams"), ""),  # the preset of all of these, and a command
}


def ask(**options) -> Ask:
    return Ask.of(presets.find("demo"), find("sira"), "What?", **options)


def trace(mode: str) -> Trace:
    return Trace(presets.find("demo"), find("sira"), verify=Verify(mode=mode))


ONLY_PYTHON = {  # no command has both: --words and --verify are of caption, --choices of ask; trace has --verify flag
    ("choices", "words"): partial(ask, choices=("Yes", "No"), words=True),
    ("choices", "verify"): partial(ask, choices=("Yes", "No"), verify="flag"),
    ("guide", "no_caption"): partial(ask, verify="guide"),
    ("best", "no_caption"): partial(ask, verify="best"),
    ("guide", "streams"): partial(trace, "guide"),
    ("best", "streams"): partial(trace, "best"),
}


# What is refused, said a second time: a row that is missing in the table, or new there, is noticed.
PAIRS = {
    "sampling": "no_sampling",
    "beams": "own_search",
    "streams": "one_stream beams",
    "words": "one_stream beams",
    "no_beams": "beams",
    "choices": "one_stream think text_changes words verify schema",
    "guide": "own_search beams words no_caption schema streams",
    "best": "no_sampling beams words no_caption streams",
    "schema": "beams words own_search text_changes",
    "engine": "beams other_method guide repetition loading schema_and_think schema_and_rule",
    "lists": "bundled",
}


def test_every_pair_of_the_table_is_expected_once():
    pairs = [(one, other) for one, others in PAIRS.items() for other in others.split()]
    assert sorted((row.one, row.other) for row in CONFLICTS) == sorted(pairs)


def test_what_only_a_schema_rules_out_is_allowed_without_one():
    """vLLM rules tokens out for a schema only: thoughts, a rule of the method, or a cut-off meet it nowhere else."""
    demo = presets.find("demo")
    for method in (find("sira"), find("flb")):
        combinations.check(demo.with_values(beta=0.1).with_settings(think=True), method, engine="vllm")


@pytest.mark.parametrize("pair", [(one, other) for one, others in PAIRS.items() for other in others.split()])
def test_a_pair_is_refused_before_a_model_is_loaded(sira, monkeypatch, pair):
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    (row,) = [row for row in CONFLICTS if (row.one, row.other) == pair]
    reason = max(re.split(r"\{\w+\}|`\w+=`", row.message), key=len)
    if pair in ONLY_PYTHON:
        with pytest.raises(SettingsError, match=re.escape(reason)):
            ONLY_PYTHON[pair]()
        return
    command = "trace" if "streams" in pair else "ask" if "choices" in pair else "caption"
    given = [EXAMPLES[0], *["Is it?"] * (command == "ask"), "-p", "demo", *OPTIONS[row.one].split()]
    code, out, err = sira(command, *given, *OPTIONS[row.other].split())
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert reason in err
    assert "`" not in err  # options are named, not parameters


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--engine vllm --set attn_implementation=eager", ["--set attn_implementation:"]),
        (f"--engine vllm --method flb {SCHEMA}", ["method flb", "--engine vllm", "--schema"]),
        (f"--engine vllm --think {SCHEMA}", ["--think", "--engine vllm", "--schema"]),
    ],
)
def test_a_refusal_names_every_option_that_could_be_left_out(sira, monkeypatch, options, named):
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    code, _, err = sira("caption", EXAMPLES[0], "-p", "demo", *options.split())
    assert code == 2
    assert [words for words in named if words not in err] == []


def test_the_bundled_model_is_known_by_its_weights(tmp_path):
    """Not by the preset's name: other presets may have it, and a user's own `demo` need not."""
    schema = Schema.of("labels")
    bundled = presets.read(write(tmp_path / "short.yaml", "model: bundled"))
    with pytest.raises(SettingsError, match="the bundled model makes no list"):
        combinations.check(bundled, find("sira"), schema=schema)
    combinations.check(presets.read(write(tmp_path / "demo.yaml", "model: a/b")), find("sira"), schema=schema)


def test_a_method_that_takes_one_picture_at_a_time_follows_a_schema():
    """Only a search of its own, as that of opera, keeps a schema out."""

    class OneByOne(Method):
        name = "one by one"
        abilities = frozenset()

    combinations.check(presets.find("demo"), OneByOne(), schema=Schema.of("alt+description"))
