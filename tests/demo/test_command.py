"""The bundled model is an ordinary checkpoint that does what its card says, and `sira demo` shows it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors import safe_open

from sira_cli.analysis.sweep import Cell
from sira_cli.analysis.sweep_report import SweepReport, best_setting
from sira_cli.demo.measure import SceneReport, load_methods, measure, read_figures, texts_of, unit
from sira_cli.demo.questions import SPLITS, Questions, contents, hallucinated, held_out, mentions, yes_no_question
from sira_cli.demo.scenes import OBJECTS, TEST_SEEDS, render
from sira_cli.models.presets import BUNDLED_FOLDER
from tools import card, examples

EXAMPLES = Path(__file__).parents[2] / "examples"
FIGURES = read_figures()


@pytest.fixture(scope="module")
def methods():
    return load_methods()


@pytest.fixture(scope="module")
def scenes():
    return [held_out(seed) for seed in TEST_SEEDS[:24]]


def test_what_is_bundled():
    assert sum(path.stat().st_size for path in BUNDLED_FOLDER.rglob("*")) <= 12e6
    with safe_open(BUNDLED_FOLDER / "model.safetensors", "pt") as weights:
        shapes = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
        assert {tensor.get_dtype() for tensor in shapes} == {"F16"}
        assert 2e6 <= sum(np.prod(tensor.get_shape()) for tensor in shapes) <= 8e6


def test_plain_transformers_loads_it_and_says_the_same(methods, scenes):
    processor = hf.LlavaProcessor.from_pretrained(BUNDLED_FOLDER)
    model = hf.AutoModelForImageTextToText.from_pretrained(BUNDLED_FOLDER, dtype=torch.float32)
    for scene in scenes[:2]:
        picture = render(scene)[0]
        text = {"type": "text", "text": methods["greedy"].preset.prompts.caption}
        asked = [{"role": "user", "content": [{"type": "image", "image": picture}, text]}]
        how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        inputs = processor.apply_chat_template(asked, **how)
        new = model.generate(**inputs, max_new_tokens=128)[0, inputs["input_ids"].shape[1] :]
        assert processor.decode(new, skip_special_tokens=True).strip() == methods["greedy"].caption(picture).text


def test_batches_give_the_texts_of_single_pictures(methods, scenes):
    pictures = [render(scene)[0] for scene in scenes[:2]]
    asked = [yes_no_question(question.name) for question in Questions(sample=4).about(scenes[0])]
    for lvlm in methods.values():
        captions = texts_of(lvlm, pictures, [lvlm.preset.prompts.caption] * 2)
        assert captions == [lvlm.caption(picture).text for picture in pictures]
        answers = texts_of(lvlm, [pictures[0]] * len(asked), asked, "ask")
        assert answers == [lvlm.ask(pictures[0], question).text for question in asked]


def test_texts_are_kept_by_all_that_decides_them(methods):
    sira, scene = methods["sira"], held_out(0)
    asked, preset = Questions(sample=4).about(scene), sira.preset
    known = {name: getattr(sira, name) for name in ("decoder", "preset", "method", "revision", "dtype", "quantization")}
    others = [{"preset": preset.with_values(**each)} for each in ({"k": 3}, {"prompts.ask": "{question} Yes or no?"})]
    others += [{"decoder": methods["greedy"].decoder}, {"revision": "r"}, {"dtype": "t"}, {"quantization": "8bit"}]
    names = {unit(SimpleNamespace(**known | each), scene, asked) for each in ({}, *others)}
    assert len(names | {unit(sira, scene, asked[1:])}) == 8


def test_the_card_and_the_preset_are_what_the_figures_give(methods):
    training, choice = (json.loads(path.read_text(encoding="utf-8")) for path in (card.TRAINING, card.CHOSEN))
    written = (BUNDLED_FOLDER / "README.md").read_text(encoding="utf-8")
    machine = re.compile(r"with torch .*?\.\n\n", re.DOTALL)
    assert machine.sub("", written) == machine.sub("", card.card(FIGURES, methods["sira"], training, choice))
    report = SweepReport.from_json(json.dumps(choice))
    # K and alpha: what the rule picks on validation scenes
    assert (report.best, report.fulfils) == best_setting(report.rows, captions=True)
    assert report.best == Cell(methods["sira"].k, methods["sira"].preset.sira.alpha)


def test_lists_name_the_kinds_of_objects_in_a_picture(sira, tmp_path):
    pictures, out = sorted(EXAMPLES.glob("*.png"))[:6], tmp_path / "tags.jsonl"
    assert sira("caption", *pictures, "-p", "demo", "--tags", "-o", out)[0] == 0
    total = Counter()
    for picture, record in zip(pictures, map(json.loads, out.open()), strict=True):
        objects, tags = {*held_out(int(picture.stem.removeprefix("scene-"))).objects}, {*record["data"]}
        assert tags <= OBJECTS.keys()
        assert record["text"] == ", ".join(record["data"])
        total += Counter(tags=len(tags), objects=len(objects), right=len(tags & objects))
    assert 2 * total["right"] / (total["tags"] + total["objects"]) > 0.6
    for method in ("greedy", "sira"):  # no worse than captions, on the test scenes
        assert FIGURES["tags"][method]["difference"]["high"] >= 0


@pytest.mark.slow
def test_demo_shows_scenes_with_marked_hallucinations(sira, tmp_path):
    code, out, err = sira("demo", "--limit", 3, "--seed", 5, home=tmp_path)
    assert (code, err) == (0, "")
    for number, seed in enumerate(TEST_SEEDS[5:8], start=1):
        scene, path = held_out(seed), tmp_path / "cache" / "demo" / f"scene-{seed}.png"
        assert f"scene {number} of 3  {path}\n" in out
        assert np.array_equal(np.asarray(Image.open(path)), np.asarray(render(scene)[0]))
        objects, *captions = out.split(f"{path}\n")[1].split("\n\n")[0].split("\n")
        assert objects == f"  objects {scene.place}: {contents(scene)}"
        assert [line.split()[0] for line in captions] == ["greedy", "sira"]
        for line in captions:
            text = line.replace("[", "").replace("]", "")
            assert re.findall(r"\[(.*?)\]", line) == [text[start:end] for start, end in hallucinated(scene, text)]
            assert mentions(text)
    (shipped,) = re.findall(r"(?:^\|.*\n)+", out, re.MULTILINE)
    assert shipped.strip() == SceneReport.from_json(FIGURES).captions_table()
    assert f"of {FIGURES['scenes']:,} test scenes, measured when the model was made" in out
    assert SceneReport.from_json(FIGURES).outcomes_line() in out
    assert "sira demo --seed 8" in out


def test_demo_evaluate(methods, sira):
    code, out, err = sira("demo", "--evaluate", "--limit", 2, "--json", "-q")
    assert (code, err) == (0, "")
    expected = measure(methods, [held_out(seed) for seed in TEST_SEEDS[:2]], Questions())
    assert SceneReport.from_json(json.loads(out)) == expected


def test_demo_refuses_scenes_and_folders_that_it_cannot_have(sira, tmp_path):
    """No figure is measured on the last test scenes, and no other range of seeds begins before their end."""
    last = len(TEST_SEEDS) - 10_000
    assert sira("demo", "--seed", last, "--limit", 1, "--export", tmp_path)[0] == 0
    assert {path.stem for path in tmp_path.rglob("*.png")} == {f"scene_{TEST_SEEDS[last]:012d}"}
    code, _, err = sira("demo", "--seed", last + 1, "--limit", 1, "--export", tmp_path / "other")
    assert (code, err) == (2, f"sira: --seed {last + 1}: expected a whole number from 0 to {last}\n")
    (tmp_path / "file").touch()
    code, _, err = sira("demo", home=tmp_path / "file")
    assert code == 1
    assert err.count("\n") == 1
    assert str(tmp_path / "file" / "cache") in err
    assert sira("demo", "--json") == (2, "", "sira: --json is for figures: also give --evaluate\n")


@pytest.mark.slow  # of the model as it was trained, not of code that changes
def test_the_examples_and_figures_are_of_these_weights(methods, scenes):
    """The first scenes, all of them, with what the decoders say now; and figures measured again on a few scenes."""
    shown = [held_out(int(path.stem.removeprefix("scene-"))) for path in sorted(EXAMPLES.glob("*.png"))]
    assert [scene.seed for scene in shown[:-1]] == [2_900_000 + number for number in range(20)]
    assert examples.is_right(shown[-1], examples.captions(shown[-1:])["sira"][0])
    for scene in shown:
        assert np.array_equal(np.asarray(Image.open(EXAMPLES / examples.name(scene))), np.asarray(render(scene)[0]))
    assert (EXAMPLES / "README.md").read_text(encoding="utf-8") == examples.page(shown, examples.captions(shown))
    shipped, again = SceneReport.from_json(FIGURES), measure(methods, scenes, Questions())
    assert again.settings == shipped.settings
    for method, row in again.figures.items():
        for name in ("CHAIRi", "coverage", *(f"{split} accuracy" for split in SPLITS)):
            assert row[name].value == pytest.approx(shipped.figures[method][name].value, abs=10), (method, name)


def test_the_notebook_runs_and_prints_what_it_shows(tmp_path):
    path = shutil.copytree(EXAMPLES, tmp_path / "examples") / "sira.ipynb"
    shown = nbformat.read(path, as_version=4)
    again = examples.run_notebook(path)
    assert len(again.cells) > 10
    for cell, now in zip(shown.cells, again.cells, strict=True):
        assert _printed(now) == _printed(cell)
        assert _drawn(now) == _drawn(cell)


def _printed(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")


def _drawn(cell: nbformat.NotebookNode) -> list[list[str]]:
    """The kinds of each picture or value, such as `image/png`."""
    return [sorted(output.data) for output in cell.get("outputs", []) if "data" in output]
