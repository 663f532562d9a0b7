"""`python -m tools.throughput`: every contestant decodes what it should, and the figures are those of the clock."""

from __future__ import annotations

import itertools
import json
import sys
from statistics import mean, stdev

import pytest

from sira_cli import load
from sira_cli.demo.questions import validation_pictures
from sira_cli.errors import SiraError
from tools import throughput as module
from tools.throughput import CONTESTANTS, ThroughputReport, drawn_lengths, own_lengths, throughput


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=24)


@pytest.fixture(scope="module")
def images():
    return [scene.open().image for scene in itertools.islice(validation_pictures(), 5)]


def test_drawn_lengths_vary_as_captions_do():
    lengths = drawn_lengths(4000, 512)
    assert lengths == drawn_lengths(4000, 512)
    assert mean(lengths) == pytest.approx(120, abs=3)
    assert stdev(lengths) == pytest.approx(45, abs=3)
    assert min(lengths) >= 8
    short = drawn_lengths(4000, 105)  # half of 210
    assert max(short) == 105
    assert mean(short) == pytest.approx(60, abs=2)
    assert stdev(short) == pytest.approx(22, abs=2)


@pytest.mark.slow
def test_own_lengths_are_those_of_single_texts(images):
    lvlm = load("demo", max_new_tokens=60)
    alone = [lvlm.answer(lvlm.prepare([image], [lvlm.preset.prompts.caption]))[0].output_tokens for image in images]
    assert own_lengths(lvlm, images, 2) == alone
    assert len(set(alone)) > 1


@pytest.mark.slow
def test_every_contestant_takes_turns_and_speeds_are_pictures_by_seconds(demo, images, monkeypatch):
    """A clock that every contestant moves by seconds of its own: 1, 2, 4 and 8, and in the second round twice that."""
    turns, now = [], [0.0]

    def decoding(decode):
        def timed(lvlm, batches, lengths, batch_size):
            turn = (lvlm.method, decode is refilled)
            place = [(each.method, each.refilled) for each in CONTESTANTS].index(turn)
            now[0] += 2**place * max(1, len(turns) // 4)
            turns.append(turn)
            return decode(lvlm, batches, lengths, batch_size)

        return timed

    static, refilled = module._static, module._refilled
    monkeypatch.setattr(module, "_static", decoding(static))
    monkeypatch.setattr(module, "_refilled", decoding(refilled))
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    report = throughput(demo, images, batch_size=4, runs=2, drawn=True)
    assert turns == [("sira", False), ("sira", True), ("greedy", False), ("greedy", True)] * 3
    assert [row.pictures_per_second.high for row in report.rows] == [5 / 1, 5 / 2, 5 / 4, 5 / 8]
    assert [row.pictures_per_second.low for row in report.rows] == [5 / 2, 5 / 4, 5 / 8, 5 / 16]
    assert [row.by_static.median for row in report.rows] == [1, 1 / 2, 1 / 4, 1 / 8]
    assert [row.by_greedy.median for row in report.rows] == [4, 2, 1, 1 / 2]
    assert report.lengths == tuple(drawn_lengths(5, 24))
    assert json.loads(report.to_json())["schema"] == "sira.throughput/1"
    assert ThroughputReport.from_json(report.to_json()) == report


def test_texts_of_other_lengths_are_noticed(demo, images, monkeypatch):
    monkeypatch.setattr(module, "_refilled", lambda *given: [1] * 5)
    with pytest.raises(SiraError, match="sira, refilled slots: the texts have 5 tokens, expected"):
        throughput(demo, images, batch_size=4, runs=1, drawn=True)


def run(monkeypatch, file, *given):
    """Run the command line, and return its record."""
    monkeypatch.setattr(sys, "argv", ["throughput", *map(str, given), "--runs", "1", "-o", str(file)])
    module.main()
    return json.loads(file.read_text())


def test_the_command(tmp_path, capsys, monkeypatch):
    given = ["-p", "demo", "-b", 2, "--pictures", 3, "--max-new-tokens", 24]
    record = run(monkeypatch, tmp_path / "throughput.json", *given)
    out = capsys.readouterr().out
    assert (record["batch_size"], record["pictures"], record["drawn"]) == (2, 3, False)
    assert "as the model writes them" in out
    assert max(record["lengths"]) == 24
    assert [row["name"] for row in record["rows"]] == [str(contestant) for contestant in CONTESTANTS]
    assert "greedy, refilled slots" in out
    assert "3 pictures, 2 at once" in out


@pytest.mark.parametrize("family", ["Qwen3.5", "Gemma 4 E"])  # states, shared keys
def test_models_without_columns_in_every_layer_see_noise_and_decode_drawn_lengths(
    family, checkpoint_of, tmp_path, monkeypatch
):
    given = ["-p", checkpoint_of(family), "--pictures", 4, "-b", 2, "--max-new-tokens", 9, "--image-tokens", 20]
    record = run(monkeypatch, tmp_path / "throughput.json", *given)
    assert [row["name"] for row in record["rows"]] == [str(each) for each in CONTESTANTS]
    assert (record["drawn"], record["lengths"]) == (True, drawn_lengths(4, 9))
    with pytest.raises(SiraError, match="cannot be used with"):
        run(monkeypatch, tmp_path / "throughput.json", *given, "--compile")
