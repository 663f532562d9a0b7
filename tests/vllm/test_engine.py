"""`--engine vllm` against the engine in process: the same records."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from transformers import GenerationConfig

from sira_cli.errors import SettingsError
from sira_cli.vllm.engine import Texts, VllmLvlm
from tests.vllm.conftest import ROOT

LISTED = importlib.metadata.version("llguidance").split(".")[:2] >= ["1", "9"]
SCHEMA = {
    "type": "object",
    "properties": {"seen": {"type": "boolean"}, "name": {"enum": ["dog", "cat"]}},
    "required": ["seen", "name"],
    "additionalProperties": False,
}
RUNS = {
    "captions": {},
    "greedy": {"method": "greedy", "prompt": "Describe the room."},
    "another alpha": {"settings": {"alpha": 1.5, "max_new_tokens": 40}},
    "sampled": {"settings": {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 7}},
    "sampled greedy": {"method": "greedy", "settings": {"temperature": 1.0, "min_p": 0.01, "seed": 3}},  # 0: a tie
    "flb": {"method": "flb"},
    "resdec after sira": {"method": "sira+resdec"},
    "sampled flb after sira": {"method": "sira+flb", "settings": {"temperature": 0.9, "seed": 5}},
    "words": {"words": True},
    "words of greedy": {"words": True, "method": "greedy"},
    "words, drawn, another alpha": {
        "words": True,
        "settings": {"temperature": 0.9, "seed": 11, "alpha": 1.5, "prefix": "A photo: "},
    },
    "flagged, with words": {"words": True, "verify": "flag"},
    "text settings": {"settings": {"prefix": "A photo: ", "max_sentences": 1}},
    "an answer": {"task": "ask", "prompt": "Is there a dog in the image?"},
    "choices": {"task": "ask", "prompt": "Is there a dog?", "choices": ["Yes", "No", "Perhaps not"]},
    "choices of greedy": {"task": "ask", "prompt": "What?", "choices": ["A dog", "A cat"], "method": "greedy"},
    "choices, another alpha": {
        "task": "ask",
        "prompt": "What?",
        "choices": ["A dog", "A cat"],
        "settings": {"alpha": 1.5},
    },
    "flagged": {"verify": "flag", "settings": {"max_new_tokens": 40}},
    "the best of three": {"verify": "best", "settings": {"max_new_tokens": 30, "best.captions": 3}},
    "a check": {"task": "check", "caption": "A dog and two cats sit in a red car, next to a tree."},
}
if LISTED:
    RUNS["a schema"] = {"schema": SCHEMA, "settings": {"max_new_tokens": 60}}
BESIDE_A_CUT = [
    "captions",
    "greedy",
    "sampled",
    "sampled greedy",
    "another alpha",
    "choices",
    "words",
    "words of greedy",
]
MEASURED = {"duration_ms"}


def close(left, right):
    """Equal, but for rounding of numbers."""
    if isinstance(left, float):
        return left == pytest.approx(right, abs=1e-3)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(close, left, right))
    return left == right


@pytest.mark.parametrize(
    ("family", "settings", "names"),
    [
        ("llava", {}, [*RUNS]),
        ("qwen2.5-vl", {}, [*RUNS]),
        ("smolvlm", {"beta": 0.3, "k": 1}, BESIDE_A_CUT),
    ],
)
def test_records_are_those_of_the_engine_in_process(family, settings, names, folder, pictures, run):
    checkpoint = folder(family)
    ends = GenerationConfig(eos_token_id=[*range(400, 430)])  # texts end by them, and by their length
    ends.save_pretrained(checkpoint)
    runs = [RUNS[name] for name in names]
    found = run("records", checkpoint, pictures=pictures[:5], runs=runs, settings=settings)
    by_name = dict(zip(names, found, strict=True))
    for name, (there, here) in by_name.items():
        for mine, theirs in zip(there, here, strict=True):
            apart = {
                key: (mine[key], theirs[key])
                for key in mine
                if key not in MEASURED and not close(mine[key], theirs[key])
            }
            assert not apart, (name, json.dumps(apart))
    assert {record["finish_reason"] for name in by_name for record in by_name[name][0]} >= {"stop", "length"}
    checked = by_name.get("a check", [[]])[0]
    assert all(len(record["objects"]) > 2 for record in checked)


def test_the_engine_in_process_goes_on_with_a_run_of_vllm(folder, tmp_path):
    """Smaller pictures by --max-pixels; texts and keys are those of a run in process."""
    shown = tmp_path / "pictures"
    shown.mkdir()
    for index in range(14):
        size = (84 + 28 * (index % 5), 84 + index)
        Image.effect_noise(size, 90).convert("RGB").save(shown / f"{index:02}.png")
    command = [sys.executable, "-m", "sira_cli", "caption", str(shown), "-m", str(folder("qwen2.5-vl")), "--quiet"]
    command += ["--max-pixels", str(84 * 84), "--max-new-tokens", "24", "--dtype", "float32", "-b", "4"]
    environment, found = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}, []
    for engine, limit, name in (("vllm", "9", "a"), ("local", "14", "a"), ("local", "14", "b")):
        out = tmp_path / f"{name}.jsonl"
        options = ["--engine", engine, "--limit", limit, "-o", str(out)]
        subprocess.run([*command, *options], cwd=ROOT, env=environment, check=True)
        records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        found.append({record["file_name"]: record | {"duration_ms": 0} for record in records})
    begun, whole, alone = found
    assert len(begun) == 9
    assert len(whole) == 14
    assert whole == alone


@pytest.mark.parametrize("settings", [{"beta": 0.2}, {"k": 2}])
def test_one_k_and_one_beta_for_a_whole_run(demo, settings):
    there = VllmLvlm(demo.model, demo.processor, demo.preset, demo.decoder, demo.revision)
    there.texts = Texts.__new__(Texts)  # no engine: none is asked
    assert there.under("greedy").alpha == 0
    assert there.under("sira", demo.preset.with_settings(alpha=2)).alpha == 2
    with pytest.raises(SettingsError, match="--engine vllm has one K and one beta for a whole run"):
        there.under("sira", demo.preset.with_settings(**settings))
