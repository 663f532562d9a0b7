"""What `sira eval` refuses, and when."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from typing import get_args

import pytest

from sira_cli.cli import eval as cli
from sira_cli.eval.amber import benchmark as amber
from sira_cli.eval.amber import figures as amber_figures
from sira_cli.eval.chair import benchmark as chair
from sira_cli.eval.settings import SAME, EvalSettings
from sira_cli.eval.stats import pope as pope_eval
from sira_cli.language import language
from tests.support.eval.helpers import SCENES


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--images", "x", "--answers", "y"], "give --images FOLDER to ask the model, or --answers FILE"),
        ([], "give --images FOLDER to ask the model, or --answers FILE to score answers: one of the two"),
        (["--answers", "missing.json"], "--answers missing.json: no such file"),
        (["--answers", "{q}", "--method", "vcd"], "--method is for runs: leave it out"),
        (["--answers", "{q}", "--max-new-tokens", 4], "--max-new-tokens is for runs"),
        (["--answers", "{q}", "--retry-errors"], "--retry-errors is for runs"),
        (["--answers", "{q}", "--overwrite"], "--overwrite is for runs"),
        (["--answers", "{q}", "--shard", "1/2"], "--shard is for runs"),
        (["--images", "{i}", "--shard", "3/2", "-o", "out"], "shard '3/2': expected I/N with I from 1 to N"),
        (["--answers", "{q}", "-b", 8], "--batch-size is for runs"),
        (["--answers", "{q}", "--device", "cuda:7"], "--device is for runs"),
        (["--answers", "{q}", "--details", "no/d.jsonl"], "--details no/d.jsonl: the folder no does not exist"),
        (["--images", "{i}", "--method", "vcd", "--num-beams", 2], "method vcd follows one text per picture"),
        (["--images", "{i}", "--shard", "1/2"], "--shard needs --output FOLDER"),
        (["--answers", "{q}", "--export", "official"], "--export needs --output FOLDER"),
        (["--images", "{i}", "-o", "out.jsonl"], "--output out.jsonl: expected a folder"),
        (["--images", "{q}"], "is not a folder"),
        (["--images", "{i}", "--method", "nothing"], "no method named 'nothing'"),
        (
            ["--images", "{i}", "--method", "dola", "--k", 2],
            "--k: none of the methods has it: greedy, ",
        ),
        (["--images", "{i}", "--json", "--format", "csv"], "give --json or --format csv, not both"),
        (["--images", "{i}", "--suffix", "x", "--no-suffix"], "give --suffix or --no-suffix, not both"),
        (["--answers", "{i}"], "no file in this folder holds records of sira"),
        (["--answers", "{q}"], "line 1: is a question, expected an answer"),
    ],
)
def test_refusals(sira, scenes, args, message):
    names = {"{q}": scenes / "pope" / "scenes_pope_random.json", "{i}": scenes / "images"}
    given = [names.get(arg, arg) for arg in args]
    code, out, err = sira("eval", "pope", "--questions", names["{q}"], *given, "-p", "demo")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--images", "{i}"], "--ids FILE is needed: the images to caption, one id per line"),
        (["--images", "{i}", "--ids", "{ids}", "--lengths", "64,²"], "--lengths 64,²: expected numbers of tokens"),
        (["--images", "{i}", "--ids", "{ids}", "--lengths", "64,0"], "--lengths 64,0: expected numbers of tokens"),
        (
            ["--images", "{i}", "--ids", "{ids}", "--lengths", "64", "--max-new-tokens", 5],
            "give --lengths or --max-new-tokens, not both",
        ),
    ],
)
def test_refusals_of_chair(sira, scenes, args, message):
    names = {"{ids}": scenes / "coco" / "ids.txt", "{i}": scenes / "images"}
    given = [names.get(arg, arg) for arg in args]
    code, out, err = sira("eval", "chair", "--annotations", scenes / "coco", *given, "-p", "demo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_options_offer_what_there_is():
    """They are listed twice, so that --help is quick."""
    assert [*get_args(cli.Rule)] == [*pope_eval.RULES]
    assert [*get_args(cli.TextRule)] == [*chair.RULES]
    tasks = {*get_args(cli.Task)}
    assert tasks == {*amber.PARTS, "all", "existence", "attribute", "relation"}
    assert tasks - {"all"} < {*amber_figures.GROUPS["generative"], *amber_figures.GROUPS["discriminative"]}
    assert [*get_args(cli.Language)] == [*language.CHOICES]
    assert cli.LENGTHS == (64, 512)  # of the paper's Table 2


def test_a_record_holds_all_that_a_method_must_keep_to(lvlm):
    assert {*asdict(EvalSettings.of(lvlm))} < {*SAME}


def test_no_picture_at_all_is_known_before_the_model_is_loaded(sira, scenes, tmp_path):
    files = scenes / "pope" / "scenes_pope_random.json"
    code, out, err = sira("eval", "pope", "--questions", files, "--images", tmp_path, "-p", "llava-1.5-7b")
    assert (code, out) == (1, "")
    assert err.endswith(f"no such file, nor any of the other {SCENES - 1}: is --images right?\n")


def test_a_mistake_is_said_before_torch_is_imported(scenes, tmp_path):
    files = ["--questions", str(scenes / "pope" / "scenes_pope_random.json"), "--images", str(tmp_path), "-p", "demo"]
    script = f"""
import sys; sys.argv = ["sira", "eval", "pope", *{files}]
from sira_cli.cli import main
try: main()
except SystemExit as stop: print(stop.code, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "1 []\n"
