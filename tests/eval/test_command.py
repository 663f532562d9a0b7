"""`sira eval`: names, options, what is refused and when; folders of benchmarks; answers from elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sira_cli import methods
from sira_cli.eval import chair as chairs
from sira_cli.eval.benchmark import ONE_WORD
from sira_cli.eval.cards import CARDS, find_cards, options_of_each
from sira_cli.eval.figures import RULES
from sira_cli.language import CHOICES
from tests.support.eval.writing import SCENES, lines, read, rows, save, values

RUN = ("-p", "demo", "-b", 16, "--limit", 2, "--max-new-tokens", 12)
FALLBACK = ("--option", "language=fallback")
EXACT = (*FALLBACK, "--option", "similarity=exact")


# The benchmarks by name, and their options.


def test_options_offer_what_there_is(sira):
    """The cards list choices again, so that the command line starts quickly."""
    options = {(name, option.name): option for name, card in CARDS.items() for option in card.options}
    assert options["pope", "rule"].choices == tuple(RULES)
    assert f"--option rule={'|'.join(RULES)}\n" in sira("eval", "pope")[1]
    assert options["chair", "rule"].choices == tuple(chairs.RULES)
    assert options["chair", "language"].choices == options["amber", "language"].choices == CHOICES
    assert options["pope", "suffix"].default == ONE_WORD
    assert chairs.LENGTHS == (64, 512)  # of the paper's Table 2
    given = options_of_each(find_cards(["pope", "chair", "amber"]), ["suffix=", "pope.rule=vcd", "language=nltk"])
    language = {"language": "nltk"}
    assert given == {"pope": {"suffix": "", "rule": "vcd"}, "chair": language, "amber": {"suffix": "", **language}}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pop", "x"], "pop: no benchmark has this name: expected pope, chair, amber"),
        (["pope,pope", "x"], "pope: is named twice"),
        (["pope", "x", "--option", "rul=vcd"], "--option rul=vcd: no such option of pope: did you mean rule?"),
        (["pope", "x", "--option", "rule=vdc"], "--option rule=vdc: expected official, vcd, "),
        (["chair,pope", "x", "--option", "rule=strict"], "--option rule=strict: expected lemma, singular"),
        (["pope", "x", "--option", "rule"], "--option rule: expected NAME=VALUE"),
        (["pope", "x", "--option", "rule=vcd", "--option", "pope.rule=opera"], "rule is given twice"),
        (["pope", "x", "--option", "chair.rule=lemma"], "chair is not among the benchmarks: pope"),
        (["pope", "--images", "x"], "pope: PATH is missing"),
        (["amber", "a", "b", "--images", "x"], "amber: expected one PATH, the folder with annotations.json"),
        (["pope,chair", "x", "--answers", "y"], "--answers is for one benchmark"),
        (["pope", "missing"], "missing: is not a folder"),
        (["pope", "{i}", "--images", "x"], "holds no .json file"),
        (["pope", "{q}", "--images", "x", "--answers", "y"], "give --images FOLDER to ask the model, or --answers"),
        (["pope", "{q}", "--answers", "missing.json"], "--answers missing.json: no such file"),
        (["pope", "{q}", "--answers", "{q}", "--method", "vcd"], "--method is for runs: leave it out"),
        (["chair", "{c}", "--answers", "{q}", "--option", "prompt=x"], "--option prompt=x: is for runs: leave it out"),
        (["pope", "{q}", "--images", "{i}", "--shard", "3/2", "-o", "out"], "--shard 3/2: expected I/N with I from 1"),
        (["pope", "{q}", "--images", "{i}", "--shard", "1/2"], "--shard needs --output FOLDER"),
        (["pope", "{q}", "--images", "{i}", "-o", "out.jsonl"], "--output out.jsonl: expected a folder"),
        (["pope", "{q}", "--images", "{i}", "--method", "dola", "--k", 2], "--k: none of the methods has it: greedy, "),
        (["pope", "{q}", "--answers", "{i}"], "no file in this folder holds records of sira"),
        (["pope", "{q}", "--images", "{i}", "--verify", "guide"], "pope only asks questions: leave it out"),
        (
            ["pope", "{q}", "--images", "{i}", "--engine", "vllm", "--method", "vcd"],
            "only: leave it out for method vcd",
        ),
        (["pope", "{s}/coco"], "has no folder pope with POPE's files of questions"),
        (["chair", "{s}/coco/annotations", "--images", "{i}"], "--option ids=FILE is needed: the images to caption"),
        (["chair", "{c}", "--images", "{i}", "--option", "lengths=64,²"], "lengths=64,²: expected numbers of "),
        (["chair", "{c}", "--images", "{i}", "--option", "lengths=64", "--max-new-tokens", 5], "not both"),
        (["chair", "{c}", "--images", "{i}", "--option", "prompt= "], "--option prompt= : is empty"),
        (["amber", "{s}", "--option", "prompt=x", "--option", "task=relation"], "--option prompt: asks for captions"),
        (["amber", "{i}", "--images", "{i}"], "images: has no annotations.json: get AMBER's files from https://"),
        (["pope", "{q}", "--answers", "{q}", "--against", "vcd"], "--against vcd: is not among the answers: "),
    ],
)
def test_refusals(sira, scenes, args, message):
    names = {"{q}": scenes / "pope" / "scenes_pope_random.json", "{i}": scenes / "images", "{c}": scenes / "coco"}
    given = [names.get(arg, str(arg).replace("{s}", str(scenes))) for arg in args]
    code, out, err = sira("eval", *given, "-p", "demo")
    assert code == 2, err
    assert out == "", err
    assert err.count("\n") == 1, err
    assert message in err, err


def test_a_mistake_is_said_before_torch_is_imported(scenes, tmp_path):
    """Here that no picture is there."""
    files = [str(scenes / "pope" / "scenes_pope_random.json"), "--images", str(tmp_path), "-p", "llava-1.5-7b"]
    script = f"""
