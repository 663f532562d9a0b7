"""What CONTRIBUTING.md promises: something new is one file to write, and one line to change (here: `setitem`)."""

from __future__ import annotations

import json
from pathlib import Path

from sira_cli.eval import cards
from sira_cli.eval.benchmark import Card
from sira_cli.methods import METHODS
from sira_cli.methods.greedy import Greedy
from sira_cli.pictures import sources
from sira_cli.pictures.picture import Source
from tests.support.eval.benchmarks import Made
from tests.support.eval.writing import lines

SCENE = Path(__file__).parents[1] / "examples" / "scene-2900000.png"
CAPTION = ("-p", "demo", "--max-new-tokens", 8, "--json")


def test_a_benchmark_is_a_file_and_a_card(sira, monkeypatch, tmp_path):
    words = ("made", "Made up", "here", "share", "made.json", "1 kB", "none", "nowhere", '{"id", "said"}')
    monkeypatch.setitem(cards.CARDS, "made", Card(*words, lambda folder, asking: Made(1)))
    assert "made: Made up (here)" in sira("eval")[1]
    (tmp_path / "0.jpg").write_bytes(SCENE.read_bytes())
    model = ("--images", tmp_path, "-p", "demo", "--against", "greedy", "--method", "greedy", "-q")
    said = lines(tmp_path / "said.jsonl", [{"id": "a/0", "said": "1"}, {"id": "b/0", "said": "no"}])
    for options, shares in ((model, [0, 0, 0]), (("--answers", said), [100, 0, 50])):
        code, out, err = sira("eval", "made", tmp_path, "--json", *options)
        assert code == 0, err
        assert [row["figures"]["share"]["value"] for row in json.loads(out)["rows"]] == shares


def test_a_method_is_a_file_and_a_row(sira, monkeypatch):
    monkeypatch.setitem(METHODS, "again", type("Again", (Greedy,), {"name": "again"})())
    code, out, _ = sira("caption", SCENE, *CAPTION, "--method", "again")
    greedy = json.loads(sira("caption", SCENE, *CAPTION, "--method", "greedy")[1])
    assert (code, json.loads(out)["text"], json.loads(out)["method"]) == (0, greedy["text"], "again")
    assert "again" in sira("caption", SCENE, *CAPTION, "--method", "nothing")[2]


def test_a_place_of_pictures_is_a_file_and_a_line(sira, monkeypatch):
    monkeypatch.setitem(sources.SCHEMES, "scene", type("Drawn", (Source,), {"read": lambda self: SCENE.read_bytes()}))
    code, out, _ = sira("caption", "scene://2900000", *CAPTION)
    file = json.loads(sira("caption", SCENE, *CAPTION)[1])
    assert (code, json.loads(out)["text"]) == (0, file["text"])
    assert json.loads(out)["file_name"] == "scene://2900000"
