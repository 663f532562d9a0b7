"""Presets: what ships, where they are looked up, and messages that name file, key and nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sira_cli.core.config import SiraConfig
from sira_cli.core.image_tokens import Between, ImageTokens
from sira_cli.errors import SettingsError
from sira_cli.models import presets
from sira_cli.models.preset import Preset

SHIPPED = [
    *("demo", "qwen2.5-vl-7b", "qwen2.5-vl-3b", "llava-1.5-7b", "llava-1.5-13b", "qwen2-vl-7b", "qwen3-vl-8b"),
    *("llava-next-mistral-7b", "internvl3-8b", "smolvlm2-2.2b", "gemma3-4b", "joycaption-beta-one"),
    *("qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.6-27b", "qwen3.6-35b-a3b"),
    *("gemma4-e2b", "gemma4-e4b", "gemma4-26b-a4b"),
    *("llava-1.5-7b-original", "gemma4-12b", "gemma4-31b", "qwen3-vl-2b", "qwen3-vl-4b", "glm-4.6v-flash"),
    *("molmo2-8b", "llava-onevision-7b"),
]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_what_ships():
    assert sorted(presets.available()) == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_shipped_preset_is_valid_and_named_like_its_file(name: str):
    preset = presets.find(name)
    assert preset.name == name
    assert preset.sira.alpha == 0.5
    measured = name in ("demo", "qwen2.5-vl-7b", "llava-1.5-7b", "llava-1.5-7b-original")
    assert measured or "rule of thumb, not measured" in preset.description
    assert measured or preset.sira.k_fraction == 0.5


def test_the_papers_settings():
    assert presets.find("qwen2.5-vl-7b").sira_config == SiraConfig(k=14, alpha=0.5)
    assert presets.find("llava-1.5-7b").sira_config == SiraConfig(k=16, alpha=0.5)


def test_everything_that_a_preset_may_say(tmp_path):
    path = write(
        tmp_path / "mine.yaml",
        """
        name: mine
        description: all of it
        model: owner/model
        revision: abc123
        download_gb: 1.5
        sira: {k_fraction: 0.25, alpha: 1, beta: 0.1}
        image_tokens:
          from_config: true
          ids: [151655]
          tokens: ["<|image_pad|>"]
          between: {start: "<|vision_start|>", end: 5, inclusive: true}
        prompts: {caption: Say what you see., ask: "Q: {question}", system: You see.}
        generation:
          {max_new_tokens: 7, temperature: 0.5, top_p: 0.9, seed: 3, num_beams: 2, repetition_penalty: 1.1,
           no_repeat_ngram_size: 3, think: true}
        text: {prefix: "ohwx, ", max_sentences: 2, complete_sentences: true}
        load: {dtype: bfloat16, attn_implementation: eager}
        image: {max_pixels: 1003520}
        """,
    )
    preset = presets.find(str(path))
    rule = ImageTokens(True, (151655,), ("<|image_pad|>",), Between("<|vision_start|>", 5, True))
    assert preset.sira_config == SiraConfig(k_fraction=0.25, alpha=1.0, beta=0.1, image_tokens=rule)
    generation = {"max_new_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "seed": 3}
    generation |= {"num_beams": 2, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "think": True}
    assert preset.generation.model_dump() == generation
    assert preset.text.given() == {"prefix": "ohwx, ", "max_sentences": 2, "complete_sentences": True}
    assert write(tmp_path / "again.yaml", presets.to_yaml(preset))
    assert presets.read(tmp_path / "again.yaml") == preset


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: x\nsira: {kk: 3}", r"unknown key `sira\.kk`; did you mean `k`\?"),
        ("modle: x", r"`model` is missing; unknown key `modle`; did you mean `model`\?"),
        ("model: x\nsira: {k: 0}", "`sira.k`: expected a whole number from 1, or none, got 0"),
        ("model: x\ngeneration: {temperature: -1}", r"`generation\.temperature`: expected a number from 0, got -1"),
        ("model: x\nprompts: {ask: hi}", r"`prompts\.ask`: must contain \{question\}, got 'hi'"),
        ("model: x\nsira: {k: 3, k: 4}", r"line 2, column 14: not valid YAML: `k` is given twice"),
        ("model: [", r"line 1, column 9: not valid YAML"),
        ("- 1", "a preset is a mapping"),
        ("model: x\nsira: {kk: 1}\ngeneration: {seed: -1}", r"sira\.kk.*generation\.seed"),  # all at once
    ],
)
def test_mistakes_are_named_with_their_file(tmp_path, text, message):
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(SettingsError, match=message) as raised:
        presets.find(str(path))
    assert str(raised.value).startswith(f"{path}:")
    assert "\n" not in str(raised.value)


def test_a_users_preset_comes_before_a_shipped_one(home):
    write(home / "presets/llava-1.5-7b.yaml", "model: mine/llava")
    write(home / "presets/other.yml", "model: mine/other")
    assert presets.find("llava-1.5-7b").model == "mine/llava"
    assert presets.find("other") == Preset(name="other", model="mine/other")


def test_a_relative_model_folder_is_relative_to_the_file(tmp_path):
    path = write(tmp_path / "sub/mine.yaml", "model: ../weights")
    assert presets.read(path).model == str(tmp_path / "weights")


def test_with_settings_replaces_values_and_checks_them():
    preset = presets.find("qwen2.5-vl-3b").with_settings(k=3, temperature=0.5, prompt="Hm?", revision="abc", alpha=None)
    assert (preset.sira.k, preset.sira.k_fraction, preset.sira.alpha) == (3, None, 0.5)
    assert (preset.generation.temperature, preset.prompts.caption, preset.revision) == (0.5, "Hm?", "abc")
    with pytest.raises(SettingsError, match=r"`top_p=` 2: expected a number above 0 to 1"):
        preset.with_settings(top_p=2)
    with pytest.raises(SettingsError, match="no setting named 'tempreature'; did you mean `temperature`"):
        preset.with_settings(tempreature=1)


def test_what_load_accepts(tmp_path, monkeypatch):
    assert presets.resolve("llava-1.5-7b").model == "llava-hf/llava-1.5-7b-hf"
    assert presets.resolve("owner/name").model == "owner/name"
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    assert presets.resolve("weights").model == "weights"
    assert presets.resolve(str(tmp_path)).model == str(tmp_path)
    for name, message in (
        ("wieghts", "no preset named 'wieghts'"),
        ("llava-1.5-7", r"no preset named 'llava-1\.5-7'; did you mean `llava-1\.5-7b`\?"),
        ("nowhere/x.yaml", r"preset file nowhere/x\.yaml does not exist"),
    ):
        with pytest.raises(SettingsError, match=message):
            presets.resolve(name)
