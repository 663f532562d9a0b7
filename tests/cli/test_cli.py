"""The command line: stdout, stderr, exit codes, interrupts; of every command the help, and completion in the shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sira_cli import __version__, interrupts
from sira_cli.cli import app
from sira_cli.cli.options import setting as set_option
from sira_cli.cli.terminal.strip import print_words
from sira_cli.methods import METHODS
from sira_cli.models import presets
from sira_cli.run.lvlm import load
from tests.support.helpers import SIRA, imported, installed, on_terminal
from tests.support.shards import EXAMPLES

FAST = ("--max-new-tokens", 3, "--preset", "demo")


def test_caption_prints_texts_and_nothing_else(sira, monkeypatch):
    """Several pictures are named, and `-` is one; $SIRA_PRESET is the preset."""
    lvlm = load("demo", max_new_tokens=3)
    code, out, err = sira("caption", EXAMPLES[0], *FAST)
    assert code == 0
    assert out == lvlm.caption(EXAMPLES[0]).text + "\n"
    assert err == ""
    monkeypatch.setenv("SIRA_PRESET", "demo")
    code, out, _ = sira("caption", *EXAMPLES[:2], *FAST[:2])
    assert (code, out.splitlines()) == (0, [f"{path}: {lvlm.caption(path).text}" for path in EXAMPLES[:2]])
    code, out, _ = sira("caption", "-", *FAST, "--json", stdin=EXAMPLES[2].read_bytes())
    record = json.loads(out)
    assert code == 0
    assert record["file_name"] == "-"
    assert record["text"] == lvlm.caption(EXAMPLES[2]).text
    code, _, err = sira("caption", "-", *FAST, stdin=b"no picture")
    assert code == 3
    assert "sira: stdin: is not a picture that Pillow can read" in err


def test_one_bad_picture_does_not_end_the_run(sira, tmp_path):
    """Records of good and failed pictures have the same keys and types."""
    bad, missing, locked = (tmp_path / f"{name}.jpg" for name in ("bad", "missing", "locked"))
    bad.write_bytes(b"\xff\xd8 not really")
    locked.symlink_to("/proc/self/mem")  # not even root may have the memory at address 0
    code, out, err = sira("caption", EXAMPLES[0], bad, missing, locked, EXAMPLES[1], *FAST, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, [record["status"] for record in records]) == (3, ["ok", *["error"] * 3, "ok"])
    kinds = [{key: type(value) for key, value in record.items()} for record in records]
    assert kinds == [kinds[0]] * 5
    told = [record["error"] for record in records[1:4]]
    assert told[1:] == [f"{missing}: no such file", f"{locked}: cannot be read: Input/output error"]
    assert err.splitlines()[1:] == [*(f"sira: {each}" for each in told), "sira: 3 of 5 pictures failed"]


def test_records_go_into_a_folder_that_is_made_and_name_the_next_steps(sira, tmp_path):
    records, checks = tmp_path / "new" / "captions.jsonl", tmp_path / "new" / "checks.jsonl"
    code, out, err = sira("caption", *EXAMPLES[:2], *FAST, "-o", records)
    assert code == 0
    assert out == ""
    assert len(records.read_text(encoding="utf-8").splitlines()) == 2
    done, look, check = err.splitlines()
    assert re.fullmatch(rf"sira: 2 of 2 pictures done in .* \(.*/s after loading\): {records}", done)
    assert look == f"sira: look at them: sira report {records}"
    assert check == f"sira: which objects are to doubt: sira check {records} -p demo -o {checks}"
    code, _, err = sira("caption", *EXAMPLES[:2], *FAST, "-o", records)
    assert (code, err) == (0, f"sira: 2 of 2 pictures were done before: {records}\n")
    code, _, err = sira("caption", *EXAMPLES[:2], *FAST, "-o", records, "--verify", "flag")
    assert code == 2
    assert f"look at the captions that it holds with `sira check {records} -o {checks}`, " in err
    words = check.partition(": sira ")[2]
    code, out, _ = sira(*shlex.split(words))
    assert code == 0
    assert out.splitlines()[-1][:10] == "2 captions"
    assert checks.exists()


@pytest.mark.parametrize("more", [("--verify", "flag"), ("--schema", "labels")])
def test_only_captions_without_a_second_look_name_one(sira, tmp_path, more):
    _, _, err = sira("caption", EXAMPLES[0], *FAST, "-o", tmp_path / "a.jsonl", *more)
    assert "sira check" not in err


def test_a_run_that_decoded_nothing_has_no_rate_and_no_page(sira, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(b"\xff\xd8 not really")
    code, _, err = sira("caption", tmp_path, *FAST, "-o", tmp_path / "a.jsonl")
    done = f"sira: 0 of 2 pictures done, 2 failed (--retry-errors tries them again): {tmp_path / 'a.jsonl'}"
    assert (code, err.splitlines()[-1]) == (3, done)


def test_an_unforeseen_error_is_one_record_too(sira, monkeypatch):
    monkeypatch.setattr("sira_cli.run.lvlm.Lvlm.generate", None)  # TypeError
    code, out, err = sira("caption", EXAMPLES[0], *FAST, "--json")
    error = json.loads(out)["error"]
    assert error.startswith(f"{EXAMPLES[0]}: TypeError: ")
    assert (code, err) == (3, f"sira: {error}\n")
    assert "Traceback (most recent call last)" in sira("caption", EXAMPLES[0], *FAST, "-vv")[2]


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


def test_version_and_help(sira):
    assert sira("--version") == sira("version") == (0, f"sira {__version__}\n", "")
    assert sira("help") == sira("--help")
    assert sira("help", "presets", "show") == sira("presets", "show", "-h")
    assert sira("help", "captoin")[:2] == (2, "")
    assert sira("presets", "-h")[1].startswith("Usage: sira presets ")


HEAVY = {"torch", "transformers", "numpy", "PIL", "huggingface_hub", "rich", "yaml", "filelock"}


@pytest.mark.parametrize("args", [["--help"], ["caption", "--help"], ["caption", "x.jpg", "--k", "three"]])
def test_help_and_usage_errors_import_nothing_heavy(args):
    """That keeps them instant on any machine; a clock in a test would not."""
    assert not HEAVY & imported(*args)[1]


def test_a_bad_preset_does_not_hide_the_others_in_the_list(sira, tmp_path):
    (tmp_path / "presets").mkdir()
    for name, text in (("bad", "modle: x"), ("aaa", "model: a/b\n"), ("bbb", "model: a/b\nfamily: Gemma\n")):
        (tmp_path / f"presets/{name}.yaml").write_text(text)
    code, out, err = sira("presets", "list", home=tmp_path)
    assert code == 0
    assert "bad.yaml: `model` is missing" in err
    assert err.count("\n") == 2
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:] if line.startswith(" ")}
    assert {*rows} == {*presets.available(), "aaa", "bbb"} - {"bad"}
    assert rows["llava-1.5-7b"][1:7] == ["16", "14.1", "GB", "16", "GB", "llava-hf/llava-1.5-7b-hf"]


def test_a_preset_is_checked_against_the_layers_of_a_model_that_is_here(sira, tmp_path, llava_folder):
    mine = tmp_path / "mine.yaml"
    mine.write_text(sira("presets", "show", "qwen2.5-vl-7b")[1])
    shown = f"{mine}: ok (qwen2.5-vl-7b: Qwen/Qwen2.5-VL-7B-Instruct, k = 14, alpha = 0.5)\n"
    assert sira("presets", "check", mine) == (0, shown, "")
    mine.write_text("model: x\nsira: {alpa: 1}\n")
    error = f"sira: {mine}: unknown key `sira.alpa`; did you mean `alpha`?\n"
    assert sira("presets", "check", mine) == (2, "", error)
    for model, k, code in (("bundled", 7, 0), ("bundled", 99, 2), (llava_folder, 8, 2), ("not/cached", 99, 0)):
        mine.write_text(f"model: {model}\nsira: {{k: {k}}}\n")
        found, out, err = sira("presets", "check", mine)
        refused = f"sira: {mine}: k = {k} is out of range: this model has L = 8 decoder layers" in err
        assert found == code
        assert bool(out) == (code == 0)
        assert refused == (code == 2)


def test_presets_new_gives_a_preset_that_works(sira, tmp_path, llava_folder, photos):
    code, out, err = sira("presets", "new", llava_folder)
    assert code == 0
    assert "8 decoder layers, image token id" in err
    assert "not saved" not in err  # it goes into a file
    mine = tmp_path / "mine.yaml"
    mine.write_text(out)
    code, out, _ = sira("caption", photos["chelsea"], "-p", mine, "--max-new-tokens", 3, "--json")
    assert code == 0
    assert json.loads(out)["k"] == 4
    assert json.loads(out)["preset"] == "llava-1.5"


def test_the_installed_command_end_to_end(qwen_folder, photos, home):
    command = ("ask", photos["astronaut"], photos["rocket"], "Is there a person?", "-m", qwen_folder)
    environment = {**os.environ, "SIRA_HOME": str(home)}
    run = installed(*command, "--json", "--max-new-tokens", 5, env=environment)
    assert (run.returncode, run.stderr) == (0, b"")  # no chatter of the libraries
    lvlm = load(qwen_folder, max_new_tokens=5)
    for line, name in zip(run.stdout.decode().splitlines(), ("astronaut", "rocket"), strict=True):
        expected = lvlm.ask(photos[name], "Is there a person?").to_record()
        assert json.loads(line) | {"duration_ms": 0} == expected | {"duration_ms": 0}


@pytest.mark.slow
def test_a_terminal_gets_the_text_as_it_is_decoded(photos, home, tmp_path):
    command = ("caption", photos["chelsea"], "-p", "demo", "--max-new-tokens", 9)
    pieces = on_terminal(*command, "-q", SIRA_HOME=home)
    expected = load("demo", max_new_tokens=9).caption(photos["chelsea"]).text + "\n"
    assert b"".join(pieces).decode().replace("\r\n", "\n") == expected
    assert len(pieces) > 1
    assert b"1/1" in b"".join(on_terminal(*command, "-o", tmp_path / "of.jsonl", SIRA_HOME=home))


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_message(photos, home):
    command = f"{SIRA} caption {photos['chelsea']} {photos['coffee']} -p demo -q --json | true"
    environment = {**os.environ, "SIRA_HOME": str(home)}
    run = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=120, check=True)
    assert run.stderr == b""


def test_a_photograph_for_the_bundled_model_is_noted(sira, photos):
    assert sira("caption", EXAMPLES[0], *FAST)[2] == ""
    assert "knows drawn scenes only" in sira("caption", EXAMPLES[0], photos["coffee"], *FAST)[2]


def test_words_to_doubt_are_listed_below_the_text(capsys):
    """A word of little grounding is doubted; function words are not, whatever their numbers."""
    text, grounding = "There is a laptop and a dog.", {"There": 0.1, "a": 0.1, "laptop": 0.15, "dog.": 0.97}
    words = [{"word": word, "start": text.index(word), "grounding": each} for word, each in grounding.items()]
    print_words(text, words, legend=False)
    assert capsys.readouterr().out.splitlines() == [text, "doubt first: laptop 0.15"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("args", [["presets", "show", "demo"], ["--version"]])
def test_a_full_disk_at_stdout_is_said(args):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "sira_cli", *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "sira: stdout cannot be written: No space left on device\n")


# --- ended from outside, whenever: exit code 130, and no traceback


def ran(script: str) -> tuple[int, str]:
    """Run a script that is not a job of the background, which would inherit an ignored SIGINT."""
    command = [sys.executable, "-c", script]
    allow = lambda: [signal.signal(number, signal.SIG_DFL) for number in interrupts.SIGNALS]  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=allow, timeout=300, check=False)
    return done.returncode, done.stderr


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ("transformers", "PIL.Image", "torch.nn")]


@pytest.mark.parametrize("module", ["typer", "sira_cli.cli.caption", *SLOW])
def test_while_modules_are_loaded(module):
    """The signal comes when a module is looked for."""
    script = f"""
