"""What `sira eval` refuses, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sira_cli.eval import amber, chair
from sira_cli.eval.benchmark import ONE_WORD
from sira_cli.eval.cards import CARDS
from sira_cli.eval.figures import RULES
from sira_cli.language import language
from tests.support.eval.helpers import SCENES


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--images", "x", "--answers", "y"], "give --images FOLDER to ask the model, or --answers FILE"),
        ([], "is not a folder"),
        (["--answers", "missing.json"], "--answers missing.json: no such file"),
        (["--answers", "{q}", "--method", "vcd"], "--method is for runs: leave it out"),
        (["--images", "{i}", "--shard", "3/2", "-o", "out"], "--shard 3/2: expected I/N with I from 1 to N"),
        (["--images", "{i}", "--shard", "1/2"], "--shard needs --output FOLDER"),
        (["--images", "{i}", "-o", "out.jsonl"], "--output out.jsonl: expected a folder"),
        (["--images", "{i}", "--method", "dola", "--k", 2], "--k: none of the methods has it: greedy, "),
        (["--answers", "{i}"], "no file in this folder holds records of sira"),
        (["--answers", "{q}"], "line 1: expected an answer with answer (and question, image), or question_id and text"),
    ],
)
def test_refusals(sira, scenes, args, message):
    names = {"{q}": scenes / "pope" / "scenes_pope_random.json", "{i}": scenes / "images"}
    given = [names.get(arg, arg) for arg in args]
    code, out, err = sira("eval", "pope", names["{q}"], *given, "-p", "demo")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--option ids=FILE is needed: the images to caption, one id per line"),
        (["--option", "ids={ids}", "--option", "lengths=64,²"], "--option lengths=64,²: expected numbers of tokens"),
        (["--option", "ids={ids}", "--option", "lengths=64", "--max-new-tokens", 5], "or --max-new-tokens, not both"),
        (["--option", "prompt= "], "--option prompt= : is empty"),
    ],
)
def test_refusals_of_chair(sira, scenes, args, message):
    given = [str(arg).replace("{ids}", str(scenes / "coco" / "ids.txt")) for arg in args]
    folder = scenes / "coco" / "annotations"
    code, out, err = sira("eval", "chair", folder, "--images", scenes / "images", *given, "-p", "demo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_options_offer_what_there_is():
    """The cards list choices again, so that the command line starts quickly."""

    def choices(card: str, name: str) -> list[str]:
        return [*next(option.choices for option in CARDS[card].options if option.name == name)]

    assert choices("pope", "rule") == [*RULES]
    assert choices("chair", "rule") == [*chair.RULES]
    tasks = {*choices("amber", "task")}
    assert tasks == {*amber.PARTS, "all", "existence", "attribute", "relation"}
    assert tasks - {"all"} < {*amber.GROUPS["generative"], *amber.GROUPS["discriminative"]}
    assert choices("chair", "language") == choices("amber", "language") == [*language.CHOICES]
    assert next(option.default for option in CARDS["pope"].options if option.name == "suffix") == ONE_WORD
    assert chair.LENGTHS == (64, 512)  # of the paper's Table 2


def test_no_picture_at_all_is_known_before_the_model_is_loaded(sira, scenes, tmp_path):
    files = scenes / "pope" / "scenes_pope_random.json"
    code, out, err = sira("eval", "pope", files, "--images", tmp_path, "-p", "llava-1.5-7b")
    assert (code, out) == (1, "")
    assert err.endswith(f"no such file, nor any of the other {SCENES - 1}: is --images right?\n")


def test_a_mistake_is_said_before_torch_is_imported(scenes, tmp_path):
    files = [str(scenes / "pope" / "scenes_pope_random.json"), "--images", str(tmp_path), "-p", "demo"]
    script = f"""
import sys; sys.argv = ["sira", "eval", "pope", *{files}]
from sira_cli.cli import main
try: main()
except SystemExit as stop: print(stop.code, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "1 []\n"
