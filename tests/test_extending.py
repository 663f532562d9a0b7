"""What CONTRIBUTING.md promises: something new is one file to write, and one line to change (here: `setitem`)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import render
from sira_cli.eval import cards
from sira_cli.eval.answers import Form, read_answer_rows
from sira_cli.eval.benchmark import Ask, Benchmark, Card, Counted, Part, Texts
from sira_cli.eval.statistics import ratio
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability
from sira_cli.methods.greedy import Greedy
from sira_cli.pictures import sources
from sira_cli.pictures.picture import Source

SCENE = Path(__file__).parents[1] / "examples" / "scene-2900000.png"


# --- a benchmark


class Dogs(Benchmark):
    """Pictures, and whether each shows a dog."""

    name = "dogs"

    def __init__(self, truth: Mapping[str, str]) -> None:
        self._truth = truth
        asks = tuple(Ask(picture, picture, "Is there a dog in the image?") for picture in truth)
        self.parts = (Part("dogs", "ask", asks, ("all",)),)

    def count(self, part: Part, texts: Texts) -> Iterator[Counted]:
        for picture, text in texts.items():
            right = text.lower().startswith(self._truth[picture])
            yield Counted(picture, picture, ("all",), right, {"right": right, "asked": 1})

    def figures(self, group: str, total: Mapping[str, float], *, smooth: bool = False) -> dict[str, float]:
        return {"accuracy": 100 * ratio(total["right"], total["asked"])}

    def read(self, paths: Sequence[Path]) -> dict[str, dict[str, str]]:
        form = Form("said", ("picture",))
        return {"dogs": {row["picture"]: row["text"] for path in paths for _, row in read_answer_rows(path, form)}}


def test_a_benchmark_is_a_file_and_a_card(sira, monkeypatch, tmp_path):
    truth = {"scene.png": "yes" if "dog" in held_out(2900000).objects else "no"}
    words = ("dogs", "Dogs", "here", "accuracy", "dogs.json", "1 kB", "none", "nowhere", '{"picture", "said"}')
    monkeypatch.setitem(cards.CARDS, "dogs", Card(*words, lambda folder, asking: Dogs(truth)))
    (tmp_path / "scene.png").write_bytes(SCENE.read_bytes())
    assert "dogs: Dogs (here)" in sira("eval")[1]
    command = ("eval", "dogs", tmp_path, "--json")
    model = ("--images", tmp_path, "-p", "demo", "--against", "greedy", "--method", "greedy", "-q")
    (tmp_path / "said.jsonl").write_text(json.dumps({"picture": "scene.png", "said": truth["scene.png"]}))
    for options, accuracies in ((model, (0, 100)), (("--answers", tmp_path / "said.jsonl"), (100,))):
        code, out, err = sira(*command, *options)
        assert code == 0, err
        (row,) = json.loads(out)["rows"]
        assert (row["figures"]["accuracy"]["value"] in accuracies, row["counts"]["asked"]) == (True, 1)


# --- a method


@dataclass(frozen=True)
class Again(Greedy):
    """Greedy by another name."""

    name = "again"
    abilities = frozenset({Ability.BATCHES})


def test_a_method_is_a_file_and_a_row(sira, monkeypatch):
    monkeypatch.setitem(METHODS, "again", Again())
    command = ("caption", SCENE, "-p", "demo", "--max-new-tokens", 8)
    expected = sira(*command, "--method", "greedy")
    assert expected[0] == 0
    assert sira(*command, "--method", "again") == expected
    assert "again" in sira(*command, "--method", "nothing")[2]


# --- a place where pictures live


@dataclass(frozen=True)
class Drawn(Source):
    """`scene://SEED`: a scene, drawn when it is asked for."""

    def read(self) -> bytes:
        file = io.BytesIO()
        render(held_out(int(self.location.removeprefix("scene://"))))[0].save(file, "png")
        return file.getvalue()


def test_a_place_of_pictures_is_a_file_and_a_line(sira, monkeypatch):
    monkeypatch.setitem(sources.SCHEMES, "scene", Drawn)
    command = ("-p", "demo", "--max-new-tokens", 8, "--json")
    code, out, _ = sira("caption", "scene://2900000", *command)
    file = json.loads(sira("caption", SCENE, *command)[1])
    assert (code, json.loads(out)["text"]) == (0, file["text"])
    assert json.loads(out)["file_name"] == "scene://2900000"
