"""Models whose layers ask for more than causal attention to all keys, inside vLLM against `attach`."""

from __future__ import annotations

import json
import shutil

from tests.vllm.known import TAKEN
from tests.vllm.models import FAMILIES, by_attach, request

SIRA = {"additional_config": {"sira": {"alpha": 0.5}}}
WHOLE = {"max_num_batched_tokens": 2048}  # pictures in one step


def test_image_tokens_that_see_all_of_their_picture(folder, pictures, run):
    """Gemma 3: in the full stream only, as the contrast stream has none; windows are longer than any text."""
    asked = [request("gemma3", [picture], tokens=12, sira={"alpha": 6}) for picture in pictures[:2]]
    asked.append(request("gemma3", pictures[:2], tokens=6, sira={"alpha": 0}))
    batches = [{"requests": asked}]
    found = run("decode", folder("gemma3"), options=SIRA | WHOLE, batches=batches, triton=True)["answers"][0]
    expected = [by_attach(folder("gemma3"), each, each["sira"]["alpha"]) for each in asked]
    assert found == expected
    assert [each[1] for each in expected[:2]] != [by_attach(folder("gemma3"), each, 0)[1] for each in asked[:2]]


def test_image_tokens_that_do_not_are_refused(folder, run, tmp_path):
    """Attention on CPUs sees no later token; and a window that ends within a text counts positions."""
    checkpoint = shutil.copytree(folder("gemma3"), tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["sliding_window"] = 64
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (found,) = run("refused", checkpoint, options=[SIRA | WHOLE], start=True)
    assert "attends in both directions between image tokens, which CPU_ATTN cannot: try TRITON_ATTN" in found
    assert "has a sliding window after the fork: give --max-model-len 64 at most" in found
    (found,) = run("refused", checkpoint, options=[SIRA | {"max_num_batched_tokens": 1024}])
    assert "in pictures that are cut: give --max-model-len 512 at most" in found


def test_the_table_of_models_names_each_family_that_is_tried():
    assert sorted(TAKEN.values()) == sorted(name for name in FAMILIES if name != "qwen3.5, wide")  # the same model