import os, signal, sys
class Stop:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
sys.argv = ["sira", "caption", {str(EXAMPLES[0])!r}, "-p", "demo", "--max-new-tokens", "2"]
from sira_cli.__main__ import main
main()
"""
    assert ran(script) == (130, "")


KILL, LOOP = "os.kill(os.getpid(), {})", "progress = Progress('pieces', 3, silent=True)\n    progress.advance()"
CAUGHT = "    try:\n        {}\n        sys.stdin.read()\n    except KeyboardInterrupt:\n        {}"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        *((CAUGHT.format(KILL.format(number), "pass"), 130) for number in (1, 2, 15)),  # SIGHUP, SIGINT, SIGTERM
        (CAUGHT.format(KILL.format(2), "raise ImportError('half loaded')"), 130),
        (CAUGHT.format(KILL.format(2), "sys.exit(0)"), 130),
        (f"    atexit.register(lambda: ({KILL.format(2)}, print('went on', file=sys.stderr)))", 130),
        (f"    {LOOP}\n{CAUGHT.format(KILL.format(2), 'progress.advance()')}\n    os._exit(0)", 130),
        (f"    {KILL.format(1)}", 0),  # ignored, as under nohup
    ],
)
def test_an_interrupt_within_a_command(body, code):
    script = f"""
