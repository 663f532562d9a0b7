"""The bundled model is an ordinary checkpoint that does what its card says, and `sira demo` shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors import safe_open
from scipy.stats import binomtest

from sira_cli.analysis.sweep import Cell, SweepReport, by_captions, paper
from sira_cli.demo.measure import SceneReport, load_methods, measure, read_figures, texts_of
from sira_cli.demo.questions import SPLITS, Questions, hallucinated, held_out, mentions, yes_no_question
from sira_cli.demo.scenes import TEST_SEEDS, render
from sira_cli.models.presets import BUNDLED_FOLDER
from tools import card, examples

SIRA = shutil.which("sira") or str(Path(sys.executable).parent / "sira")
EXAMPLES = Path(__file__).parents[2] / "examples"
FIGURES = read_figures()


@pytest.fixture(scope="module")
def methods():
    return load_methods()


@pytest.fixture(scope="module")
def scenes():
    return [held_out(seed) for seed in TEST_SEEDS[:24]]


def run(*args: object, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(
        [SIRA, *map(str, args)], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


def test_what_is_bundled():
    assert sum(path.stat().st_size for path in BUNDLED_FOLDER.rglob("*")) <= 12e6
    config = json.loads((BUNDLED_FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlavaForConditionalGeneration"]
    assert config["vision_config"]["model_type"] == "clip_vision_model"
    assert config["text_config"]["model_type"] == "llama"
    assert config["text_config"]["num_hidden_layers"] >= 8
    with safe_open(BUNDLED_FOLDER / "model.safetensors", "pt") as weights:
        shapes = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
        assert {tensor.get_dtype() for tensor in shapes} == {"F16"}
        assert 2e6 <= sum(np.prod(tensor.get_shape()) for tensor in shapes) <= 8e6


def test_plain_transformers_loads_it_and_says_the_same(methods, scenes):
    processor = hf.LlavaProcessor.from_pretrained(BUNDLED_FOLDER)
    model = hf.AutoModelForImageTextToText.from_pretrained(BUNDLED_FOLDER, dtype=torch.float32)
    lvlm = methods["greedy"]
    for of in scenes[:2]:
        picture = render(of)[0]
        content = [{"type": "image", "image": picture}, {"type": "text", "text": lvlm.preset.prompts.caption}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        new = model.generate(**inputs, max_new_tokens=128)[0, inputs["input_ids"].shape[1] :]
        assert processor.decode(new, skip_special_tokens=True).strip() == lvlm.caption(picture).text


def test_batches_give_the_texts_of_single_pictures(methods, scenes):
    pictures = [render(of)[0] for of in scenes[:2]]
    asked = [yes_no_question(question.name) for question in Questions(sample=4).about(scenes[0])]
    for lvlm in methods.values():
        captions = texts_of(lvlm, pictures, [lvlm.preset.prompts.caption] * 2)
        assert captions == [lvlm.caption(picture).text for picture in pictures]
        answers = texts_of(lvlm, [pictures[0]] * len(asked), asked, "ask")
        assert answers == [lvlm.ask(pictures[0], question).text for question in asked]


def test_the_card_is_what_the_figures_give(methods):
    training, choice = (json.loads((BUNDLED_FOLDER / f"{name}.json").read_text()) for name in ("training", "choice"))
    written = (BUNDLED_FOLDER / "README.md").read_text(encoding="utf-8")
    fresh = card.card(FIGURES, methods["sira"], training, choice)
    machine = re.compile(r"with torch .*?\.\n\n", re.DOTALL)
    assert machine.sub("", written) == machine.sub("", fresh)


def test_k_and_alpha_are_what_the_rule_picks_on_validation_scenes(methods):
    choice = SweepReport.from_json((BUNDLED_FOLDER / "choice.json").read_text())
    cell = by_captions(choice.figures) or paper(choice.layers)
    assert cell == choice.best == Cell(methods["sira"].k, methods["sira"].preset.sira.alpha)


@pytest.mark.slow
def test_demo_shows_scenes_with_marked_hallucinations(tmp_path):
    shown = run("demo", "--limit", 3, "--seed", 5, "--output-dir", tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    for number, seed in enumerate(TEST_SEEDS[5:8], start=1):
        of, path = held_out(seed), tmp_path / f"scene-{seed}.png"
        assert f"scene {number} of 3  {path}\n" in shown.stdout
        assert np.array_equal(np.asarray(Image.open(path)), np.asarray(render(of)[0]))
        block = shown.stdout.split(f"{path}\n")[1].split("\n\n")[0]
        there, *captions = block.split("\n")
        assert there == f"  objects {of.place}: {', '.join(sorted(of.objects))}"
        assert [line.split()[0] for line in captions] == ["greedy", "sira"]
        for line in captions:
            marked = re.findall(r"\[(.*?)\]", line)
            text = line.replace("[", "").replace("]", "")
            assert marked == [text[start:end] for start, end in hallucinated(of, text)]
            assert mentions(text)
    card, now = re.findall(r"(?:^\|.*\n)+", shown.stdout, re.MULTILINE)
    assert card.strip() == SceneReport.from_json(FIGURES).captions_table()
    assert "of 1,000 test scenes, measured when the model was made" in shown.stdout
    assert "sira's captions name fewer absent objects in 153 of 1,000 scenes, more in 58" in shown.stdout
    assert re.search(r"^\| sira - greedy +\| [+-]", now, re.MULTILINE)
    assert shown.stdout.index(card) < shown.stdout.index("60 scenes, measured just now") < shown.stdout.index(now)
    assert "sira demo --seed 8" in shown.stdout


def test_demo_json(sira, tmp_path):
    code, out, err = sira("demo", "--limit", 2, "--json", home=tmp_path)
    assert (code, err) == (0, "")
    for line, seed in zip(out.splitlines(), TEST_SEEDS, strict=False):
        record, of = json.loads(line), held_out(seed)
        assert (record["seed"], record["place"], record["objects"]) == (seed, of.place, sorted(of.objects))
        assert Path(record["file"]).is_relative_to(tmp_path)
        for method, text in record["captions"].items():
            expected = [text[start:end] for start, end in hallucinated(of, text)]
            assert record["hallucinated"][method] == expected


def test_demo_evaluate(methods, sira):
    code, out, err = sira("demo", "--evaluate", "--limit", 2, "--json", "-q")
    assert (code, err) == (0, "")
    found = SceneReport.from_json(json.loads(out))
    expected = measure(methods, [held_out(seed) for seed in TEST_SEEDS[:2]], Questions())
    assert found == expected
    code, out, err = sira("demo", "--evaluate", "--limit", 2, "-q")
    assert (code, err) == (0, "")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines())
    names = ["CHAIRs", "CHAIRi", "coverage", "words", *(f"{split} accuracy" for split in SPLITS)]
    assert head == ["", *names]
    assert rows[:2] == [
        [method, *(f"{expected.figures[method][name]}" for name in names)] for method in ("greedy", "sira")
    ]
    assert rows[2:] == [["sira - greedy", *(f"{expected.differences['sira'][name]:+}" for name in names)]]


def test_demo_begins_with_any_scene_that_leaves_room_for_the_most(sira, tmp_path):
    """No figure is measured on the last test scenes, and no other range of seeds begins before their end."""
    last = len(TEST_SEEDS) - 10_000
    assert sira("demo", "--seed", last, "--limit", 1, "--export", tmp_path)[0] == 0
    assert {path.stem for path in tmp_path.rglob("*.png")} == {f"scene_{TEST_SEEDS[last]:012d}"}
    code, _, err = sira("demo", "--seed", last + 1, "--limit", 1, "--export", tmp_path / "other")
    assert code == 2
    assert err == f"sira: --seed {last + 1}: expected a whole number from 0 to {last}\n"


@pytest.mark.slow  # of the model as it was trained, not of code that changes
def test_the_examples_are_what_the_rule_picks():
    """The first so many scenes, all of them, with what the decoders say now."""
    shown = examples.scenes()
    assert [of.seed for of in shown] == [2_900_000 + number for number in range(20)]
    assert sorted(path.name for path in EXAMPLES.glob("*.png")) == [examples.name(of) for of in shown]
    for of in shown:
        assert np.array_equal(np.asarray(Image.open(EXAMPLES / examples.name(of))), np.asarray(render(of)[0]))
    assert (EXAMPLES / "README.md").read_text(encoding="utf-8") == examples.page(shown, examples.captions(shown))


def test_demo_says_where_it_cannot_write(sira, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = sira("demo", "--output-dir", tmp_path / "file" / "x")
    assert code == 1
    assert err.count("\n") == 1
    assert str(tmp_path / "file" / "x") in err


@pytest.mark.slow  # of the model as it was trained, not of code that changes
def test_the_shipped_figures_are_of_these_weights(methods, scenes):
    """Measured again on a few scenes: near the figures of 1,000."""
    shipped = SceneReport.from_json(FIGURES)
    assert shipped.scenes >= 1000
    again = measure(methods, scenes, Questions())
    assert again.settings == shipped.settings
    for method, row in again.figures.items():
        for name in ("CHAIRi", "coverage", *(f"{split} accuracy" for split in SPLITS)):
            assert row[name].value == pytest.approx(shipped.figures[method][name].value, abs=10), (method, name)


def test_wins_and_losses_among_the_examples_are_as_on_the_test_scenes():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    numbers = re.search(
        r"fewer absent objects in (\d+) of these 20 pictures, more in (\d+),\s+as many in (\d+)\.", page
    ).groups()
    shares = FIGURES["outcomes"]["sira"]
    assert sum(shares.values()) == FIGURES["scenes"]
    for found, count in zip(map(int, numbers), shares.values(), strict=True):
        assert binomtest(found, 20, count / FIGURES["scenes"]).pvalue > 0.2
