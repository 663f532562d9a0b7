"""The command line: what goes to stdout, what to stderr, and the exit codes.

Most tests call `main` in this process; those about start-up, terminals and pipes run the installed
command.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from sira_cli import __version__
from sira_cli.models import presets
from sira_cli.run.lvlm import load
from tests.support.helpers import SIRA, installed, on_terminal


def without_notes(stderr: str) -> str:
    return "".join(line for line in stderr.splitlines(keepends=True) if "bundled model knows drawn scenes" not in line)


FAST = ("--max-new-tokens", 3, "--preset", "demo")


def test_caption_prints_texts_and_nothing_else(sira, photos, monkeypatch):
    """Several pictures are named, and `-` is one; $SIRA_PRESET is the preset."""
    lvlm = load("demo", max_new_tokens=3)
    code, out, err = sira("caption", photos["chelsea"], *FAST)
    assert (code, out, without_notes(err)) == (0, lvlm.caption(photos["chelsea"]).text + "\n", "")
    monkeypatch.setenv("SIRA_PRESET", "demo")
    code, out, _ = sira("caption", photos["chelsea"], photos["rocket"], *FAST[:2])
    assert code == 0
    assert out.splitlines() == [f"{photos[name]}: {lvlm.caption(photos[name]).text}" for name in ("chelsea", "rocket")]
    code, out, _ = sira("caption", "-", *FAST, "--json", stdin=photos["coffee"].read_bytes())
    record = json.loads(out)
    assert (code, record["file_name"], record["text"]) == (0, "-", lvlm.caption(photos["coffee"]).text)
    code, _, err = sira("caption", "-", *FAST, stdin=b"no picture")
    assert (code, "sira: stdin: is not a picture that Pillow can read" in err) == (3, True)


def test_one_bad_picture_does_not_end_the_run(sira, photos, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"\xff\xd8 not really")
    paths = [photos["chelsea"], bad, tmp_path / "missing.jpg", photos["coffee"]]
    code, out, err = sira("caption", *paths, *FAST, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 3
    assert [record["status"] for record in records] == ["ok", "error", "error", "ok"]
    kinds = [{key: type(value) for key, value in record.items()} for record in records]
    assert kinds == [kinds[0]] * 4
    assert f"{tmp_path / 'missing.jpg'}: no such file" == records[2]["error"]
    told = [f"sira: {record['error']}" for record in records[1:3]]
    assert without_notes(err).splitlines() == [*told, "sira: 2 of 4 pictures failed"]


def test_an_unforeseen_error_is_one_record_too(sira, photos, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("kernel on fire")

    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", fail)
    code, out, err = sira("caption", photos["chelsea"], *FAST, "--json")
    assert code == 3
    assert json.loads(out)["error"] == f"{photos['chelsea']}: RuntimeError: kernel on fire"
    assert without_notes(err) == f"sira: {json.loads(out)['error']}\n"
    _, _, err = sira("caption", photos["chelsea"], *FAST, "-vv")
    assert "Traceback (most recent call last)" in err


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (["--system", "Be brief."], {"system": "Be brief."}),
        (["--method", "greedy"], {"method": "greedy"}),
        (["--temperature", "0.7", "--top-p", "0.9", "--seed", "4"], {"temperature": 0.7, "seed": 4}),
        (["--set", "num_beams=2"], {}),
        (["--set", "beta=0.1"], {}),
        (["--device", "cpu", "--offline"], {}),
    ],
)
def test_options_reach_the_record(sira, photos, options, changes):
    plain = json.loads(sira("caption", photos["chelsea"], *FAST, "--json")[1])
    code, out, _ = sira("caption", photos["chelsea"], *FAST, "--json", *options)
    record = json.loads(out)
    assert code == 0
    assert {key: record[key] for key in changes} == changes
    assert (record["key"] == plain["key"]) == (options[0] == "--device")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["captoin"], 2, "No such command 'captoin'. Did you mean 'caption'?"),
        (["caption"], 2, "Missing argument 'PATH'"),
        (["ask", "x.jpg", "README.md"], 2, "sira: the question comes last, but README.md is a file"),
        (["ask", "examples"], 2, "sira: the question comes last, but examples is a folder: add the question in quotes"),
        (["ask", "README.md", "A cup?", "A dog?"], 2, "sira: 'A cup?' is not a picture: give one question at a time"),
        (["caption", "a.jpg", "b.jpg"], 1, "sira: a.jpg: no such file, nor any of the other 1"),
        (["caption", "sira_cli"], 2, "sira: sira_cli: no pictures in this folder"),
        (["caption", ""], 2, "sira: a picture's path is empty"),
        (["ask", "README.md", "a <image> b", "-p", "demo"], 2, "sira: the prompt holds <image>"),
        (["caption", "-", "-"], 2, "sira: '-' (stdin) can be given once"),
        (["caption", "-", "-p", "demo", "-m", "x/y"], 2, "sira: give --preset or --model, not both"),
        (["caption", "-", "-p", "dema"], 2, "sira: no preset named 'dema'; did you mean `demo`?"),
        (["caption", "-", "-m", "./nowhere"], 1, "sira: model folder ./nowhere does not exist"),
        (["caption", "-"], 1, "sira: Qwen/Qwen2.5-VL-7B-Instruct (about 16.6 GB) is not in the cache"),
        (["eval", "pope", "--method", "sira", "README.md", "--images", "docs"], 2, "sira: README.md: "),
        (["presets", "check", "nowhere.yaml"], 2, "sira: nowhere.yaml: cannot be read"),
    ],
)
def test_errors_are_one_line_on_stderr_with_their_exit_code(sira, monkeypatch, args, code, message):
    monkeypatch.chdir(Path(__file__).parents[2])
    got, out, err = sira(*args)
    assert got == code
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    if code == 1 or message.startswith("sira:"):
        assert without_notes(err).count("\n") == 1


@pytest.mark.parametrize(
    "typed",
    [
        *("--alpha high: expected a number from 0", "--alpha -1: expected a number from 0"),
        *("--set alpha=high: expected a number from 0", "--set alpha=-1: expected a number from 0"),
        *("--temperature hot: expected a number from 0", "--top-p 0: expected a number above 0 to 1"),
        "--set generation.top_p=high: expected a number above 0 to 1",
        *("--dtype half: expected auto, float32, bfloat16 or float16", "--verify yes: expected flag or guide"),
        *("--limit 0: expected a whole number from 1", "--batch-size x: expected a whole number from 1, or auto"),
        *("--alpha: expected a value", "--shard 9/2: expected I/N with I from 1 to N, such as 1/8"),
        "--set foo=1: neither a key of presets nor a setting of methods; `sira presets show demo --all` lists them",
    ],
)
def test_a_wrong_value_is_named_with_its_option_and_what_was_expected(sira, typed):
    given = typed.partition(":")[0].split(" ")
    assert sira("caption", "x.png", "-p", "demo", *given) == (2, "", f"sira: {typed}\n")
    misspelt = "sira: no such option: --recursve; did you mean --recursive?\n"
    assert sira("caption", "x.png", "--recursve") == (2, "", misspelt)


def test_version_and_help(sira):
    assert sira("--version") == sira("version") == (0, f"sira {__version__}\n", "")
    assert sira("help") == sira("--help")
    assert sira("help", "presets", "show") == sira("presets", "show", "--help")
    assert sira("help", "captoin")[:2] == (2, "")
    for command in ([], ["caption"], ["ask"], ["demo"], ["presets"], ["presets", "new"]):
        code, out, err = sira(*command, "-h")
        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: {' '.join(['sira', *command])} ")


HEAVY = {"torch", "transformers", "numpy", "PIL", "huggingface_hub", "rich", "yaml", "filelock"}


@pytest.mark.parametrize("args", [["--help"], ["caption", "--help"], ["caption", "x.jpg", "--k", "three"]])
def test_help_and_usage_errors_import_nothing_heavy(args):
    """That keeps them instant on any machine; a clock in a test would not."""
    script = (
        f"import sys; sys.argv = {['sira', *args]!r}\n"
        "from sira_cli.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.endswith("heavy: []\n")


def test_presets_are_listed_by_family_also_own_ones_and_a_bad_one_does_not_hide_the_others(sira, tmp_path):
    (tmp_path / "presets").mkdir()
    for name, text in (("bad", "modle: x"), ("aaa", "model: a/b\n"), ("bbb", "model: a/b\nfamily: Gemma\n")):
        (tmp_path / f"presets/{name}.yaml").write_text(text)
    code, out, err = sira("presets", "list", home=tmp_path)
    assert (code, "bad.yaml: `model` is missing" in err, err.count("\n")) == (0, True, 2)
    header, *lines = out.splitlines()
    assert header.split() == ["preset", "K", "download", "memory", "model"]
    families = [line.strip() for line in lines if not line.startswith(" ")]
    assert families == ["bundled", "Gemma", "GLM", "InternVL", "LLaVA", "Molmo", "Qwen", "SmolVLM", "others"]
    rows = [line.split() for line in lines if line.startswith(" ")]
    assert sorted(row[0] for row in rows) == sorted({*presets.available(), "aaa", "bbb"} - {"bad"})
    assert (rows[0][:4], rows[1][0], rows[-1][0]) == (["demo", "7", "none", "bundled"], "bbb", "aaa")
    llava = next(row for row in rows if row[0] == "llava-1.5-7b")
    assert llava[:7] == ["llava-1.5-7b", "16", "14.1", "GB", "16", "GB", "llava-hf/llava-1.5-7b-hf"]


def test_a_preset_is_shown_and_checked_also_against_the_layers_of_a_model_that_is_here(sira, tmp_path, llava_folder):
    mine = tmp_path / "mine.yaml"
    mine.write_text(sira("presets", "show", "qwen2.5-vl-7b")[1])
    shown = f"{mine}: ok (qwen2.5-vl-7b: Qwen/Qwen2.5-VL-7B-Instruct, k = 14, alpha = 0.5)\n"
    assert sira("presets", "check", mine) == (0, shown, "")
    mine.write_text("model: x\nsira: {alpa: 1}\n")
    error = f"sira: {mine}: unknown key `sira.alpa`; did you mean `alpha`?\n"
    assert sira("presets", "check", mine) == (2, "", error)

    wrong, elsewhere = "is out of range: this model has L = 8 decoder layers", tmp_path / "elsewhere"
    fits = (("bundled", 7, True), ("bundled", 99, False), (llava_folder, 8, False), ("not/cached", 99, True))
    for model, k, fit in (*fits, (elsewhere, 99, True)):
        mine.write_text(f"model: {model}\nsira: {{k: {k}}}\n")
        code, out, err = sira("presets", "check", mine)
        assert (code, bool(out), f"sira: {mine}: k = {k} {wrong}" in err) == (
            (0, True, False) if fit else (2, False, True)
        )


@pytest.mark.parametrize("columns", [60, 100])
def test_the_list_of_presets_fits_a_narrow_terminal(columns, shown_on_terminal):
    rows = shown_on_terminal("presets", "list", COLUMNS=columns, TERM="xterm").splitlines()
    rows = [re.sub(r"\x1b\[\d*m", "", row) for row in rows if not row.startswith("sira: ")]  # headings are bold
    assert max(map(len, rows)) <= columns
    assert any("14.1 GB   16 GB" in row for row in rows)
    assert any("llava-hf/llava-1.5-7b-hf" in row for row in rows) == (columns == 100)


def test_presets_new_gives_a_preset_that_works(sira, tmp_path, llava_folder, photos):
    code, out, err = sira("presets", "new", llava_folder)
    assert code == 0
    assert "8 decoder layers, image token id" in err
    assert "sira: not saved: to use it as --preset" in err
    mine = tmp_path / "mine.yaml"
    mine.write_text(out)
    code, out, _ = sira("caption", photos["chelsea"], "-p", mine, "--max-new-tokens", 3, "--json")
    record = json.loads(out)
    assert (code, record["k"], record["preset"]) == (0, 4, "llava-1.5")


def test_the_installed_command_end_to_end(qwen_folder, photos, home):
    environment = {**os.environ, "SIRA_HOME": str(home)}
    run = installed(
        *("ask", photos["astronaut"], photos["rocket"], "Is there a person?", "-m", qwen_folder),
        *("--json", "--max-new-tokens", 5),
        env=environment,
    )
    assert (run.returncode, run.stderr) == (0, b"")  # no chatter of the libraries
    records = [json.loads(line) for line in run.stdout.decode().splitlines()]
    lvlm = load(qwen_folder, max_new_tokens=5)
    for record, name in zip(records, ("astronaut", "rocket"), strict=True):
        expected = lvlm.ask(photos[name], "Is there a person?").to_record()
        del expected["duration_ms"], record["duration_ms"]
        assert record == expected


@pytest.mark.slow
def test_a_terminal_gets_the_text_as_it_is_made(photos, home):
    pieces = on_terminal("caption", photos["chelsea"], "-p", "demo", "--max-new-tokens", 9, "-q", SIRA_HOME=home)
    text = b"".join(pieces).decode().replace("\r\n", "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIRA_HOME", str(home))
        assert text == load("demo", max_new_tokens=9).caption(photos["chelsea"]).text + "\n"
    assert len(pieces) > 1


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_message(photos, home):
    environment = {**os.environ, "SIRA_HOME": str(home)}
    command = f"{SIRA} caption {photos['chelsea']} {photos['coffee']} -p demo -q --json | true"
    run = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=120, check=True)
    assert run.stderr == b""


def test_only_who_shows_the_bundled_model_something_else_is_told_what_it_knows(sira, photos, tmp_path):
    scene = Path(__file__).parents[2] / "examples/scene-2900000.png"
    assert sira("caption", scene, *FAST)[2] == ""
    assert "knows drawn scenes only" in sira("caption", scene, photos["coffee"], *FAST)[2]
    with Image.open(photos["coffee"]) as photo:
        photo.convert("RGB").resize((384, 384)).save(tmp_path / "square.png")
    assert "knows drawn scenes only" in sira("caption", tmp_path / "square.png", *FAST)[2]
    (tmp_path / "square.png").write_bytes(b"no picture")
    assert "knows drawn scenes only" not in sira("caption", tmp_path / "square.png", *FAST)[2]


@pytest.mark.slow
def test_a_torchvision_of_another_torch(tmp_path, photos):
    """Its import fails, and that of transformers with it. PyPI's says this beside a torch of another build."""
    package, facts = tmp_path / "torchvision", tmp_path / "torchvision-0.28.0.dist-info"
    package.mkdir()
    facts.mkdir()
    (package / "__init__.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")\n')
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = installed("caption", photos["chelsea"], *FAST, env={**os.environ, "PYTHONPATH": path})
    assert (run.returncode, run.stdout) == (1, b"")
    expected = b"sira: the installed torchvision does not fit this torch: uninstall it, or reinstall both together\n"
    assert run.stderr == expected