import atexit, os, signal, sys
{"signal.signal(signal.SIGHUP, signal.SIG_IGN)" * (code == 0)}
import sira_cli.cli
from sira_cli.cli.terminal.console import Progress
@sira_cli.cli.app.command()
def odd() -> None:
{body}
sys.argv = ["sira", "odd"]
from sira_cli.__main__ import main
main()
"""
    assert ran(script) == (code, "")


# --- every command: help whose examples work, options in groups, completion in the shell

MOST_OPTIONS = 344  # in all --help together, those of groups of commands included
ROOT = typer.main.get_command(app)


def commands(group, path=()):
    """Every command with its path, subcommands included."""
    for name, command in group.commands.items():
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]


ALL = dict(commands(ROOT))


@pytest.fixture
def completed(sira, monkeypatch):
    """What a shell is told about a line that is being typed."""

    def ask(*typed: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setenv("_SIRA_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", " ".join(["sira", *typed]))
            patch.setenv("COMP_CWORD", str(len(typed)))
            return sira()[1].split()

    return ask


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_every_command_s_help_ends_with_examples_that_can_be_typed(sira, path):
    code, out, _ = sira(*path, "--help")
    body, examples = out.split("\nExamples:\n")
    assert (code, re.search(r"<(int|float|str|path|list|int range|float range)\b", body)) == (0, None)
    lines = [line.strip() for line in examples.strip().splitlines()]
    assert lines == [line.strip() for line in ALL[path].epilog.strip().splitlines()] != []
    for line in lines:
        assert line.startswith("sira " + " ".join(path))
        words = shlex.split(re.split(" > | && ", line)[0])[1 + len(path) :]
        with ALL[path].make_context(path[-1], words):  # raises what is no option or has a wrong value
            pass


def test_commands_and_options_stand_in_groups(sira):
    _, out, _ = sira("caption", "--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE)
    groups = ["Text", "Model", "Decoding", "Second look", "Pictures", "Speed", "Output"]
    assert titles == ["Arguments", *groups, "Examples"]
    assert max(len(out.splitlines()), *map(len, out.splitlines())) <= 80
    _, out, _ = sira("--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE)
    assert titles == ["Options", "Caption and check", "Look and serve", "Research"]
    assert {line.split()[0] for line in out.splitlines() if re.match(r"  [a-z]+  ", line)} == {path[0] for path in ALL}


def test_options_are_few():
    """A command that needs another one takes it by --set, or is asked whether an old one pays."""
    every = [each for command in [ROOT, *ALL.values()] for each in command.params]
    assert sum(each.param_type_name == "option" and not each.hidden for each in every) <= MOST_OPTIONS


def test_set_takes_what_has_no_option_of_its_own(sira, completed):
    """Every key and setting is completed and shown, and a former option is answered with its new spelling."""
    lines = dict(line.split("=", 1) for line in sira("presets", "show", "demo", "--all")[1].splitlines())
    assert list(lines) == set_option.keys()
    assert lines["sira.k"] == "7"
    assert lines["generation.think"] == "false"
    assert lines["vcd.noise_step"] == "500"
    for name in ("caption", "bench", "serve"):
        code, _, err = sira(name, "--no-repeat-ngram-size", "3")
        wanted = "no such option: --no-repeat-ngram-size; use --set generation.no_repeat_ngram_size=VALUE\n"
        assert code == 2
        assert wanted in err
    assert completed("caption", "--set", "vcd.n") == ["vcd.noise_step="]


def test_the_shell_completes_commands_options_presets_and_methods(completed):
    assert (completed("cap"), completed("caption", "--retry")) == (["caption"], ["--retry-errors"])
    assert completed("caption", "--method", "greedy") == [name for name in METHODS if name.startswith("greedy")]
    assert set(completed("caption", "-p", "llava")) == {name for name in presets.available() if name[:5] == "llava"}
