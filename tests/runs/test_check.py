"""`sira check`: a second look at captions that exist already, resumable, and captions without what is not there."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import shutil

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from sira_cli import load
from sira_cli.analysis.check.run import check_captions
from sira_cli.analysis.check.summary import Summary
from sira_cli.cli.options.verifying import MORE_WORDS
from sira_cli.data.captions.find import find_captions
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import DataError
from sira_cli.models.look.rewriting import Rewriter
from sira_cli.models.look.second_look import Verify
from sira_cli.pictures.find import Shard
from sira_cli.runs.check_request import EMPTY, NOT_PROSE, NOT_RECOGNISED, NOTHING_LEFT, CheckRequest
from sira_cli.runs.check_task import TOO_LONG
from sira_cli.runs.events import Failed, Finished, Skipped
from sira_cli.runs.ray_run import Captioner, Work
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


def without_time(path):
    return re.sub(r'"duration_ms": [0-9.]+', "", path.read_text(encoding="utf-8"))


def events(lvlm, folder, output, **settings):
    return list(check_captions(lvlm, find_captions(folder), output=output, **settings))[1:]


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
        assert [(claim["thing"], claim["spans"]) for claim in record["objects"]] == [
            (claim.thing, [list(span) for span in claim.spans]) for claim in check.objects
        ]
        assert [claim["support"] for claim in record["objects"]] == pytest.approx(
            [claim.support for claim in check.objects], abs=1e-4
        )
        assert record["support"] == pytest.approx(check.support, abs=1e-4)
    optional = ("warnings",)
    keys = {
        name: [(key, type(value)) for key, value in record.items() if key not in optional]
        for name, record in found.items()
    }
    assert len({tuple(types) for types in keys.values()}) == 1  # the failed one among them
    failed = found["scenes/6.png"]
    assert (failed["status"], failed["support"], failed["objects"], failed["fixed"]) == ("error", 0.0, [], "A dog.")
    assert "6.png" in failed["error"]
    assert "6.png" in err
    assert "left out: 1 picture without a caption" in err
    assert "1 of 6 failed (--retry-errors tries them again)" in err
    assert sira(*command)[1] == out  # nothing is left to do, and all is shown again
    assert json.loads((tmp_path / "a.run.json").read_text())["pictures"]["ok before"] == 5


def test_the_worst_come_first_and_the_sums_below(sira, demo, scenes, tmp_path):
    limit = demo.preset.verify.min_support
    _, out, _ = sira("check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl")
    table, sums = out.split("\n\n")
    found = records(tmp_path / "a.jsonl")
    doubted = {name: record for name, record in found.items() if record["status"] == "ok" and record["support"] < limit}
    expected = sorted(doubted, key=lambda name: doubted[name]["support"])
    assert 1 < len(expected) < 5
    assert [line.split()[0] for line in table.splitlines()[1:]] == expected
    for line, name in zip(table.splitlines()[1:], expected, strict=True):
        for claim in doubted[name]["objects"]:
            assert (f"{claim['thing']} {claim['support']:.2f}" in line) == (claim["support"] < limit)
    claims = [claim for record in found.values() for claim in record["objects"]]
    below = sum(claim["support"] < limit for claim in claims)
    assert sums.splitlines() == [
        f"5 captions, {len(claims)} objects: {below} of them, in {len(expected)} captions, below {limit:g}",
        f"2 captions with nothing recognised ({MORE_WORDS})",
    ]


def test_what_is_at_the_line_is_supported(demo, scenes):
    """In the record, and in the sums: the least supported thing is at the threshold, and nothing is taken out."""
    image, text = scenes / "0.png", TEXTS["0"]
    line = demo.check(image, text).support
    assert 0 < line < 1
    above = min(claim.support for claim in demo.check(image, text).objects if claim.support > line)
    for least, low in ((line, 0), (above, 1)):
        [record] = [
            event.record.to_record()
            for event in check_captions(demo, find_captions(image), verify=Verify(min_support=least))
            if isinstance(event, Finished)
        ]
        sums = Summary(least)
        sums.add(record)
        assert (record["fixed"] != text, len(record["dropped"]), sums.kinds["objects"].below) == (bool(low), low, low)


def test_below_shows_these_only_and_keeps_all(sira, scenes, tmp_path):
    command = ["check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl"]
    sira(*command)
    supports = sorted(
        record["support"] for record in records(tmp_path / "a.jsonl").values() if record["status"] == "ok"
    )
    line = (supports[0] + supports[1]) / 2
    _, out, err = sira(*command, "--below", line, "--json")
    shown = [json.loads(line) for line in out.splitlines()]
    assert [record["support"] for record in shown] == supports[:1]
    assert "5 captions" in err
    _, out, _ = sira(*command, "--below", line)
    assert len(out.split("\n\n")[0].splitlines()) == 2  # a head and the one
    assert len(records(tmp_path / "a.jsonl")) == 6


def test_only_what_is_new_or_changed_is_looked_at_again(demo, scenes, tmp_path):
    def worked():
        happened = events(demo, scenes, tmp_path / "a.jsonl")
        return {event.picture.shown[-5:] for event in happened if not isinstance(event, Skipped)}

    assert len(worked()) == 6
    before = (tmp_path / "a.jsonl").read_bytes()
    assert worked() == set()
    assert (tmp_path / "a.jsonl").read_bytes() == before
    (scenes / "1.txt").write_text("A horse.")
    (scenes / "4.txt").write_text("A tree.")
    assert worked() == {"1.png", "4.png"}
    found = records(tmp_path / "a.jsonl")
    assert found["scenes/1.png"]["text"] == "A horse."
    assert [*found] == [f"scenes/{name}.png" for name in "0123456"]
    assert worked() == set()


def test_a_stopped_run_goes_on_to_the_same_file(demo, scenes, tmp_path):
    list(check_captions(demo, find_captions(scenes), output=tmp_path / "whole.jsonl"))
    run = check_captions(demo, find_captions(scenes), output=tmp_path / "parts.jsonl", batch_size=2)
    kinds = [type(next(run)) for _ in range(3)]
    run.close()
    assert kinds[1:] == [Finished, Finished]
    kinds = [type(event) for event in events(demo, scenes, tmp_path / "parts.jsonl")]
    assert kinds[:2] == [Skipped, Skipped]
    assert without_time(tmp_path / "parts.jsonl") == without_time(tmp_path / "whole.jsonl")
    retried = events(demo, scenes, tmp_path / "parts.jsonl", retry_errors=True)
    assert [type(event) for event in retried] == [Skipped] * 5 + [Failed]
    assert [type(event) for event in events(demo, scenes, None, fail_fast=True)] == [Finished] * 5 + [Failed]


def test_what_decides_is_in_the_key(demo, scenes):
    keys = [
        events(demo, scenes / "0.png", None, verify=verify)[0].record.key
        for verify in (None, Verify(demo.preset.verify.min_support), Verify(min_support=0.4))
    ]
    assert keys[0] == keys[1] != keys[2]


def test_a_worker_of_a_cluster_gives_the_same_records(demo, scenes):
    request, preset, _ = CheckRequest.under(demo.preset, demo.decoder, None)
    loading = {"method": "greedy", "device": "auto", "quantization": None, "offline": False, "trust_remote_code": False}
    work = Work(preset, loading, request, 2, os.getcwd())  # noqa: PTH109
    captions = find_captions(scenes).pictures
    rows = {
        "number": range(len(captions)),
        "picture": [pickle.dumps(picture) for picture in captions],
        "id": [picture.name_in(None) for picture in captions],
        "name": [picture.name_in(None) for picture in captions],
        "done": [""] * len(captions),
        "error": [""] * len(captions),
    }
    found = [json.loads(record) for record in Captioner(work)(rows)["record"]]
    expected = [event.record.to_record() for event in events(demo, scenes, None)]
    assert [{**record, "duration_ms": 0} for record in found] == [{**record, "duration_ms": 0} for record in expected]


def test_remarks(demo, scenes):
    found = {event.name[-5:]: event.record for event in events(demo, scenes, None)}
    remarks = {name: record.warnings for name, record in found.items()}
    assert remarks == {
        "0.png": None,
        "1.png": None,
        "2.png": [NOTHING_LEFT],
        "3.png": [NOT_RECOGNISED],
        "5.png": [EMPTY],
        "6.png": None,
    }
    assert (found["3.png"].objects, found["3.png"].support, found["3.png"].fixed) == ([], 1.0, TEXTS["3"])
    assert (found["2.png"].fixed, found["2.png"].dropped) == ("", [TEXTS["2"]])


def test_sentences_that_name_something_unsupported_are_dropped(sira, demo, scenes, tmp_path):
    fix = ["--fix", "drop-sentences", "--fixed", tmp_path / "fixed"]
    before = {path.name: path.read_bytes() for path in scenes.iterdir()}
    code, _, err = sira("check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl", *fix)
    assert code == 3
    texts = {path.stem: path.read_text(encoding="utf-8").strip() for path in (tmp_path / "fixed").iterdir()}
    assert texts == {
        "0": "There is a bowl beside a blue bicycle.",
        "1": TEXTS["1"],
        "2": "",
        "3": TEXTS["3"],
        "5": "",
        "6": "A dog.",
    }
    assert f"2 of 6 captions changed, 1 of them empty now: {tmp_path / 'fixed'}" in err
    assert {path.name: path.read_bytes() for path in scenes.iterdir()} == before
    for name in "013":
        assert demo.check(scenes / f"{name}.png", texts[name]).below(demo.preset.verify.min_support) == []
    record = records(tmp_path / "a.jsonl")["scenes/0.png"]
    assert (record["fixed"], record["dropped"]) == (texts["0"], ["A dog stands there."])
    (tmp_path / "fixed" / "3.txt").unlink()
    assert sira("check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl", *fix)[0] == 3  # its own files
    (tmp_path / "fixed" / "1.txt").write_text("mine")
    (tmp_path / "fixed" / "3.txt").unlink()
    code, _, err = sira("check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl", *fix)
    assert (code, "fixed/1.txt: exists, and is not as an earlier run" in err) == (2, True)
    assert (tmp_path / "fixed" / "1.txt").read_text() == "mine"
    assert not (tmp_path / "fixed" / "3.txt").exists()


def test_captions_are_decoded_anew_from_what_is_unsupported_on(sira, demo, scenes, tmp_path):
    """What the library makes of each caption alone, and nothing below the threshold in it."""
    fix = ["--fix", "rewrite", "--fixed", tmp_path / "fixed"]
    command = ["check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl", *fix]
    assert sira(*command, "-b", 2)[0] == 3
    found = {name[7]: record for name, record in records(tmp_path / "a.jsonl").items()}
    rewriter = Rewriter(demo, Verify(mode="rewrite"))
    for name, record in found.items():
        keys = {"support", "fixed", "objects", "verify", "removed"}
        assert keys <= record.keys()
        assert not {"dropped", "draft"} & record.keys()
        assert (record["method"], record["verify"]["mode"], record["verify"]["rounds"]) == ("sira", "rewrite", 3)
        assert (tmp_path / f"fixed/{name}.txt").read_text(encoding="utf-8").strip() == record["fixed"]
        if name not in "02":
            assert (record["fixed"], record["removed"]) == (record["text"], [])
            continue
        assert record["text"] == TEXTS[name]
        new = rewriter.rewrite(Image.open(scenes / f"{name}.png").convert("RGB"), TEXTS[name])
        assert record["fixed"] == new.text != TEXTS[name]
        assert [removed["thing"] for removed in record["removed"]] == [claim.thing for claim in new.removed]
        assert demo.check(scenes / f"{name}.png", record["fixed"]).below(demo.preset.verify.min_support) == []
    before = (tmp_path / "a.jsonl").read_bytes()
    sira(*command)
    assert (tmp_path / "a.jsonl").read_bytes() == before  # nothing was left to do


def test_a_text_of_thousands_of_words_is_not_gone_on_with(demo, scenes):
    """The model would stand where it never comes to by itself."""
    (scenes / "0.txt").write_text("There is a bowl beside a bicycle on the left. " * 500 + "There is a dog.")
    (event,) = events(demo, scenes / "0.png", None, verify=Verify(mode="rewrite"))
    assert (event.record.fixed, event.record.removed) == (event.record.text, [])
    assert event.record.warnings == [TOO_LONG]
    (event,) = events(demo, scenes / "0.png", None)
    assert event.record.dropped == ["There is a dog."]


def test_what_decides_a_new_caption_is_in_its_key(demo, scenes):
    verify = Verify(mode="rewrite")
    presets = [demo.preset, demo.preset.with_settings(prompt="Say it."), demo.preset.with_settings(alpha=0.25)]
    keys = [
        events(demo.under(demo.decoder, preset), scenes / "1.png", None, verify=verify)[0].record.key
        for preset in presets
    ]
    assert len({*keys, events(demo, scenes / "1.png", None)[0].record.key}) == 4


def test_captions_can_be_mended_from_records_without_a_model(sira, scenes, tmp_path, monkeypatch):
    (scenes / "x.csv").write_text(f"id,image,caption\n7,0.png,{TEXTS['0']}\n8,1.png,A house.\n9,none.png,A dog.\n")
    command = ["check", scenes / "x.csv", "-p", "demo", "-o", tmp_path / "a.jsonl"]
    code, _, err = sira(*command)
    assert (code, "none.png: no such file" in err) == (3, True)
    monkeypatch.setattr("sira_cli.cli.engines.load_model", None)
    code, _, err = sira(*command, "--fix", "drop-sentences", "--fixed", tmp_path / "new.csv")
    assert (code, "leaves out" in err) == (3, False)
    with (tmp_path / "new.csv").open(newline="") as file:
        assert [*csv.reader(file)] == [
            ["id", "image", "caption"],
            ["7", "0.png", "There is a bowl beside a blue bicycle."],
            ["8", "1.png", "A house."],
            ["9", "none.png", "A dog."],
        ]
    _, _, err = sira(*command, "--limit", 2, "--fix", "drop-sentences", "--fixed", tmp_path / "two.csv")
    assert f"{tmp_path / 'two.csv'} has 2 of 3 rows: --limit or --shard leaves out the others" in err
    assert len((tmp_path / "two.csv").read_text().splitlines()) == 3
    parts = [find_captions(scenes / "x.csv", shard=Shard(index, 2)) for index in (1, 2)]
    assert [part.rows + part.left_out for part in parts] == [3, 3]
    assert sum(part.rows for part in parts) == 3
    fix = ("--fix", "drop-sentences", "--fixed", tmp_path / "new.csv")
    (scenes / "x.csv").write_text(f"id,image,caption\n7,0.png,{TEXTS['0']}\n9,none.png,A dog.\n")
    assert sira(*command)[0] == 3
    assert sira(*command, *fix)[0] == 3  # its own file may be made again, also of other captions
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 3
    (tmp_path / "new.csv").write_text("mine")
    code, _, err = sira(*command, *fix)
    assert (code, (tmp_path / "new.csv").read_text()) == (2, "mine")
    assert "new.csv: exists, and is not as an earlier run of these records wrote it: give another" in err


def test_what_caption_wrote_can_be_checked(sira, scenes, tmp_path):
    captions = tmp_path / "captions.jsonl"
    sira("caption", scenes, "-p", "demo", "--method", "greedy", "-o", captions, "--verify", "flag")
    code, _, err = sira("check", captions, "-p", "demo", "-o", tmp_path / "checks.jsonl")
    assert (code, "left out: 1 record of pictures that failed" in err) == (0, True)
    made, checked = records(captions), records(tmp_path / "checks.jsonl")
    for name, record in checked.items():
        assert record["text"] == made[name]["text"]
        assert [claim["support"] for claim in record["objects"]] == pytest.approx(
            [claim["support"] for claim in made[name]["objects"]], abs=1e-4
        )


def test_json_and_tags_are_not_cut_by_sentences(demo, scenes, tmp_path):
    texts = ['{"caption": "A dog. A tree stands there."}', "horse, house", "A dog. A tree stands there."]
    lines = [
        {"schema": "sira.caption/1", "file_name": f"scenes/{number}.png", "status": "ok", "text": text}
        | ({"json_schema": "tags@0 as text"} if number == 1 else {})
        for number, text in enumerate(texts)
    ]
    (tmp_path / "made.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (scenes / "3.txt").write_text('["dog", "tree"]')
    captions = find_captions([tmp_path / "made.jsonl", scenes / "3.png"])
    for mode in ("flag", "rewrite"):
        verify = Verify(min_support=1.0, mode=mode)
        found = [event.record for event in check_captions(demo, captions, verify=verify) if isinstance(event, Finished)]
        kept = {record.file_name[-5:-4]: record.fixed == record.text for record in found}
        assert kept == {"3": True, "0": True, "1": True, "2": False}
        assert {record.file_name[-5:-4] for record in found if NOT_PROSE in (record.warnings or [])} == {"3", "0", "1"}


def test_ones_own_words_and_line(sira, scenes, tmp_path):
    (tmp_path / "words.txt").write_text("Lastwagen\nStuhl, St\u00fchle\n", encoding="utf-8")
    more = ["--objects", tmp_path / "words.txt", "--min-support", "1", "--json"]
    _, out, _ = sira("check", scenes / "3.png", "-p", "demo", *more)
    record = json.loads(out)
    assert [claim["thing"] for claim in record["objects"]] == ["lastwagen", "st\u00fchle"]
    assert (record["verify"]["min_support"], record["fixed"]) == (1.0, "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Missing argument 'PATH': a folder of pictures with captions"),
        (["scenes", "--fix", "drop-sentences"], 2, "--fix and --fixed go together"),
        (["scenes", "--fix", "drop-sentences", "--fixed", "scenes"], 2, "--fixed scenes: original captions would be"),
        (["x.jsonl", "-o", "x.jsonl"], 2, "--output x.jsonl: would replace the captions in x.jsonl"),
        (
            ["x.jsonl", "-o", "y.jsonl", "--fix", "drop-sentences", "--fixed", "y.jsonl"],
            2,
            "--output writes to this file",
        ),
        (
            ["tags.csv", "--fix", "drop-sentences", "--fixed", "y.csv"],
            2,
            "--fixed y.csv: the captions are JSON or tags, not sentences: caption the pictures again",
        ),
        (
            ["scenes", "-o", "y.jsonl", "--fix", "drop-sentences", "--fixed", "texts"],
            2,
            "--fixed texts/0.txt: exists, and is not as an earlier run of these records wrote it: give another, remove",
        ),
        (
            ["x.jsonl", "--images", "nowhere"],
            1,
            "no such file; names in a file start from its folder, or from --images",
        ),
        (["scenes", "--engine", "ray"], 2, "--engine ray writes files: give -o FILE"),
        (["scenes", "--engine", "ray:x"], 2, "--engine ray:x: expected local, ray, or ray:N"),
        (["scenes", "--objects", "none.txt"], 2, "none.txt: cannot be read"),
        (["scenes", "-o", "x.jsonl"], 2, "x.jsonl: line 1 is not a record of sira"),
    ],
)
def test_refused_before_the_model_is_loaded(sira, scenes, monkeypatch, arguments, code, message):
    monkeypatch.chdir(scenes.parent)
    monkeypatch.setattr("sira_cli.cli.engines.load_model", None)
    (scenes.parent / "x.jsonl").write_text('{"image": "scenes/0.png", "text": "A dog."}\n')
    (scenes.parent / "notes.md").write_text("A dog.")
    (scenes.parent / "z.jsonl").write_text("mine")
    (scenes.parent / "texts").mkdir()
    (scenes.parent / "texts/0.txt").write_text("mine")
    (scenes.parent / "tags.csv").write_text(
        "schema,file_name,status,text,json_schema\nsira.caption/1,scenes/0.png,ok,dog,tags@0 as text\n"
    )
    found, _, err = sira("check", *arguments, "-p", "demo")
    assert (found, message in err) == (code, True), err
    assert {(scenes.parent / name).read_text() for name in ("z.jsonl", "texts/0.txt")} == {"mine"}


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
        output, fixed = tmp_path / f"{place.name}.jsonl", tmp_path / f"fixed {place.name}"
        command = ["check", place, "-p", "demo", "-o", output, "--fix", "drop-sentences", "--fixed", fixed]
        code, out, err = sira(*command)
        assert code == 0, err
        assert "left out: 1 picture without a caption" in err
        found = [json.loads(line) for line in output.read_text().splitlines()]
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one["file_name"] == name.format(number)
            same = ("text", "objects", "support", "fixed", "dropped", "image_sha256", "verify")
            assert {each: one[each] for each in same} == {each: other[each] for each in same}
            [written] = fixed.glob(f"**/{name.format(number).removesuffix('.png')}.txt")
            assert written.read_text().strip() == other["fixed"]
        again, records = sira(*command), output.read_text()
        assert (again[0], again[1]) == (0, out)
        assert output.read_text() == records


def test_the_column_of_captions_can_be_named(drawn, tmp_path):
    shard, table = sharded(drawn, tmp_path)
    assert [picture.text for picture in find_captions(table, text_column="alt").pictures] == ["A dog.", "", "A cup."]
    assert [picture.text for picture in find_captions(shard, text_column="caption").pictures] == [TEXTS["0"]]
    assert len(find_captions([shard, table], limit=4).pictures) == 4
    with pytest.raises(DataError, match=r"looked for a column 'n' \(`text_column=`\), found caption, alt"):
        find_captions(table, text_column="n")
    with pytest.raises(DataError, match="n is not text: 1"):
        find_captions(shard, text_column="n")
    none = write_tar(tmp_path / "none.tar", [("a.png", b"x"), ("a.json", b'{"alt": "A dog."}')])
    with pytest.raises(DataError, match=r"none of 1 pictures has a caption: .*\(`text_column=`\), found alt"):
        find_captions(none)


def test_where_every_picture_fails_no_sums_are_shown(sira, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    (tmp_path / "a.txt").write_text("A dog.")
    code, out, err = sira("check", tmp_path, "-p", "demo")
    assert (code, out) == (3, "no caption was checked\n")
    assert "1 of 1 failed" in err


def test_the_decoder_and_its_settings_play_no_part(demo, scenes):
    greedy = load("demo", method="greedy", temperature=0.7, prefix="Look: ")
    one, two = ([event.record for event in events(lvlm, scenes / "0.png", None)] for lvlm in (demo, greedy))
    assert [{**record.to_record(), "duration_ms": 0} for record in one] == [
        {**record.to_record(), "duration_ms": 0} for record in two
    ]
