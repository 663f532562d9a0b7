"""The examples of docs/library.md, run as they stand."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest

from sira_cli.demo.export import export
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import TEST_SEEDS

ROOT = Path(__file__).parents[1]
PICTURES = sorted((ROOT / "examples").glob("*.png"))[:3]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with what a checkout has, and what the page says to export."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").mkdir()
    for path in PICTURES:
        shutil.copy(path, folder / "examples")
    export([held_out(TEST_SEEDS[0])], folder / "scenes")
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run an example; returns the lines that it prints."""
    monkeypatch.chdir(folder)

    def run(title: str) -> list[str]:
        capsys.readouterr()
        exec(compile(EXAMPLES[title], f"library.md, {title}", "exec", dont_inherit=True), {"__name__": "example"})
        return capsys.readouterr().out.splitlines()

    return run


def test_every_section_has_one_example_but_the_errors():
    assert [*EXAMPLES, "Errors"] == re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert PAGE.count("```python") == len(EXAMPLES)


def test_one_picture(run):
    for title, pattern in {"One picture": r"\S.* stop \w+", "Another method": r".*\."}.items():
        (line,) = run(title)
        assert re.fullmatch(pattern, line), title
    (line,) = run("A text, object by object")
    assert [thing for thing, _ in ast.literal_eval(line)] == ["dog", "tree"]
    assert all(0 < support < 1 for _, support in ast.literal_eval(line))


def test_ones_own_model(llava, capsys):
    names: dict[str, object] = {}
    for title in ("Your own model and code", "Your own model, any method"):
        exec(compile(EXAMPLES[title], "library.md", "exec"), names)
    length = llava.inputs["input_ids"].shape[1]
    ids = names["caption"](llava.model, llava.inputs)
    assert len(capsys.readouterr().out.splitlines()) == ids.shape[1] - length == 64
    assert names["caption_with_vcd"](llava.model, dict(llava.inputs)).shape[1] > length


def test_many_pictures_and_a_folder_that_is_done_once(run, folder):
    assert [line.split()[0] for line in run("Many pictures")] == [f"examples/{path.name}" for path in PICTURES]
    before = None
    for event in ("Finished", "Skipped"):
        assert [line.split("(")[0] for line in run("A folder, resumable")] == ["Started", *len(PICTURES) * [event]]
        records = (folder / "captions.jsonl").read_bytes()
        assert before in (None, records)
        before = records


def test_pope_is_what_the_command_prints(run, sira):
    *events, report = run("POPE")
    assert {line.split("(")[0] for line in events} == {"StageStarted", "Finished"}
    questions = ("scenes/pope/scenes_pope_random.json", "--images", "scenes/images")
    code, out, _ = sira("eval", "pope", *questions, "-p", "demo", "--method", "sira,vcd", "-o", "pope", "--json")
    found, expected = json.loads(report), json.loads(out)
    assert (code, found["rows"]) == (0, expected["rows"])
    assert [row["method"] for row in found["rows"]] == ["greedy", "greedy+apc", "sira", "vcd"]
