"""`sira doctor`: sizes computed without weights, presets that fit, and what a command says before a download."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from sira_cli import load
from sira_cli.analysis.bench.run import bench
from sira_cli.analysis.doctor import examine, speed
from sira_cli.analysis.doctor.machine import Formats, extras
from sira_cli.errors import SettingsError
from sira_cli.models.loading import fitting, hub, presets, quantization
from sira_cli.models.loading.sizes import TEXT_TOKENS, ModelSize, size_of
from sira_cli.pictures import opening
from sira_cli.runs import nothing_left
from tests.support import layouts
from tools import sizes
from tools.docs import bench_report

GB = 10**9
KNOWN = sorted(name for name in presets.available() if size_of(presets.find(name)))


def check(name):
    preset = presets.find(name)
    config = layouts.released_config(preset.model)
    picture = sizes._picture(sizes.LIKE.get(name, name))
    assert sizes.size_of(preset, config, *picture) == size_of(preset)


@pytest.mark.parametrize("name", ["qwen3-vl-2b", "smolvlm2-2.2b"])
def test_the_shipped_sizes_are_those_of_the_models(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_all_shipped_sizes_are_those_of_the_models(name):
    check(name)


def test_nearly_all_presets_have_a_size():
    left_out = {name for name in presets.available() if name not in KNOWN}
    assert left_out == {"demo", "llava-onevision-7b", "molmo2-8b"}


def test_numbers_of_a_model_that_runs():
    """Weights are those in memory, and a column is that which a run's cache has for each token."""
    lvlm = load("demo")
    size = sizes.size_of(lvlm.preset, lvlm.model.config.to_dict(), 64, 64)
    assert size.weights == sum(weight.numel() for weight in lvlm.model.parameters())
    report = bench(lvlm, [], lengths=[8], batches=[1], runs=1, image_tokens=64)
    (row,) = report.rows
    assert row.cache_bytes == 4 * size.column * (row.prompt_tokens + 8 - 1)
    assert (size.k_share, size.tower > 0, size.in_layers > size.layers) == (round(7 / lvlm.layers, 3), True, True)


def test_the_computed_memory_is_that_of_a_recorded_run():
    """Of 3.75 billion random weights in bfloat16, on another machine: its process took 8.24 GB at most."""
    row = bench_report("cpu-qwen2.5-vl-3b").rows[1]
    size = replace(size_of(presets.find("qwen2.5-vl-3b")), image_tokens=row.image_tokens, patches=4 * row.image_tokens)
    assert size.needed(128, 2) == pytest.approx(row.peak_bytes, rel=0.03)
    assert size.cache_bytes(128, 2) == pytest.approx(row.cache_bytes, rel=0.05)  # its prompt has 23 words, not 40


SIZE = ModelSize(
    weights=1000,
    in_layers=800,
    layers=800,
    used=800,
    head=100,
    tower=50,
    column=10,
    state=4,
    image_tokens=60,
    patches=240,
    widest=30,
    widest_tower=2,
    vocabulary=100,
    k_share=0.5,
)


def test_time_by_hand():
    layers, tower, head = (speed.Speed("", *each) for each in ((1.0, 2.0, 0.5), (99.0, 99.0, 0.25), (99.0, 3.0, 99.0)))
    prefill = 50 * 240 * 0.25 + 800 * (60 + TEXT_TOKENS) * 0.5 + 100 * 3
    step = 400 * 1 + 400 * 2 + 100 * 3
    assert speed.picture_seconds(SIZE, 5, layers, tower, head) == prefill + 4 * step


def test_a_slow_model_is_quantized_as_little_as_it_takes():
    preset, much = presets.find("qwen2.5-vl-7b"), fitting.Memory(64 * GB, 64 * GB)

    def picked(second: float, memory: fitting.Memory = much) -> str | None:
        read = {"bfloat16": 2, "float32": 4, "int8": 1, "int4": 0.5625}
        speeds = {name: speed.Speed(name, second * each, second * each, 1e-15) for name, each in read.items()}
        return examine._fit(preset, memory, ["int8", "int4"], speeds).quantization

    assert [picked(second) for second in (1e-11, 4.6e-11, 9e-11, 9e-10)] == [None, "int8", "int4", "int4"]
    assert picked(1e-11, fitting.Memory(14 * GB, 14 * GB)) == "int8"


@pytest.fixture
def memory(monkeypatch):
    """So many bytes in this machine; what psutil says is a stand-in."""

    def are(total: int, free: int | None = None) -> None:
        found = SimpleNamespace(total=total, available=total if free is None else free)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: found)

    return are


def test_the_default_is_refused_where_it_does_not_fit(memory, monkeypatch):
    default = presets.find(presets.DEFAULT)
    takes = fitting.needed(default)
    assert takes > 16.6 * GB  # the download
    memory(32 * GB)
    fitting.check_default_fits(default, "cpu", None)
    monkeypatch.setattr(fitting, "usable_quantizations", lambda device: [])
    memory(16 * GB)
    with pytest.raises(
        SettingsError, match=r"17\.4 GB of memory, and this machine has 16\.0 GB: `preset=` qwen3\.5-4b takes"
    ):
        fitting.check_default_fits(default, "cpu", None)
    memory(4 * GB)
    with pytest.raises(SettingsError, match="`preset=` demo needs no download"):
        fitting.check_default_fits(default, "cpu", None)