import sys; sys.argv = ["sira", "eval", "pope", *{files}]
from sira_cli.cli import main
try: main()
except SystemExit as stop: print(stop.code, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "2 []\n"
    assert run.stderr.endswith(f"no such file, nor any of the other {SCENES - 1}: is --images right?\n")


# Benchmarks in a folder, asked of one loaded model.


def test_a_folder_of_benchmarks(sira, scenes, loaded, tmp_path):
    """One command, resumed from where it keeps its answers; one table of all methods."""
    folder = tmp_path / "scenes"
    folder.mkdir()
    for name in ("pope", "coco", "amber", "images"):
        (folder / name).symlink_to(scenes / name)
    run = ("eval", "chair,amber,pope", folder, *RUN, "--against", "greedy")
    code, out, err = sira(*run)
    kept = folder / "answers" / "demo"
    assert code == 0
    assert f"answers are kept in {kept}" in err
    assert "NOT the official figures" in out
    (head,) = (line.split() for line in out.splitlines() if "CHAIRi" in line)
    assert head == ["CHAIRs", "CHAIRi", "recall", "CHAIR", "accuracy", "F1"]
    assert [line.split()[0] for line in out.splitlines() if "±" in line and "95 %" not in line] == ["greedy", "sira"]
    asked = loaded.total()
    path = kept / "chair" / "sira-12.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert sira(*run)[0] == 0
    assert loaded.total() == asked + 1  # the record that was lost
    reports = [json.loads(line) for line in sira(*run, "--json")[1].splitlines()]
    assert [report["benchmark"] for report in reports] == ["chair", "amber", "pope"]
    assert [report["rows"][0]["answered"] for report in reports] == [2, 2, 2]
    for report in reports:
        assert report == json.loads((kept / report["benchmark"] / "report.json").read_text())
    assert {group for group, _ in rows(reports[0])} == {"12 tokens"}
    times = [row["duration_ms"] / 1000 for row in read(path)]
    assert values(reports[0])["12 tokens", "sira", "seconds"] == pytest.approx(sum(times) / len(times))
    options = ("--option", f"repope={scenes / 'pope'}", "--option", "pope.rule=strict")
    strict = json.loads(sira("eval", "pope", folder, *RUN, *options, "--json")[1])
    assert ("scenes random, RePOPE", "sira") in rows(strict)
    assert strict["stand_ins"] == {"pope": "rule strict"}
    assert loaded.total() == asked + 1  # nothing is asked again
    own = ("eval", "pope", scenes / "pope", "--images", scenes / "images", *RUN, "--against", "greedy", "--json")
    assert values(json.loads(sira(*own)[1])) == values(reports[2])  # the figures of its own command
    code, _, err = sira(*run, "--dtype", "bfloat16")
    assert code == 2
    assert "holds records of another configuration" in err


def test_chair(sira, scenes, loaded, demo, tmp_path):
    run = ("eval", "chair", scenes / "coco", "-o", tmp_path, "--json", *FALLBACK)
    asking = ("--images", scenes / "images", "-p", "demo", "-b", 4, "--option", "lengths=12,64")
    report = json.loads(sira(*run, *asking)[1])
    assert report["official"] is False
    assert list(report["stand_ins"]) == ["12", "64"]
    methods_ = ("greedy", "greedy+apc", "sira")
    assert list(rows(report)) == [(f"{length} tokens", method) for length in (12, 64) for method in methods_]
    texts = read(tmp_path / "sira-12.jsonl")
    assert [row["output_tokens"] for row in texts] == SCENES * [12]
    single = demo.under(methods.find("sira"), demo.preset.with_settings(max_new_tokens=12))
    image = scenes / "images" / Path(texts[0]["file_name"]).name
    assert single.caption(image, chairs.PROMPT).text == texts[0]["text"]
    loaded.clear()
    known = {key: value for key, value in values(report).items() if key[1] != "greedy+apc"}
    assert values(json.loads(sira(*run, "--answers", tmp_path)[1])) == known
    assert loaded.total() == 0
    # Methods of one length each, and captions of unknown length beside them, are scored as they are.
    files = [f"short={tmp_path}/sira-12.jsonl", f"long={tmp_path}/sira-64.jsonl"]
    captions = [{"image_id": int(row["id"]), "caption": row["text"]} for row in texts]
    elsewhere = lines(tmp_path / "elsewhere.jsonl", captions)
    scored = values(json.loads(sira(*run, "--answers", *files, elsewhere)[1]))
    for method, group in (("short", "12 tokens"), ("long", "64 tokens"), ("elsewhere", "12 tokens")):
        for figure in ("CHAIRs", "CHAIRi", "recall", "length"):
            assert scored["captions", method, figure] == values(report)[group, "sira", figure]
    unknown = lines(tmp_path / "unknown.jsonl", [{"image_id": 987654321, "caption": "A dog."}])
    for answers, message in (
        ((elsewhere, "--option", "lengths=12,64"), "only captions of sira eval chair have several lengths"),
        ((tmp_path, elsewhere), "have several lengths: score each file by itself"),
        ((unknown,), "unknown.jsonl: line 1: image 987654321 is not in "),
    ):
        code, _, err = sira(*run, "--answers", *answers)
        assert code == 2
        assert message in err


def test_amber(sira, scenes, loaded, tmp_path):
    run = ("eval", "amber", scenes / "amber", *EXACT, "--json")
    asking = ("--images", scenes / "images", "-p", "demo", "-b", 8, "-o", tmp_path, "--against", "sira")
    report = json.loads(sira(*run, *asking)[1])
    assert list(report["stand_ins"]) == ["generative"]
    groups = ["generative", "discriminative", "existence", "attribute", "state", "number", "action", "relation"]
    assert list(dict.fromkeys(group for group, _ in rows(report))) == groups
    given = {
        part: [{"id": int(row["id"]), "response": row["text"]} for row in read(tmp_path / f"sira-{part}.jsonl")]
        for part in ("generative", "discriminative")
    }
    truth = {row["id"]: row["truth"] for row in json.loads((scenes / "amber" / "annotations.json").read_text())}
    right = [truth[row["id"]].capitalize() == row["response"] for row in given["discriminative"]]
    accuracy = 100 * sum(right) / len(right)
    assert values(report)["discriminative", "sira", "accuracy"] == pytest.approx(accuracy, abs=0.06)
    elsewhere = [f"sira={save(tmp_path / f'{part}.json', answers)}" for part, answers in given.items()]
    parts = {"all": groups, "generative": groups[:1], "discriminative": groups[1:], "existence": ["existence"]}
    parts |= {"attribute": ["attribute", "state", "number", "action"], "relation": ["relation"]}
    for task, own in parts.items():
        found = values(json.loads(sira(*run, "--option", f"task={task}", "--answers", *elsewhere)[1]))
        assert found == {key: value for key, value in values(report).items() if key[0] in own}
    questions = ("--option", "task=discriminative", "--option", "similarity=spacy", "--json", "--answers", elsewhere[1])
    assert json.loads(sira("eval", "amber", scenes / "amber", *questions)[1])["official"]  # they need no vectors


def test_amber_with_a_second_look(sira, scenes, loaded, demo, tmp_path):
    """The captions are those of `Lvlm.caption`; questions are asked once, under the method itself."""
    run = ("eval", "amber", scenes / "amber", *EXACT, "--json", "--limit", 2, "--against", "greedy")
    asking = ("--images", scenes / "images", "-p", "demo", "-o", tmp_path, "--method", "greedy", "--verify", "guide")
    found = values(json.loads(sira(*run, *asking)[1]))
    assert {method for group, method, _ in found if group == "generative"} == {"greedy", "greedy+guide"}
    assert {method for group, method, _ in found if group == "discriminative"} == {"greedy"}
    greedy = demo.under(methods.find("greedy"), demo.preset)
    for record in read(tmp_path / "greedy+guide-generative.jsonl"):
        image = scenes / "images" / Path(record["file_name"]).name
        alone = greedy.caption(image, record["prompt"], verify="guide")
        assert (record["text"], record["forbidden"]) == (alone.text, alone.forbidden)
    assert values(json.loads(sira(*run, "--answers", tmp_path)[1])) == found


def test_captions_of_sira_caption(sira, scenes, tmp_path, monkeypatch, demo):
    """CHAIR and AMBER know them by their pictures."""
    monkeypatch.setattr("sira_cli.cli.loading.load_model", lambda preset, *others: demo)
    captions = tmp_path / "c.jsonl"
    assert sira("caption", scenes / "images", "-p", "demo", "-b", 4, "-o", captions, "-q")[0] == 0
    words = [len(record["text"].split()) for record in read(captions)]
    ids = f"ids={scenes / 'coco' / 'ids.txt'}"
    for command in (("chair", scenes / "coco", "--option", ids), ("amber", scenes / "amber", *EXACT[2:])):
        (row,) = json.loads(sira("eval", *command, "--answers", captions, *FALLBACK, "--json")[1])["rows"]
        assert (row["answered"], row["figures"]["words"]["value"]) == (SCENES, pytest.approx(sum(words) / SCENES))


def test_the_papers_row_is_beside(sira, tmp_path):
    """With the figures of the model's authors, and a mark where it does not compare."""
    labels = ["yes", "no"] * 4
    questions = [{"image": "0.jpg", "text": f"A {n}?", "label": label} for n, label in enumerate(labels)]
    yes = lines(tmp_path / "yes.jsonl", [{"answer": "Yes"}] * len(labels))
    run = ("eval", "pope", lines(tmp_path / "coco_pope_random.json", questions), "--paper", "--answers")
    files = [f"{name}={yes}" for name in ("greedy", "sira", "mine")]
    _, out, _ = sira(*run, *files, "-p", "llava-1.5-7b")
    for text in ("in the paper, T = 1", "83.29", "89.27", "87.3", "by its authors", "T = 1: sampled", "2310.03744"):
        assert text in out
    assert "in the paper: llava-1.5-7b; no figures for mine" in out
    _, out, _ = sira(*run, f"vcd={yes}", "-m", "Qwen/Qwen2.5-VL-7B-Instruct", "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["paper"]["accuracy"], row["paper_mark"]) == (88.63, "Qwen-VL")
    for more, message in (
        (("-p", "demo"), "the paper has no figures for demo, only for qwen2.5-vl-7b, llava-1.5-7b (-p)"),
        ((), "the answers' model is unknown: give -p PRESET"),
    ):
        assert sira(*run, files[0], *more) == (2, "", f"sira: --paper: {message}\n")
