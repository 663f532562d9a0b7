"""`sira bench`: shapes of the real sizes, the checks of a request, figures worked out by hand, the command.

No time is compared with another: how fast the machine is decides no test.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing

import pytest
import torch
import transformers as hf
import yaml

from sira_cli import methods
from sira_cli.analysis import bench as package
from sira_cli.analysis.bench import measure as measuring
from sira_cli.analysis.bench import random_models, shape_names
from sira_cli.analysis.bench.measure import BenchReport, BenchRow, Timing, measure, pictures, prompts
from sira_cli.analysis.experiment import Units
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.models import presets
from sira_cli.run.lvlm import Lvlm
from tests.support.helpers import calibrated_for, hooks

HELD_ELSEWHERE = ("gemma4-26b-a4b", "gemma4-e4b", "qwen3.5-4b", "qwen3.5-9b")  # in tests/models/test_checkpoints.py


def small(name: str) -> dict:
    """A shape with its own tokenizer, processor and family, and hardly any weights."""
    shape = random_models.read(name)
    text, vision = shape["config"]["text_config"], shape["config"]["vision_config"]
    text |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    text["rope_parameters"] |= {"mrope_section": [2, 3, 3]}
    vision |= {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 64}
    vision["fullatt_block_indexes"] = [1]
    return shape


@pytest.fixture(scope="module")
def qwen() -> Lvlm:
    """Qwen2.5-VL's code, in small, under SIRA with K = 2 of 4."""
    preset = presets.find("qwen2.5-vl-3b").with_settings(k=2, dtype="float32")
    return random_models.make_lvlm(small("qwen2.5-vl-3b"), preset, methods.find("sira"), "cpu")


@pytest.mark.parametrize("name", shape_names())
def test_a_shape_has_the_size_and_a_processor_of_the_real_model(name: str):
    shape, preset = random_models.read(name), presets.find(name)
    if name not in HELD_ELSEWHERE:
        with torch.device("meta"):
            model = hf.AutoModelForImageTextToText.from_config(hf.AutoConfig.for_model(**shape["config"]))
        size = 2 * sum(parameter.numel() for parameter in model.parameters())  # bytes in bfloat16
        assert round(size / 1e9, 1) == preset.download_gb
    layers = shape["config"]["text_config"]["num_hidden_layers"]
    assert preset.sira_config.layers_after_fork(layers) == layers // 2  # the paper's rule; 14 of 28, 16 of 32

    processor = random_models.make_processor(shape)
    text = "USER: <image>\nWhat is it? ASSISTANT:"
    if processor.chat_template is not None:
        content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
        text = processor.apply_chat_template([{"role": "user", "content": content}])
    ids = processor(images=pictures(processor, 600, 1), text=text, return_tensors="pt")["input_ids"][0]
    token = shape["config"].get("image_token_id", shape["config"].get("image_token_index"))
    expected = 576 if name.startswith("llava") else 19 * 14 if name.startswith("gemma") else 29 * 21
    assert int((ids == token).sum()) == expected


@pytest.mark.parametrize(("method", "batch"), [("sira", 1), *((method, 3) for method in METHODS)])
def test_a_request_is_what_its_method_should_do(qwen: Lvlm, method: str, batch: int):
    # With four layers and shared embeddings DoLa has no early ones to choose from.
    found = methods.find(method).with_settings(**({"bucket": "high"} if method == "dola" else {}))
    lvlm, tokens = qwen.under(calibrated_for(found, qwen.model, qwen.revision)), 4
    inputs = lvlm.prepare(pictures(lvlm.processor, 100, batch), prompts("Describe it.", batch))
    image, prompt = lvlm.lengths(inputs)
    assert image[0] == 11 * 9
    assert len({*image}) == len({a - b for a, b in zip(prompt, image, strict=True)}) == batch  # all sizes are mixed
    timing = measure(lvlm, inputs, tokens)
    assert len(timing.tokens) == tokens
    assert [0, timing.encoder, *timing.tokens] == sorted({0, timing.encoder, *timing.tokens})
    assert timing.steps == pytest.approx([timing.tokens[i + 1] - timing.tokens[i] for i in range(3)])
    assert hooks(lvlm.model) == 0

    # Rows in all caches, by hand: L = 4, K = 2, 2 key/value heads of 16 in float32, keys and values.
    width, new = inputs["input_ids"].shape[1], tokens - 1
    text = max(a - b for a, b in zip(prompt, image, strict=True))
    two = dict.fromkeys(("text-only", "m3id", "pai"), text + new) | dict.fromkeys(("vcd", "maskcd"), width + new)
    more = {name: 2 * (text + new) for name in METHODS if name.startswith("sira")}
    more |= {"sid": 2 * (max(prompt) + new), **{name: 4 * rows for name, rows in two.items()}}
    if method == "icd":
        more["icd"] = 4 * (inputs["contrast_input_ids"].shape[1] + new)
    rows = (5 if method == "opera" else 1) * 4 * (width + new) + more.get(method, 0)  # five beams
    assert timing.cache_bytes == batch * rows * 2 * 2 * 16 * 4
    assert timing.peak_bytes is None or timing.peak_bytes > timing.cache_bytes


