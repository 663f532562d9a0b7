"""Settings of methods: declared once, checked everywhere, given by --set and by presets; some follow from the task.

At the end: `attach` says so where the checkpoint's own generation settings pick other tokens than greedy decoding.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import GenerationConfig

from sira_cli import GenerationSettingsWarning, SiraConfig, attach, load
from sira_cli.analysis.drift import measure_drift
from sira_cli.core import reference
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS, attaching
from sira_cli.methods.dola import Dola
from sira_cli.methods.settings import Setting
from sira_cli.models import presets
from sira_cli.pictures.sources import as_picture
from tests.support import tiny
from tests.support.helpers import mostly_slow
from tests.support.records import key_of

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
SHIPPED = Path(__file__).parents[2] / "presets" / "demo.yaml"
QUESTION = "Is there a dog in the image?"
SHORT = ("--preset", "demo", "--max-new-tokens", 4, "--json")


@pytest.fixture
def record(sira):
    """Caption one picture, or ask about it; return the record."""

    def decode(*options: object, ask: bool = False) -> dict:
        code, out, err = sira(*(("ask", EXAMPLES[0], QUESTION) if ask else ("caption", EXAMPLES[0])), *SHORT, *options)
        assert code == 0, err
        return json.loads(out) | {"duration_ms": 0}

    return decode


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (Setting(int, "", low=0, high=9), [0, 9], [-1, 10, 1.0, True, "1", None]),
        (Setting(int, "", low=0, optional=True), [0, None, 10**6], [-1]),
        (Setting(float, "", low=0, high=1), [0, 0.5, 1, 1.0], [-0.1, 1.1, math.nan, "0.5", None]),
        (Setting(float, "", low=0, high=1, above_low=True), [1e-9, 1], [0, 0.0]),
        (Setting(str, "", choices=("low", "high")), ["low"], ["middle", "", None, 1]),
        (Setting(str, ""), ["", "x"], [None, 1]),
    ],
)
def test_a_value_is_checked_against_the_declaration(declared, good, bad):
    for value in good:
        declared.check("it", value)
    for value in bad:
        with pytest.raises(SettingsError, match="it: expected "):
            declared.check("it", value)


# --- what is refused

NAMES = r"no method named 'nothing'; available: sira, greedy, greedy\+apc, text-only, vcd, icd"


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("dola", {"alpha": 1.0}, r"method 'dola' has no setting 'alpha' \(its settings: bucket, relative_top\)"),
        ("vcd", {"alpha": -1}, "alpha of method vcd: expected a number from 0, got -1"),
        ("dola", {"bucket": "middle"}, "bucket of method dola: expected low or high, or none, got 'middle'"),
        ("nothing", {}, NAMES),
        # Names of Python: a client of the server may send them as keys.
        *(("vcd", {name: 1}, f"no setting named '{name}'") for name in ("self", "own", "given", "settings")),
    ],
)
def test_what_a_method_has_not_is_refused_by_the_library(method, settings, message):
    with pytest.raises(SettingsError, match=message):
        load("demo", method=method, **settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set noise_step=1", "--set noise_step=1: a setting of vcd, but the method is sira"),
        ("--method vcd --set noise=1", "neither a key of presets nor a setting of methods; did you mean `"),
        ("--method vcd --set noise_step", "--set noise_step: expected KEY=VALUE, such as"),
        ("--method vcd --set noise_step=1000", "--set noise_step=1000: expected a whole number from 0 to 999"),
        ("--method vcd --set sid.visible=1", "--set sid.visible=1: a setting of sid, but the method is vcd"),
        ("--method vcd --set noise_step=1 --set noise_step=1", "noise_step is given twice"),
        ("--method vcd --alpha 1 --set alpha=2", "--alpha and --set alpha: give one of them"),
        ("--method vcd --set k=3", "method 'vcd' has no setting 'k'"),
        ("--method sira+flb --set sira.alpha=1", "the method is sira+flb: write --set alpha=VALUE"),
        ("--set k=3 --set k_fraction=0.5", "give k or k_fraction, not both"),
        ("--top-p 0.5 --set generation.top_p=0.9", "--top-p and --set generation.top_p: give one of them"),
        ("--set num_beams=no", "--set generation.num_beams=no: expected a whole number from 1"),
        (
            "--method opera --set beams=32 --set candidates=33",  # each alone is allowed
            "beams times candidates of method opera must be 1024 or less; got 32 x 33 = 1056",
        ),
        ("--preset {nothing: {}}", "no method named 'nothing'"),
        ("--preset {sira: {alpha: 1}}", "alpha of method sira belongs in `sira`"),
        ("--preset {vcd: {noise_step: null}}", "noise_step of method vcd: expected a whole number"),
    ],
)
def test_what_cannot_be_set_is_refused_before_a_model_is_loaded(sira, monkeypatch, tmp_path, options, message):
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    given, _, methods = options.partition("--preset ")
    preset = "demo"
    if methods:
        preset = tmp_path / "mine.yaml"
        preset.write_text(f"model: bundled\nmethods: {methods}\n")
    code, out, err = sira("caption", EXAMPLES[0], *SHORT, *given.split(), "--preset", preset)
    assert (code, out) == (2, "")
    assert message in err
    assert methods == "" or "mine.yaml" in err


def test_a_model_that_a_method_cannot_follow_is_refused_when_it_is_loaded(checkpoint_of):
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        load(checkpoint_of("Gemma 3"), method="sid", dtype="float32")


def test_what_needs_both_streams_refuses_other_methods_in_the_library(demo):
    lvlm, image = demo.under("text-only"), as_picture(EXAMPLES[0]).open().image
    inputs, refused = lvlm.prepare([image], [QUESTION]), pytest.raises(SettingsError, match="needs method sira or gre")
    with refused:
        lvlm.answer(inputs, words=True)
    with refused:
        lvlm.choose(inputs, ["Yes", "No"])
    with refused:
        measure_drift(lvlm, image, QUESTION)


# --- records and keys

WITH_SIRA = ("sira", "sira+flb", "sira+resdec")  # their K and alpha are the preset's


@pytest.mark.parametrize("method", mostly_slow(METHODS, "sira", "vcd", "sid", "maskcd"))
def test_caption_with_each_method(method, sira, tmp_path):
    output = tmp_path / "captions.jsonl"
    command = ("caption", *EXAMPLES[:2], "-p", "demo", "--method", method, "--max-new-tokens", 12, "-o", output)
    code, _, err = sira(*command, "-b", 2)
    assert code == 0, err
    published = {"text-only": 0.5, "vcd": 1.0, "icd": 1.0, "sid": 0.5, "maskcd": 1.0} | dict.fromkeys(WITH_SIRA, 0.5)
    alpha = published.get(method, METHODS[method].settings().get("alpha", 0.0))
    for line in output.read_text().splitlines():
        record = json.loads(line)
        assert record["status"] == "ok"
        assert record["method"] == method
        assert record["alpha"] == alpha
        assert record["k"] == (7 if method in (*WITH_SIRA, "greedy") else 0)
        assert record["text"]
    assert "2 of 2 pictures were done before" in sira(*command)[2]


@pytest.mark.parametrize("method", mostly_slow([*METHODS][2:], "vcd", "sid", "dola", "sira+flb"))
def test_a_setting_decides_the_keys_of_the_methods_that_have_it(method):
    def key(preset, **settings):
        return key_of(load(preset, method=method, **settings), "caption", "a.png", "0", "p")

    preset, own = presets.find("demo"), METHODS[method].settings()
    known, after = key(preset), method in WITH_SIRA
    assert all(key(preset, **{name: 0.7}) != known for name in ("alpha", "beta") if name in own)
    for name, value in (("beta", 0.7), ("k", 2), ("alpha", 3.0)):
        changed = preset.with_settings(**{name: value})
        assert (key(changed) != known) == after, name
    assert load(changed, method=method).alpha == (3.0 if after else own.get("alpha", 0.0))


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [("icd", "role=You see = nothing.", {"role": "You see = nothing."}), ("sid", "visible=none", {"visible": 50})],
)
def test_a_record_says_what_was_set(record, method, given, expected):
    plain, changed = record("--method", method), record("--method", method, "--set", given)
    default = METHODS[method].for_task("caption").settings()  # sid's number of tokens depends on the task
    assert plain["method_settings"].items() <= default.items()
    assert changed["method_settings"] == plain["method_settings"] | expected
    assert (changed["key"] == plain["key"]) == (expected == {key: default[key] for key in expected})


def test_a_presets_settings_are_those_of_the_command_line(record, tmp_path):
    preset = tmp_path / "demo.yaml"
    text = SHIPPED.read_text().replace("alpha: 0.5", "alpha: 0.5, beta: 0.1")
    preset.write_text(f"{text}methods: {{vcd: {{noise_step: 700, alpha: 2}}}}\n")
    mine = ("--preset", preset, "--method", "vcd")
    by_preset = record(*mine)
    by_set = record("--method", "vcd", "--set", "noise_step=700", "--alpha", 2)
    assert by_preset["method_settings"] == by_set["method_settings"] == {"beta": 0.1, "noise_step": 700}
    assert by_preset["key"] == by_set["key"]
    assert record(*mine, "--set", "noise_step=20")["method_settings"]["noise_step"] == 20
    # Other methods' settings decide nothing, and `none` switches a cut-off off; another share takes the place of K.
    assert record("--preset", preset)["key"] != record()["key"]
    assert record("--preset", preset, "--set", "beta=none")["key"] == record()["key"]
    assert record("--set", "k_fraction=0.25")["k"] == 2


# --- what follows from the task or the picture


def test_a_record_says_how_many_tokens_of_its_picture_are_visible(record):
    """The bundled model's pictures have 64: more than the authors' 50 for captions, fewer than their 100."""
    answer, caption = record("--method", "sid", ask=True), record("--method", "sid")
    assert answer["method_settings"]["visible"] == 100
    assert (answer["image_tokens"], answer["picture_settings"]) == (64, {"visible": 11})
    assert caption["method_settings"]["visible"] == 50
    assert "picture_settings" not in caption
    set_by_hand = record("--method", "sid", "--set", "visible=11", ask=True)
    assert set_by_hand["text"] == answer["text"]
    assert set_by_hand["method_settings"]["visible"] == 11


def test_one_picture_with_too_few_tokens_does_not_end_the_run(sira, qwen_folder, tmp_path):
    for name, size in (("a.png", 56), ("b.png", 28 * 8), ("c.png", 28 * 8)):
        noise = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / name)
    output, few = tmp_path / "captions.jsonl", 4  # image tokens of a.png
    command = ("caption", tmp_path, "-m", qwen_folder, "--method", "sid", "--set", f"visible={few}", "-b", 3)
    code, _, err = sira(*command, "--max-new-tokens", 3, "-o", output)
    assert code == 3
    assert f"a.png: method sid leaves {few} image tokens visible, but this picture has {few}" in err
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [record["status"] for record in records] == ["error", "ok", "ok"]
    assert f"Set visible below {few}" in records[0]["error"]


def test_records_and_keys_of_dola_hold_the_bucket_in_force(record):
    def key(task: str, **settings: str) -> str:
        return key_of(load("demo", method=Dola(**settings)), task, "a", "b", "c")

    assert key("caption") == key("caption", bucket="low") != key("caption", bucket="high")
    assert key("ask") == key("ask", bucket="high") != key("ask", bucket="low")
    answer, high = (record("--method", "dola", *more, ask=True) for more in ((), ("--set", "bucket=high")))
    assert answer == high
    assert answer["method_settings"]["bucket"] == "high"
    assert record("--method", "dola")["method_settings"]["bucket"] == "low"


# --- the checkpoint's own settings

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def case(monkeypatch):
    attaching._warn_once.cache_clear()
    return tiny.qwen("2.5")


QWEN2_5 = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.000001}  # as the hub's files have them
QWEN3 = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.0, "temperature": 0.7}
QWEN2 = {"do_sample": True, "temperature": 0.01, "top_k": 1, "top_p": 0.001}  # one token is left


@pytest.mark.parametrize(
    ("own", "named", "arguments"),
    [
        (
            QWEN2_5,
            "do_sample=True, repetition_penalty=1.05, temperature=1e-06",
            "do_sample=False, repetition_penalty=1.0",
        ),
        (QWEN3, "do_sample=True, temperature=0.7, top_k=20, top_p=0.8", "do_sample=False"),
        ({"min_length": 5}, "min_length=5", "min_length=0"),
        (QWEN2, "", ""),
        ({"eos_token_id": [1, 2], "max_length": 50}, "", ""),
    ],
)
def test_settings_that_change_greedy_decoding_are_named_once(case, own, named, arguments):
    case.model.generation_config = GenerationConfig(**own)
    if named:
        text = f"sets {named}, and `generate` obeys it. For the greedy text of the method pass {arguments}"
        with pytest.warns(GenerationSettingsWarning, match=f"{re.escape(text)}$") as caught, attach(case.model):
            pass
        assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    with warnings.catch_warnings():  # other filters, and still not again
        warnings.simplefilter("error")
        with attach(case.model):
            pass


def test_readmes_example_is_algorithm_1_whatever_the_checkpoint_brings(case):
    """The arguments are those that stand in README."""
    (call,) = re.findall(r"model\.generate\(\*\*inputs, (.*), max_new_tokens=64\)", README.read_text())
    own = {"do_sample": True, "repetition_penalty": 1.5, "temperature": 0.000001}
    case.model.generation_config = GenerationConfig(**own, pad_token_id=0)
    expected = reference.decode(case, 3, 0.5, 8).tokens

    def decode(**arguments: object) -> list[int]:
        with attach(case.model, SiraConfig(k=3, alpha=0.5)):
            torch.manual_seed(0)
            settings = {"suppress_tokens": tiny.SUPPRESS, "eos_token_id": None, "max_new_tokens": 8}
            output = case.model.generate(**case.inputs, **settings, **arguments)
        return output[0, case.inputs["input_ids"].shape[1] :].tolist()

    with pytest.warns(GenerationSettingsWarning):
        assert decode(**eval(f"dict({call})")) == expected
    assert decode() != expected
