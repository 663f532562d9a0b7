"""A file of other content is only overwritten if --overwrite says so, and not before its replacement is complete."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import typer

from sira_cli.cli import app
from sira_cli.demo.export import export
from sira_cli.demo.questions import held_out
from tests.support.eval.writing import lines, save
from tests.support.traces import make_trace, write_traces

EXAMPLE = sorted(Path(__file__).parents[1].glob("examples/*.png"))[0]
TRACE = ("trace", EXAMPLE, "-p", "demo", "--max-new-tokens", 2)
DEMO, SCENES = ("-p", "demo"), ("--scenes", "--limit", 2)
DRIFT, SWEEP = ("drift", EXAMPLE, *DEMO), ("sweep", *DEMO, "--limit", 1, "--k", 7, "--alpha", 1)
POPE = ("pope", "scenes/pope/scenes_pope_adversarial.json", "--images", "scenes/images", "--against", "sira")
BENCH = ("bench", *DEMO, "--method", "sira", "--max-new-tokens", 2, "--runs", 1, "-o", "out.json")
# What writes a file, and the file: the first decode before that, and refuse a file that is in their way beforehand.
BOTH = {
    "trace": ((*TRACE, "-o", "out.jsonl"), "out.jsonl"),
    "full logits": ((*TRACE, "--full-logits", "out.safetensors"), "out.safetensors"),
    "drift": ((*DRIFT, "-o", "out.json"), "out.json"),
    "drift figure": ((*DRIFT, "--plot", "out.png"), "out.png"),
    "bench": (BENCH, "out.json"),
    "sweep figure": ((*SWEEP, "--plot", "out.png"), "out.png"),
}
COMMANDS = BOTH | {
    "report": (("report", "trace.jsonl", "-o", "out.html"), "out.html"),
    "table": (("export", "captions.jsonl", "--csv", "out.csv"), "out.csv"),
    "export": (("demo", "--export", "scenes", "--limit", 1), "scenes/coco/ids.txt"),
}
DECODING = BOTH | {
    "trace to a folder": ((*TRACE, "--output-dir", "."), f"{EXAMPLE.stem}.trace.jsonl"),
    "caption": (("caption", EXAMPLE, *DEMO, "-o", "out.jsonl"), "out.jsonl"),
    "caption text": (("caption", EXAMPLE, *DEMO, "--output-dir", "."), f"{EXAMPLE.stem}.txt"),
    "ask": (("ask", EXAMPLE, "A dog?", *DEMO, "-o", "out.jsonl"), "out.jsonl"),
    "check": (("check", "captions.jsonl", *DEMO, "-o", "out.jsonl"), "out.jsonl"),
    "eval": (("eval", *POPE, *DEMO, "-o", "."), "sira-pope.jsonl"),
    "sweep": ((*SWEEP, "-o", "out.jsonl"), "out.jsonl"),
    "sweep preset": ((*SWEEP, "--write-preset", "out.yaml"), "out.yaml"),
    "support": (("calibrate", "support", *DEMO, *SCENES, "-o", "out.json"), "out.json"),
    "ict": (("calibrate", "ict", *DEMO, *SCENES, "-o", "out.safetensors"), "out.safetensors"),
    "maskcd": (("calibrate", "maskcd", *DEMO, "--scenes", "-o", "out.safetensors"), "out.safetensors"),
}


def test_all_commands_that_overwrite_are_here():
    def commands(group, *names):
        for name, command in getattr(group, "commands", {}).items():
            yield from commands(command, *names, name)
        if any("--overwrite" in parameter.opts for parameter in group.params):
            yield names[: 1 + (names[0] == "calibrate")]

    here = {command[: 1 + (command[0] == "calibrate")] for command, _ in (COMMANDS | DECODING).values()}
    assert here == set(commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    export([held_out(0)], folder)
    return folder


@pytest.mark.parametrize("name", DECODING)
def test_nothing_is_removed_before_its_replacement_is_complete(sira, tmp_path, monkeypatch, scenes, name):
    command, file = DECODING[name]
    monkeypatch.chdir(tmp_path)
    Path("scenes").symlink_to(scenes)
    lines(Path("captions.jsonl"), [{"file_name": str(EXAMPLE), "text": "A dog."}])
    save(Path(file), "mine")
    wrong = ["-m" if part == "-p" else "./nowhere" if part == "demo" else part for part in command]
    if command[0] == "sweep":  # on drawn scenes it takes the bundled model alone
        wrong = [*command, "--k", 99]
    code, _, err = sira(*wrong, "--overwrite")
    assert (code > 0, "nowhere" in err or "99" in err, Path(file).read_text()) == (True, True, "mine"), err
    with monkeypatch.context() as patch:
        patch.setattr("torch.nn.Embedding.forward", Mock(side_effect=KeyboardInterrupt))
        code, _, err = sira(*command, "--overwrite")
    assert code == 130, err
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"mine")
    assert kept.name == Path(file).name or f"{file}: the run that replaces it is not complete" in err
    if name in ("caption", "trace", "sweep"):
        kept.replace(file)
        assert sira(*command, "--overwrite")[0] == 0
        assert not [path for path in tmp_path.rglob("*") if "kept" in path.name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_other_content_stays(sira, tmp_path, monkeypatch, name):
    command, file = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / file, "mine")
    write_traces(tmp_path / "trace.jsonl", make_trace())  # for the report
    with monkeypatch.context() as patch:
        patch.setattr("sira_cli.run.lvlm.load", None)  # it is known before
        code, out, err = sira(*command)
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert (f"{file}: line 1 is not one of a trace" if name == "trace" else f"{file}: exists") in err
    assert "or --overwrite" in err
    if name in ("report", "export"):
        assert sira(*command, "--overwrite")[0] == 0
        assert path.read_text() != "mine"
        before = path.stat().st_mtime_ns
        assert sira(*command)[0] == 0  # the same content
        assert path.stat().st_mtime_ns == before


def test_a_report_of_another_benchmark_stays(sira, tmp_path, monkeypatch, scenes):
    monkeypatch.chdir(tmp_path)
    Path("scenes").symlink_to(scenes)
    command = ("eval", *POPE, *DEMO, "--max-new-tokens", 1, "-o", "answers")
    assert sira(*command)[0] == 0
    save(Path("answers/report.json"), {"benchmark": "chair"})
    code, out, err = sira("eval", *POPE[:2], "--answers", "answers", "-o", "answers")
    assert (code, out, "answers/report.json holds the report of chair: give another folder" in err) == (2, "", True)