def test_a_quantization_counts(memory):
    default = presets.find(presets.DEFAULT)
    memory(12 * GB)
    fitting.check_default_fits(default, "cpu", "int4")
    with pytest.raises(SettingsError, match=r"`preset=` qwen2\.5-vl-7b `quantization=` int4 takes 7\.4 GB and fits"):
        fitting.check_default_fits(default, "cpu", None)
    memory(14 * GB)
    with pytest.raises(SettingsError, match="`quantization=` int8 takes"):
        fitting.check_default_fits(default, "cpu", None)
    memory(8 * GB)
    with pytest.raises(
        SettingsError, match=r"qwen3\.5-4b `quantization=` int8 takes 5\.6 GB and fits.*add `preset=` qwen2"
    ):
        fitting.check_default_fits(default, "cpu", None)


def test_experts_are_not_quantized():
    assert fitting.needed(presets.find("qwen3.6-35b-a3b"), "4bit") is None
    assert fitting.needed(presets.find("gemma4-e2b"), "4bit") < fitting.needed(presets.find("gemma4-e2b"))


def test_only_installed_quantizations_are_advised(monkeypatch):
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda name: None)
    assert quantization.usable_quantizations("cuda:0") == []


@pytest.mark.parametrize(("options", "code"), [((), 2), (("-p", "qwen2.5-vl-7b"), 1)])
def test_caption_says_so_before_the_download(sira, photos, memory, monkeypatch, tmp_path, options, code):
    """A hub that lists the model is played: it gives config.json to be judged, and then has no weights."""
    folder = layouts.write_config("qwen2.5-vl-7b", tmp_path / "model")
    steps = []

    def find_checkpoint(model, *args, judge, **kwargs):
        steps.append("config.json")
        judge(folder)
        steps.append("weights")
        raise hub.ModelNotFoundError("the download begins")

    for module in (hub, nothing_left):  # a module that was imported only now would keep the played hub
        monkeypatch.setattr(module, "find_checkpoint", find_checkpoint)
    memory(8 * GB)
    found, out, err = sira("caption", photos["chelsea"], *options)
    assert (found, out) == (code, "")
    if options:  # chosen by the user, who may know better
        assert steps == ["config.json", "weights"]
    else:
        assert steps == ["config.json"]
        assert err.startswith("sira: the default preset qwen2.5-vl-7b takes about 17.4 GB of memory, and this machine")
        assert "add --preset qwen2.5-vl-7b; `sira doctor` shows what runs here" in err


def test_the_command_examines_this_machine(sira, monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0)
    monkeypatch.setattr(speed, "ROWS", 512)
    code, out, err = sira("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "sira.doctor/1"
    assert found["machine"]["device"] == "cpu"
    assert found["machine"]["memory"]["total"] == psutil.virtual_memory().total
    assert found["hub"] == "offline mode"
    assert found["command"] == "sira demo"  # nothing is here, and nothing can be fetched
    assert [each["name"] for each in found["speeds"]] == ["bfloat16", "float32", "int8", "int4"]
    assert {each["preset"] for each in found["fits"]} | {*found["unknown"]} == {*presets.available()} - {"demo"}
    monkeypatch.setattr("sira_cli.analysis.doctor.machine.endings", lambda: frozenset({".jpg"}))
    code, text, _ = sira("doctor")
    assert code == 0
    assert opening.HEIF in text  # with the name of the extra in its brackets
    assert text.rstrip().splitlines()[-1] == "next: sira demo"
    assert "hub            offline mode" in text


def fits(**seconds):
    """All presets fit, and take ten minutes; but for these."""
    found = {name: examine.PresetFit(name, None, GB, fits=True, seconds=600.0, downloaded=False) for name in KNOWN}
    for name, value in seconds.items():
        name = next(each for each in KNOWN if each.replace("-", "_").replace(".", "_") == name)
        found[name] = replace(found[name], seconds=value, fits=value is not None)
    return found


def test_the_next_command():
    assert examine._advised(fits(qwen2_5_vl_7b=20.0, qwen3_vl_2b=1.0), hub.REACHABLE) == "sira caption photo.jpg"
    advised = examine._advised(fits(qwen2_5_vl_7b=None, qwen3_vl_4b=50.0, qwen3_vl_2b=1.0), hub.REACHABLE)
    assert advised == "sira caption photo.jpg -p qwen3-vl-4b"
    assert examine._advised(fits(qwen3_vl_2b=99.0), hub.REACHABLE) == "sira caption photo.jpg -p qwen3-vl-2b"
    assert examine._advised(fits(), "offline mode") == "sira demo"
    here = fits() | {"qwen3.5-4b": examine.PresetFit("qwen3.5-4b", "4bit", GB, True, 9.0, downloaded=True)}
    assert examine._advised(here, "offline mode") == "sira caption photo.jpg -p qwen3.5-4b --quantization 4bit"


def test_formats_are_those_that_pictures_are_opened_with(monkeypatch):
    assert {*Formats.here().read} == {*opening.endings()}
    assert not {*Formats.here().read} & {*Formats.here().not_read}
    monkeypatch.setattr("sira_cli.analysis.doctor.machine.endings", lambda: frozenset({".jpg"}))
    assert Formats.here().not_read[".heic"] == opening.HEIF


def test_extras_name_what_is_missing(monkeypatch):
    found = extras()
    if not found:
        pytest.skip("sira-cli is not installed as a package")
    assert "dev" not in found
    assert found["parquet"] == []
    monkeypatch.setattr("sira_cli.analysis.doctor.machine._installed", lambda requirement: requirement.name != "lxml")
    assert [name for name, missing in extras().items() if missing] == ["xmp"]
    assert extras()["xmp"][0].startswith("lxml>=")
