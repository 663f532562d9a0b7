"""A file that exists and holds something else is not overwritten unless --overwrite says so, whoever writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sira_cli.demo.export import export
from sira_cli.demo.questions import held_out
from tests.support.traces import make_trace, write_traces

EXAMPLE = sorted(Path(__file__).parents[1].glob("examples/*.png"))[0]
TRACE = ("trace", EXAMPLE, "-p", "demo", "--max-new-tokens", 2)
# What writes a file, and the file.
COMMANDS = {
    "report": (("report", "trace.jsonl", "-o", "out.html"), "out.html"),
    "trace": ((*TRACE, "-o", "out.jsonl"), "out.jsonl"),
    "full logits": ((*TRACE, "--full-logits", "out.safetensors"), "out.safetensors"),
    "drift": (("drift", EXAMPLE, "-p", "demo", "-o", "out.json"), "out.json"),
    "drift figure": (("drift", EXAMPLE, "-p", "demo", "--plot", "out.png"), "out.png"),
    "bench": (
        ("bench", "-p", "demo", "--method", "sira", "--max-new-tokens", 2, "--runs", 1, "-o", "out.json"),
        "out.json",
    ),
    "export": (("demo", "--export", "scenes", "--limit", 1), "scenes/coco/ids.txt"),
    "sweep figure": (("sweep", "-p", "demo", "--limit", 1, "--k", 7, "--alpha", 1, "--plot", "out.png"), "out.png"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_other_content_stays(sira, tmp_path, monkeypatch, name):
    command, file = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    write_traces(tmp_path / "trace.jsonl", make_trace())  # for the report
    with monkeypatch.context() as patch:
        patch.setattr("sira_cli.models.loading.load", None)  # it is known before
        code, out, err = sira(*command)
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert f"{file}: exists" in err
    assert "or --overwrite" in err
    if name in ("report", "export"):
        assert sira(*command, "--overwrite")[0] == 0
        assert path.read_text() != "mine"
        before = path.stat().st_mtime_ns
        assert sira(*command)[0] == 0  # the same content
        assert path.stat().st_mtime_ns == before


def test_an_export_of_other_scenes_leaves_an_earlier_one_as_it_is(sira, tmp_path):
    folder = tmp_path / "scenes"
    assert sira("demo", "--export", folder, "--limit", 1)[0] == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, _, err = sira("demo", "--export", folder, "--limit", 2)
    assert (code, "ids.txt: exists with other content: give another path, or --overwrite" in err) == (2, True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert sira("demo", "--export", folder, "--limit", 2, "--overwrite")[0] == 0
    assert len(list(folder.glob("images/*"))) == 2


def test_a_report_of_another_benchmark_stays(sira, tmp_path):
    scenes, answers = export([held_out(0)], tmp_path / "scenes"), tmp_path / "eval"
    questions = ("eval", "pope", *scenes.pope.iterdir())
    run = (*questions, "--images", scenes.images, "-p", "demo", "--max-new-tokens", 1, "--no-controls", "-o", answers)
    assert sira(*run)[0] == 0
    (answers / "report.json").write_text('{"benchmark": "chair"}')
    code, out, err = sira(*questions, "--answers", answers, "-o", answers)
    assert (code, out) == (2, "")
    assert "eval/report.json holds the report of chair: give another folder" in err