def test_figures_by_hand():
    greedy = [Timing(1.0, (3.0, 4.0, 6.0), 100, 7), Timing(1.0, (5.0, 6.0, 7.0), 100, 9)]
    sira = [Timing(2.0, (5.0, 7.0, 9.0), 110, 8), Timing(1.0, (5.0, 6.0, 9.0), 110, None)]
    row = BenchRow.of("sira", (4, 50, 30), sira, greedy, [1, 3])
    # Prefill: 3 and 4 s beside 2 and 4 s.
    assert dataclasses.astuple(row.prefill) == ((3.5, 3.0, 4.0), (1.25, 1.0, 1.5))
    # Steps: medians 2 and 2 s beside 1.5 and 1 s.
    assert row.step is not None
    assert dataclasses.astuple(row.step.seconds) == (2.0, 2.0, 2.0)
    assert dataclasses.astuple(row.step.ratio) == pytest.approx(((2 / 1.5 + 2) / 2, 2 / 1.5, 2.0))
    assert row.tokens_per_second == 2.0  # 4 texts, a token in 2 s
    assert dataclasses.astuple(row.requests[1].seconds) == (5.0, 5.0, 5.0)
    assert dataclasses.astuple(row.requests[3].ratio) == pytest.approx(((1.5 + 9 / 7) / 2, 9 / 7, 1.5))
    assert row.cache_bytes == 110
    assert row.peak_bytes == 8
    assert row.paper == {}
    single = [Timing(1.0, (3.0,), 100, None)]
    assert BenchRow.of("greedy", (1, 50, 30), single, single, [1]).step is None


def test_methods_take_turns_and_greedy_is_always_among_them(qwen: Lvlm, monkeypatch: pytest.MonkeyPatch):
    order = []

    def recorded(lvlm: Lvlm, inputs, tokens: int, clock: object) -> Timing:
        order.append((lvlm.method, len(inputs["input_ids"]), tokens))
        return Timing(1.0, tuple(2.0 + number for number in range(tokens)), 1, None)

    monkeypatch.setattr(measuring, "measure", recorded)
    measured = measuring.bench(qwen, ["ict", "sira"], lengths=[32, 64], batches=[1, 2], runs=2, image_tokens=20)
    first, report = measured
    assert order[3:9] == [(name, 1, 64) for name in ("greedy", "ict", "sira")] * 2  # each run serves shorter lengths
    assert [each[:2] for each in order[9:]] == [(name, 2) for name in ("greedy", "ict", "sira")] * 3
    assert first.rows == report.rows[:3]
    assert report.rows[2].paper == {32: 1.4, 64: 1.5}
    assert report.k == 2
    assert report.layers == 4
    assert report.weights == "random"
    assert report.stand_ins == ("ict",)
    assert BenchReport.from_json(report.to_json()) == report


def test_a_stopped_bench_goes_on_after_its_last_round(qwen: Lvlm, monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Each request takes another time, so that a round that is measured twice, or lost, changes the report."""
    sizes = {"lengths": [2], "batches": [1, 2], "runs": 2, "image_tokens": 20}
    measured = []

    def recorded(lvlm: Lvlm, inputs, tokens: int, clock: object) -> Timing:
        if len(measured) == stop:
            raise KeyboardInterrupt
        measured.append(Timing(0.0, tuple(float(next(times)) for _ in range(tokens)), 1, None))
        return measured[-1]

    def run(path) -> BenchReport:
        units = Units[list](path, experiment="bench")
        with closing(units):
            return list(measuring.bench(qwen, ["sira"], **sizes, units=units))[-1]

    monkeypatch.setattr(measuring, "measure", recorded)
    times = iter(range(1, 1000))
    stop = 5
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "units.jsonl")
    first, measured, stop = measured[2:4], [], None  # after the warm-up; the second round was not whole
    report = run(tmp_path / "units.jsonl")
    assert len(measured) == 2 + 2 + 6  # warm-up and round 2 of the first batch size, all of the second
    rounds = [first, measured[2:4]]
    for place, row in enumerate(report.rows[:2]):
        assert row.requests[2].seconds.low == min(each[place].tokens[-1] for each in rounds)
        assert row.requests[2].seconds.high == max(each[place].tokens[-1] for each in rounds)
    measured = []
    assert run(tmp_path / "units.jsonl") == report
    assert measured == []
    sizes["image_tokens"] = 30
    with pytest.raises(SettingsError, match=r"image_tokens is 20 there and 30 now"):
        run(tmp_path / "units.jsonl")


def test_the_rounds_of_a_bench_are_removed_with_its_report(sira, tmp_path):
    command = ("bench", "-p", "demo", "--method", "sira", "--max-new-tokens", 2, "--runs", 1, "--image-tokens", 20)
    file = tmp_path / "bench.json"
    assert sira(*command, "-o", file)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    code, _, err = sira(*command, "-o", file)
    assert code == 2
    assert "bench.json: exists" in err
    (tmp_path / "bench.units.jsonl").touch()  # of a bench that was stopped
    assert sira(*command, "-o", file)[0] == 0


def test_a_shape_needs_no_checkpoint(sira, tmp_path, monkeypatch: pytest.MonkeyPatch):
    shape = small("qwen2.5-vl-3b")
    for module in (package, random_models):
        monkeypatch.setattr(module, "SHAPES", tmp_path)
    (tmp_path / "qwen2.5-vl-3b.yaml").write_text(yaml.safe_dump(shape))
    given = ["--shape", "qwen2.5-vl-3b", "--set", "k=1", "--max-new-tokens", 2, "--runs", 1, "--image-tokens", 20]
    code, out, err = sira("bench", *given, "--method", "ict", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["model"] == "qwen2.5-vl-3b"
    assert record["weights"] == "random"
    assert record["dtype"] == "bfloat16"
    assert record["k"] == 1
    assert record["layers"] == 4
    assert record["stand_ins"] == ["ict"]
