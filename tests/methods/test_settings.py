"""Settings of methods: declared once, checked everywhere, given by --set and by presets."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Method
from sira_cli.methods.settings import Setting, setting
from sira_cli.models import presets

PICTURE = sorted(Path(__file__).parents[2].glob("examples/*.png"))[0]
SHIPPED = Path(__file__).parents[2] / "presets" / "demo.yaml"
SHORT = ("--preset", "demo", "--max-new-tokens", 4, "--json")
OWN = [(name, key) for name, method in METHODS.items() for key in method.own_settings()]


@pytest.fixture
def record(sira):
    """Caption one picture; return the record."""

    def caption(*options: object) -> dict:
        code, out, err = sira("caption", PICTURE, *SHORT, *options)
        assert code == 0, err
        return json.loads(out)

    return caption


@pytest.fixture
def refused(sira, monkeypatch):
    """The message of a command line that is refused before any model is loaded."""
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)

    def message(*options: object) -> str:
        code, out, err = sira("caption", PICTURE, *SHORT, *options)
        assert (code, out) == (2, "")
        return err.removeprefix("sira: ").strip()

    return message


# --- declarations


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


def test_text_becomes_a_value_of_the_declared_type():
    whole, share, word = Setting(int, "", low=0, optional=True), Setting(float, ""), Setting(str, "")
    assert [whole.parse("n", text) for text in ("7", " 7 ", "none", "None")] == [7, 7, None, None]
    assert [share.parse("n", text) for text in ("7", "1e-2")] == [7.0, 0.01]
    assert word.parse("n", " none = 1 ") == " none = 1 "
    with pytest.raises(SettingsError, match=r"--set n=7\.5: expected a whole number from 0, or none"):
        whole.parse("n", "7.5")
    with pytest.raises(SettingsError, match="--set n=none: expected a number"):
        share.parse("n", "none")


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_a_method_is_a_setting_and_its_default_passes(name):
    method = METHODS[name]
    assert [*method.own_settings()] == [field.name for field in dataclasses.fields(method)]
    assert all(declared.meaning for declared in method.all_settings().values())
    assert type(method)() == method


def too_low_and_too_high(declared: Setting) -> list[int | float | str]:
    if declared.kind is str:
        return ["middle"] if declared.choices else []
    limits = (declared.low - 1, declared.high + 1)
    return [declared.kind(limit) for limit in limits if math.isfinite(limit)]


@pytest.mark.parametrize(
    ("name", "key", "bad"),
    [(name, key, bad) for name, key in OWN for bad in too_low_and_too_high(METHODS[name].own_settings()[key])],
)
def test_a_value_out_of_range_is_refused_wherever_it_comes_from(name, key, bad, refused, tmp_path):
    with pytest.raises(SettingsError, match=f"{key} of method .*: expected "):
        METHODS[name].with_settings(**{key: bad})
    assert refused("--method", name, "--set", f"{key}={bad}").startswith(f"--set {key}={bad}: expected ")
    preset = tmp_path / "mine.yaml"
    preset.write_text(json.dumps({"model": "bundled", "methods": {name: {key: bad}}}))
    said = refused("--method", name, "--preset", preset)
    assert f"{key} of method {name}: expected " in said
    assert "mine.yaml" in said


# --- on the command line


@pytest.mark.parametrize(("method", "option"), [("sira", "k"), ("vcd", "alpha")])
def test_set_is_the_same_as_the_option(record, method, option):
    value = 3 if option == "k" else 0.75
    by_option = record("--method", method, f"--{option}", value)
    by_set = record("--method", method, "--set", f"{option}={value}")
    assert by_set | {"duration_ms": 0} == by_option | {"duration_ms": 0}
    assert by_set["key"] != record("--method", method)["key"]


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


def test_another_share_of_layers_takes_the_place_of_the_presets_k(record):
    assert record("--set", "k_fraction=0.25")["k"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "noise_step=1"], "--set noise_step=1: a setting of vcd, but the method is sira"),
        (
            ["--method", "vcd", "--set", "noise=1"],
            "--set noise=1: neither a key of presets nor a setting of methods; did you mean `",
        ),
        (["--method", "vcd", "--set", "noise_step"], "--set noise_step: expected KEY=VALUE, such as"),
        (["--method", "vcd", "--set", "sid.visible=1"], "--set sid.visible=1: a setting of sid, but the method is vcd"),
        (["--method", "vcd", "--set", "noise_step=1", "--set", "noise_step=1"], "noise_step is given twice"),
        (["--method", "vcd", "--alpha", 1, "--set", "alpha=2"], "--alpha and --set alpha: give one of them"),
        (["--method", "vcd", "--set", "k=3"], "method 'vcd' has no setting 'k'"),
        (["--set", "k=3", "--set", "k_fraction=0.5"], "give k or k_fraction, not both"),
        (["--top-p", 0.5, "--set", "generation.top_p=0.9"], "--top-p and --set generation.top_p: give one of them"),
        (["--set", "num_beams=no"], "--set generation.num_beams=no: expected a whole number from 1"),
    ],
)
def test_what_cannot_be_set_is_refused_before_a_model_is_loaded(refused, options, message):
    assert message in refused(*options)


# --- in presets


def test_a_presets_settings_are_those_of_the_command_line(record, tmp_path):
    preset = tmp_path / "demo.yaml"
    preset.write_text(SHIPPED.read_text() + "methods: {vcd: {noise_step: 700, alpha: 2}, sid: {visible: 3}}\n")
    mine = ("--preset", preset, "--method", "vcd")
    by_preset = record(*mine)
    by_set = record("--method", "vcd", "--set", "noise_step=700", "--alpha", 2)
    assert by_preset["method_settings"] == by_set["method_settings"] == {"beta": 0.1, "noise_step": 700}
    assert by_preset["key"] == by_set["key"]
    assert record(*mine, "--set", "noise_step=20")["method_settings"]["noise_step"] == 20
    assert record("--preset", preset)["key"] == record()["key"]  # another method's settings decide nothing
    sid = ("--preset", preset, "--method", "sid")
    assert record(*sid)["method_settings"]["visible"] == 3
    assert record(*sid, "--set", "visible=none")["method_settings"]["visible"] == 50


def test_none_switches_a_presets_cut_off_off(record, tmp_path):
    preset = tmp_path / "demo.yaml"
    preset.write_text(SHIPPED.read_text().replace("alpha: 0.5", "alpha: 0.5, beta: 0.1"))
    assert record("--preset", preset)["key"] != record()["key"]
    assert record("--preset", preset, "--set", "beta=none")["key"] == record()["key"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{nothing: {}}", "no method named 'nothing'"),
        ("{sira: {alpha: 1}}", "alpha of method sira belongs in `sira`"),
        ("{vcd: {noise_step: null}}", "noise_step of method vcd: expected a whole number"),
    ],
)
def test_a_bad_section_of_a_preset_is_named(refused, tmp_path, section, message):
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"model: bundled\nmethods: {section}\n")
    said = refused("--preset", preset)
    assert "mine.yaml" in said
    assert message in said


def test_beams_times_candidates_have_an_upper_bound(refused):
    """Each alone has one, too: it costs memory and time."""
    assert METHODS["opera"].with_settings(beams=32, candidates=32)
    message = "beams times candidates of method opera must be 1024 or less; got 32 x 33 = 1056"
    assert message in refused("--method", "opera", "--set", "beams=32", "--set", "candidates=33")


@pytest.mark.parametrize("name", ["self", "own", "given", "settings"])
def test_names_of_python_are_no_settings(name):
    """They come from a client of the server as keys."""
    with pytest.raises(SettingsError, match=f"has no setting '{name}'"):
        METHODS["vcd"].with_values(**{name: 1})
    with pytest.raises(SettingsError, match=f"no setting named '{name}'"):
        presets.find("demo").with_values(**{name: 1})


def test_a_setting_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class Own(Method):
        name = "own"
        size: int = setting(3, "how large", low=1)
        word: str | None = setting(None, "what it says", kind=str, optional=True)

    assert Own().with_settings(size=4, word=None) == Own(4)
    own = Own().all_settings()
    assert (own["size"].parse("size", "5"), own["word"].parse("word", "none")) == (5, None)
    with pytest.raises(SettingsError, match="size of method own: expected a whole number from 1, got 0"):
        Own(0)
