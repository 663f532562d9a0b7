"""`sira check`: a second look at captions that exist already, resumable."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pyarrow
import pytest
from pyarrow import parquet

from sira_cli import load
from sira_cli.cli.terminal.output import MORE_WORDS
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import DataError
from sira_cli.look.claims import Verify
from sira_cli.pictures.captions import find_captions
from sira_cli.run.check import EMPTY, NOT_RECOGNISED, Check
from sira_cli.run.on_ray import Captioner, Row
from sira_cli.run.output import Files, Output
from sira_cli.run.run import Local, run
from tests.support.shards import write_tar

FIRST = VALIDATION_SEEDS[500_000]  # a bicycle, tables, a bowl, a clock
TEXTS = {
    "0": "A dog stands there. There is a bowl beside a blue bicycle.",
    "1": "There is a house. A horse stands in front of it.",
    "2": "A boat with an elephant.",
    "3": "Ein Lastwagen und zwei St\u00fchle.",
}


@pytest.fixture(scope="module")
def demo():
    return load("demo")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    for number in range(5):
        render(held_out(FIRST + number))[0].save(folder / f"{number}.png")
    return folder


@pytest.fixture
def scenes(drawn, tmp_path):
    """Scenes with captions: one without a caption, one whose picture is broken, one whose caption is empty."""
    folder = tmp_path / "scenes"
    shutil.copytree(drawn, folder)
    shutil.copy(folder / "4.png", folder / "5.png")
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
    (folder / "5.txt").write_text("")
    (folder / "6.png").write_bytes(b"no picture")
    (folder / "6.txt").write_text("A dog.")
    return folder


def records(path):
    return {(record := json.loads(line))["file_name"]: record for line in path.read_text(encoding="utf-8").splitlines()}


def events(lvlm, folder, output, **settings):
    verify, fail_fast = settings.pop("verify", None), settings.pop("fail_fast", False)
    pictures, engine = find_captions(folder).pictures, Local(lvlm)
    task = Check.under(lvlm.preset, verify).about(pictures)
    with Output(task, pictures, Files(output, **settings)) as written:
        return list(run(task, pictures, engine, written, fail_fast=fail_fast))[1:]


def test_records_hold_what_the_library_says_of_the_captions(sira, demo, scenes, tmp_path):
    command = ["check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl"]
    code, out, err = sira(*command, "-b", "3")
    assert code == 3
    found = records(tmp_path / "a.jsonl")
    assert [*found] == [f"scenes/{name}.png" for name in "012356"]  # 4 has no caption
    for name, record in found.items():
        text = (scenes / name[7:]).with_suffix(".txt").read_text(encoding="utf-8").strip()
        assert (record["schema"], record["text"], record["preset"]) == ("sira.check/1", text, "demo")
        assert record["prompt"] == record["verify"]["question"] == "Is there {thing} in the image?"
        if record["status"] == "error":
            continue
        check = demo.check(scenes / name[7:], text)
        named = [(claim.thing, [list(span) for span in claim.spans]) for claim in check.objects]
        assert [(claim["thing"], claim["spans"]) for claim in record["objects"]] == named
        supports = [claim["support"] for claim in record["objects"]]
        assert supports == pytest.approx([claim.support for claim in check.objects], abs=1e-4)
        assert record["support"] == pytest.approx(check.support, abs=1e-4)
    remarks = {name[7]: record.pop("warnings")[0] for name, record in found.items() if "warnings" in record}
    assert remarks == {"3": NOT_RECOGNISED, "5": EMPTY}
    assert (found["scenes/3.png"]["objects"], found["scenes/3.png"]["support"]) == ([], 1.0)
    keys = {tuple((key, type(value)) for key, value in record.items()) for record in found.values()}
    assert len(keys) == 1  # the failed one among them
    failed = found["scenes/6.png"]
    assert (failed["status"], failed["support"], failed["objects"], failed["text"]) == ("error", 0.0, [], "A dog.")
    assert "6.png" in failed["error"]
    for message in ("6.png", "left out: 1 picture without a caption", "1 of 6 failed (--retry-errors tries them"):
        assert message in err
    assert sira(*command)[1] == out  # nothing is left to do, and all is shown again
    assert json.loads((tmp_path / "a.run.json").read_text())["pictures"]["ok before"] == 5


def test_the_worst_come_first_and_the_sums_below(sira, demo, scenes, tmp_path):
    limit = demo.preset.verify.min_support
    table, sums = sira("check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl")[1].split("\n\n")
    found = records(tmp_path / "a.jsonl")
    doubted = {name: record for name, record in found.items() if record["status"] == "ok" and record["support"] < limit}
    expected = sorted(doubted, key=lambda name: doubted[name]["support"])
    assert 1 < len(expected) < 5
    assert [line.split()[0] for line in table.splitlines()[1:]] == expected
    for line, name in zip(table.splitlines()[1:], expected, strict=True):
        for claim in doubted[name]["objects"]:
            assert (f"{claim['thing']} {claim['support']:.2f}" in line) == (claim["support"] < limit)
    claims = [claim for record in found.values() for claim in record["objects"]]
    below = f"{sum(claim['support'] < limit for claim in claims)} of them, in {len(expected)} captions, below {limit:g}"
    unrecognised = f"2 captions with nothing recognised ({MORE_WORDS})"
    assert sums.splitlines() == [f"5 captions, {len(claims)} objects: {below}", unrecognised]
    least = min(claims, key=lambda claim: claim["support"])["support"]  # what is at the line is supported
    assert " 0 of them," in sira("check", scenes, "-p", "demo", "--min-support", repr(least))[1]


def test_what_decides_is_in_the_key(demo, scenes):
    keys = [
        events(demo, scenes / "0.png", None, verify=verify)[0].record.key
        for verify in (None, Verify(demo.preset.verify.min_support), Verify(min_support=0.4))
    ]
    assert keys[0] == keys[1] != keys[2]


def without_time(record: dict) -> dict:
    return {**record, "duration_ms": 0}


def test_a_worker_of_a_cluster_gives_the_same_records(demo, scenes):
    captions = find_captions(scenes).pictures
    rows = [Row(number, picture, picture.name_in(None), "") for number, picture in enumerate(captions)]
    worker = Captioner(Check.under(demo.preset), {"device": "auto", "offline": False}, 2, os.getcwd())  # noqa: PTH109
    answers = map(pickle.loads, worker({"row": [pickle.dumps(row) for row in rows]})["row"])
    expected = [without_time(event.record.to_record()) for event in events(demo, scenes, None)]
    assert [without_time(event.record.to_record()) for _, event, _ in answers] == expected


def test_what_caption_wrote_can_be_checked(sira, scenes, tmp_path):
    captions = tmp_path / "captions.jsonl"
    sira("caption", scenes, "-p", "demo", "--method", "greedy", "-o", captions, "--verify", "flag")
    code, _, err = sira("check", captions, "-p", "demo", "-o", tmp_path / "checks.jsonl")
    assert (code, "left out: 1 record of pictures that failed" in err) == (0, True)
    made, checked = records(captions), records(tmp_path / "checks.jsonl")
    for name, record in checked.items():
        assert record["text"] == made[name]["text"]
        one, other = ([claim["support"] for claim in each["objects"]] for each in (record, made[name]))
        assert one == pytest.approx(other, abs=1e-4)


def test_ones_own_words_and_line(sira, scenes, tmp_path):
    (tmp_path / "words.txt").write_text("Lastwagen\nStuhl, St\u00fchle\n", encoding="utf-8")
    more = ["--objects", tmp_path / "words.txt", "--min-support", "1", "--json"]
    _, out, _ = sira("check", scenes / "3.png", "-p", "demo", *more)
    record = json.loads(out)
    assert [claim["thing"] for claim in record["objects"]] == ["lastwagen", "st\u00fchle"]
    assert record["verify"]["min_support"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Missing argument 'PATH': a folder of pictures with captions"),
        (["x.jsonl", "-o", "x.jsonl"], 2, "--output x.jsonl: would replace the captions in x.jsonl"),
        (
            ["x.jsonl", "--images", "nowhere"],
            1,
            "no such file; names in a file start from its folder, or from --images",
        ),
        (["scenes", "--engine", "ray"], 2, "--engine ray writes files: give -o FILE"),
        (["scenes", "--engine", "ray:x"], 2, "--engine ray:x: expected local, vllm, ray, or ray:N"),
        (["scenes", "--objects", "none.txt"], 2, "none.txt: cannot be read"),
        (["scenes", "-o", "x.jsonl"], 2, "x.jsonl: line 1 is not a record of sira"),
    ],
)
def test_refused_before_the_model_is_loaded(sira, scenes, monkeypatch, arguments, code, message):
    monkeypatch.chdir(scenes.parent)
    monkeypatch.setattr("sira_cli.cli.loading.load_model", None)
    (scenes.parent / "x.jsonl").write_text('{"image": "scenes/0.png", "text": "A dog."}\n')
    (scenes.parent / "notes.md").write_text("A dog.")
    found, _, err = sira("check", *arguments, "-p", "demo")
    assert (found, message in err) == (code, True), err


# --- data sets


def sharded(drawn, tmp_path):
    """Three captions in a shard, of which one sample has no text, and the same ones in a table."""
    data = [(drawn / f"{number}.png").read_bytes() for number in range(4)]
    members = []
    for number, text in enumerate([*TEXTS.values()][:3]):
        beside = ("txt", f"{text}\n".encode()) if number else ("json", json.dumps({"caption": text, "n": 1}).encode())
        members += [(f"{number:03}.png", data[number]), (f"{number:03}.{beside[0]}", beside[1])]
    members += [("003.png", data[3])]
    rows = {"image": data, "caption": [*[*TEXTS.values()][:3], None], "alt": ["A dog.", "", None, "A cup."]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "table.parquet")
    return write_tar(tmp_path / "shard.tar", members), tmp_path / "table.parquet"


def test_captions_in_a_shard_and_in_a_table_are_checked_like_those_in_files(sira, drawn, scenes, tmp_path):
    sira("check", *(scenes / f"{number}.png" for number in range(3)), "-p", "demo", "-o", tmp_path / "files.jsonl")
    expected = [json.loads(line) for line in (tmp_path / "files.jsonl").read_text().splitlines()]
    for place, name in zip(sharded(drawn, tmp_path), ("shard.tar/{:03}.png", "table.parquet/{}"), strict=True):
        output = tmp_path / f"{place.name}.jsonl"
        command = ["check", place, "-p", "demo", "-o", output]
        code, out, err = sira(*command)
        assert code == 0, err
        assert "left out: 1 picture without a caption" in err
        found = [json.loads(line) for line in output.read_text().splitlines()]
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one["file_name"] == name.format(number)
            same = ("text", "objects", "support", "image_sha256", "verify")
            assert {each: one[each] for each in same} == {each: other[each] for each in same}
        again, records = sira(*command), output.read_text()
        assert (again[0], again[1]) == (0, out)
        assert output.read_text() == records


def test_the_column_of_captions_can_be_named(drawn, tmp_path):
    shard, table = sharded(drawn, tmp_path)
    assert [picture.caption for picture in find_captions(table, text_column="alt").pictures] == ["A dog.", "", "A cup."]
    assert [picture.caption for picture in find_captions(shard, text_column="caption").pictures] == [TEXTS["0"]]
    assert len(find_captions([shard, table], limit=4).pictures) == 4
    with pytest.raises(DataError, match=r"looked for a column n \(`text_column=`\), found caption, alt"):
        find_captions(table, text_column="n")
    with pytest.raises(DataError, match="n is not text: 1"):
        find_captions(shard, text_column="n")
    none = write_tar(tmp_path / "none.tar", [("a.png", b"x"), ("a.json", b'{"alt": "A dog."}')])
    with pytest.raises(DataError, match=r"none of 1 pictures has a caption: .*\(`text_column=`\), found alt"):
        find_captions(none)


def test_the_decoder_and_its_settings_play_no_part(demo, scenes):
    greedy = load("demo", method="greedy", temperature=0.7, prefix="Look: ")
    one, two = (events(lvlm, scenes / "0.png", None)[0].record.to_record() for lvlm in (demo, greedy))
    assert without_time(one) == without_time(two)


def test_a_caption_that_cannot_be_put_into_a_prompt_fails_alone(sira, drawn, tmp_path):
    for number, text in enumerate(["A <image> of a dog.", "A house."]):
        shutil.copy(drawn / f"{number}.png", tmp_path)
        (tmp_path / f"{number}.txt").write_text(text)
    code, out, err = sira("check", tmp_path, "-p", "demo", "--objects", "ask", "--json")
    assert code == 3
    assert "0.png: the prompt holds <image>" in err
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["error", "ok"]
