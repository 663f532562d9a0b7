"""One output per file of a data set: what other tools read, whole or not there, whatever happens in between."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import pyarrow
import pytest
import webdataset
from pyarrow import parquet

from sira_cli import SettingsError, load, run_pictures
from sira_cli.pictures.find import Shard
from sira_cli.pictures.rows import Cursor
from sira_cli.runs.events import Failed
from sira_cli.runs.shard_files import write_parquet
from tests.support.shards import EXAMPLES, claiming, drawn, write_tar


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", max_new_tokens=4)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two shards of three pictures, one of which is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "shards").mkdir()
    write_tar(tmp_path / "shards/cc-000.tar", drawn(3))
    members = [(name, b"no picture" if name == "000004.png" else data) for name, data in drawn(3, 3)]
    write_tar(tmp_path / "shards/cc-001.tar", members)
    return tmp_path


def run(lvlm, paths: str | list = "shards", output: str = "out", **options) -> list:
    return list(run_pictures(lvlm, paths, output=output, batch_size=2, **options))


def texts(lvlm) -> list[str]:
    return ["" if number == 4 else lvlm.caption(EXAMPLES[number % len(EXAMPLES)]).text for number in range(6)]


def files(folder: str) -> dict[str, bytes]:
    """What is in a folder, but for how long it took."""
    return {
        path.name: re.sub(rb'"duration_ms": [0-9.]+', b"", path.read_bytes())
        for path in sorted(Path(folder).iterdir())
        if path.is_file()
    }


def test_lines_of_json(lvlm, folder):
    events = run(lvlm)
    assert [event.name for event in events[1:]] == [f"cc-{n // 3:03}.tar/{n:06}.png" for n in range(6)]
    assert list(files("out")) == ["cc-000.jsonl", "cc-001.jsonl"]
    found = [json.loads(line) for path in sorted(Path("out").glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [(record["__key__"], record["file_name"], record["text"]) for record in found] == [
        (f"{n:06}", f"cc-{n // 3:03}.tar/{n:06}.png", text) for n, text in enumerate(texts(lvlm))
    ]
    loaded = datasets.load_dataset("json", data_dir="out", split="train", cache_dir=str(folder / "cache"))
    assert loaded["text"][:] == texts(lvlm)
    before = files("out")
    assert {type(event).__name__ for event in run(lvlm)[1:]} == {"Skipped"}
    assert files("out") == before


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_new_shard(lvlm, folder):
    run(lvlm, output_format="webdataset")
    # The package leaves it to the garbage collector to close its files.
    urls = [str(path) for path in sorted(Path("out").glob("*.tar"))]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == [f"{n:06}" for n in range(6)]
    assert [sample.get("caption.txt", b"").decode() for sample in samples] == texts(lvlm)
    with tarfile.open("shards/cc-000.tar") as old, tarfile.open("out/cc-000.tar") as new:
        for member in old:
            assert new.extractfile(member.name).read() == old.extractfile(member).read()
    again = list(run_pictures(lvlm, "out", output="twice", output_format="webdataset"))
    assert len(again) == 7
    with tarfile.open("twice/cc-000.tar") as new:
        assert len(new.getnames()) == len(set(new.getnames())) == 12


def test_a_table_of_a_shard(lvlm, folder):
    run(lvlm, output_format="parquet")
    table = parquet.read_table("out/cc-001.parquet")
    assert table["__key__"].to_pylist() == ["000003", "000004", "000005"]
    assert table["text"].to_pylist() == texts(lvlm)[3:]


def test_a_table_gets_more_columns(lvlm, folder):
    """Everything that was there stays, and the `datasets` package still sees pictures."""
    features = datasets.Features(
        {"image": datasets.Image(), "text": datasets.Value("string"), "n": datasets.Value("int32")}
    )
    rows = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path in EXAMPLES[:3]],
        "text": ["x", None, "z"],
        "n": [1, 2, 3],
    }
    datasets.Dataset.from_dict(rows, features=features).to_parquet("train.parquet")
    run(lvlm, "train.parquet", output_format="parquet", limit=2)
    old, new = parquet.read_table("train.parquet"), parquet.read_table("out/train.parquet")
    assert new.select(old.column_names) == old
    assert new.column_names == [*old.column_names, "sira_text", "status", "error", "finish_reason"]
    assert new["sira_text"].to_pylist() == [*texts(lvlm)[:2], None]
    run(lvlm, "train.parquet", output_format="parquet", words=False)
    loaded = datasets.load_dataset(
        "parquet", data_files="out/train.parquet", split="train", cache_dir=str(folder / "cache")
    )
    assert loaded["sira_text"][:] == texts(lvlm)[:3]
    assert loaded[0]["image"].size == (384, 384)
    run(lvlm, "train.parquet", output="lines")
    lines = [json.loads(line) for line in Path("lines/train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["__key__"] for line in lines] == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["jsonl", "webdataset"])
def test_killed_at_any_moment(lvlm, folder, home, output_format):
    """A process that kills itself behind each event in turn; the next one goes on."""
    run(lvlm, output="whole", output_format=output_format)
    script = f"""
import os, signal, sys
from sira_cli import load, run_pictures
lvlm = load("demo", max_new_tokens=4)
for stop in range(1, 8):
    child = os.fork()
    if not child:
        options = dict(output="killed", batch_size=2, output_format={output_format!r})
        for number, event in enumerate(run_pictures(lvlm, "shards", **options)):
            if number == stop and stop < 7:
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    whole = {{path.name for path in __import__("pathlib").Path("killed").iterdir() if path.is_file()}}
    print(stop, os.WIFSIGNALED(status), *sorted(whole))
"""
    environment = {**os.environ, "SIRA_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, text=True, check=True)
    ending = {"jsonl": "jsonl", "webdataset": "tar"}[output_format]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1] for line in lines] == ["True"] * 6 + ["False"]
    for line in lines[:-1]:  # never more than what is complete
        assert line[2:] in ([], [f"cc-000.{ending}"], [f"cc-000.{ending}", f"cc-001.{ending}"])
    assert files("killed") == files("whole")


def test_parts_write_whole_files(lvlm, folder):
    for part in (1, 2, 3):  # one of them at least has nothing to do
        run(lvlm, shard=Shard(part, 3), output_format="jsonl")
    run(lvlm, output="whole")
    assert files("out") == files("whole")


def test_failed_pictures_are_tried_again(lvlm, folder):
    run(lvlm)
    write_tar(Path("shards/cc-001.tar"), drawn(3, 3))
    events = run(lvlm, retry_errors=True)
    assert [event.name for event in events[1:] if type(event).__name__ != "Skipped"] == ["cc-001.tar/000004.png"]
    found = [json.loads(line) for line in Path("out/cc-001.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["status"] for record in found] == ["ok"] * 3
    assert run(lvlm, overwrite=True)[-1].record.status == "ok"


def test_a_table_says_what_a_second_look_has_changed(folder):
    parquet.write_table(pyarrow.table({"image": [b"x", b"y"]}), "t.parquet")
    plain = {"schema": "sira.caption/1", "text": "A dog.", "status": "ok", "error": "", "finish_reason": "stop"}
    second = {"verify": {"mode": "rewrite"}, "draft": "A cat.", "removed": [{"thing": "cat", "support": 0.1}]}
    write_parquet({"0": plain, "1": plain | second}, "t.parquet", ["0", "1"], Path("new.parquet"))
    first, last = parquet.read_table("new.parquet").to_pylist()
    assert {first[name] for name in second} == {None}
    assert last["draft"] == "A cat."
    assert {name: json.loads(last[name]) for name in ("verify", "removed")} == {
        name: second[name] for name in ("verify", "removed")
    }


def test_what_cannot_be_written_is_said_before(lvlm, folder):
    write_tar(folder / "cc-000.tar", drawn(1))
    with pytest.raises(SettingsError, match=r"shards/cc-000\.tar and cc-000\.tar would both be cc-000"):
        run(lvlm, ["shards/cc-000.tar", "cc-000.tar"])
    with pytest.raises(SettingsError, match=r"cc-000\.tar would be replaced: give another folder"):
        run(lvlm, output="shards", output_format="webdataset")
    with pytest.raises(SettingsError, match="is not in a data set"):
        run(lvlm, ["shards/cc-000.tar", EXAMPLES[0]])
    with pytest.raises(SettingsError, match=r"`output_format=` parquet: expected \.tar, \.parquet or \.arrow files in"):
        run(lvlm, output="out.jsonl", output_format="parquet")
    parquet.write_table(pyarrow.table({"image": [b"x"]}), "t.parquet")
    with pytest.raises(
        SettingsError, match=r"`output_format=` webdataset: t\.parquet is a table, expected \.tar files"
    ):
        run(lvlm, "t.parquet", output_format="webdataset")
    run(lvlm)
    with pytest.raises(SettingsError, match="holds records of another configuration: prompt is"):
        run(lvlm, prompt="Another.")


def test_the_command(sira, folder):
    command = ("caption", "shards", "-p", "demo", "--max-new-tokens", 4, "-o", "out")
    code, out, err = sira(*command, "--output-format", "webdataset", "--method", "greedy,sira")
    assert (code, out) == (3, "")
    assert list(files("out/sira")) == list(files("out/greedy")) == ["cc-000.tar", "cc-001.tar"]
    assert "5 of 6 pictures done" in err
    code, out, _ = sira(*command[:-1], "out/sira", "--json")
    assert [json.loads(line)["file_name"] for line in out.splitlines()] == [
        f"cc-{n // 3:03}.tar/{n:06}.png" for n in range(6)
    ]


def keys(shard: str) -> list[str]:
    return [json.loads(line)["__key__"] for line in Path(f"out/{shard}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_damaged_shard_ends_no_run(lvlm, folder):
    """What is whole is copied; what can be read nowhere has no output, until it is there again."""
    whole = Path("shards/cc-001.tar").read_bytes()
    with tarfile.open("shards/cc-001.tar") as archive:
        end = archive.getmember("000004.png").offset_data + 5
    Path("shards/cc-001.tar").write_bytes(whole[:end])
    Path("shards/cc-002.tar").write_text("<html>" * 1000, encoding="utf-8")
    paths = "shards/cc-{000..003}.tar"
    for _ in range(2):
        run(lvlm, paths, output_format="webdataset")
        assert list(files("out")) == ["cc-000.tar", "cc-001.tar"]
        with tarfile.open("out/cc-001.tar") as new:
            assert new.getnames() == [
                *("000003.json", "000003.png", "000003.txt", "000003.caption.txt", "000004.json"),
            ]
    run(lvlm, paths)
    assert keys("cc-000") == ["000000", "000001", "000002"]
    assert [keys("cc-001"), keys("cc-002"), keys("cc-003")] == [["000003", "000004", ""], [""], [""]]
    Path("shards/cc-001.tar").write_bytes(whole)
    run(lvlm, "shards/cc-001.tar", retry_errors=True)
    assert keys("cc-001") == ["000003", "000004", "000005"]


def damaged(path: str) -> dict[str, list]:
    """Write a table of three row groups, of which the second cannot be read."""
    rows = {"id": list("abc"), "image": [picture.read_bytes() for picture in EXAMPLES[:3]]}
    parquet.write_table(pyarrow.table(rows), path, row_group_size=1, compression="gzip", use_dictionary=False)
    chunk = parquet.read_metadata(path).row_group(1).column(1)
    data = bytearray(Path(path).read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 500] = bytes(500)
    Path(path).write_bytes(data)
    return rows


def test_rows_are_read_in_any_order_around_a_damaged_one(folder):
    """Threads ask out of order; whoever passes the damaged row on the way to another one must not fail for it."""
    rows = damaged("rot.parquet")
    read = Cursor("rot.parquet", ("image",)).row
    assert [read(number)["image"] for number in (0, 2)] == [rows["image"][0], rows["image"][2]]
    with pytest.raises(OSError, match="data"):
        read(1)
    assert read(2)["image"] == rows["image"][2]


def test_a_damaged_table_ends_no_run(lvlm, folder):
    """All of the other row groups stays; the damaged one is empty but for the error."""
    rows = damaged("rot.parquet")
    Path("bad.parquet").write_text("no table", encoding="utf-8")
    run(lvlm, ["bad.parquet", "rot.parquet"], output_format="parquet")
    assert list(files("out")) == ["rot.parquet"]
    table = parquet.read_table("out/rot.parquet")
    assert table["id"].to_pylist() == ["a", None, "c"]
    assert table["status"].to_pylist() == ["ok", "error", "ok"]
    assert table["image"].to_pylist() == [rows["image"][0], None, rows["image"][2]]


def test_members_that_stand_apart(lvlm, folder):
    """A text goes behind its picture, once; names may be no text."""
    picture = EXAMPLES[0].read_bytes()
    members = [("a.png", picture), ("b.txt", b"1"), ("a.txt", b"2"), ("b.png", picture), ("\udcff.png", picture)]
    write_tar(Path("apart.tar"), members)
    run(lvlm, "apart.tar", output_format="webdataset")
    with tarfile.open("out/apart.tar") as new:
        assert new.getnames() == [
            *("a.png", "a.caption.txt", "b.txt", "a.txt", "b.png", "b.caption.txt", "\udcff.png", "\udcff.caption.txt")
        ]


def test_files_that_others_wrote_stay(lvlm, folder):
    Path("out").mkdir()
    Path("out/cc-000.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^out/cc-000\.jsonl: is from another kind of run: give another"):
        run(lvlm)
    assert Path("out/cc-000.jsonl").read_text(encoding="utf-8") == "mine"
    run(lvlm, limit=1, overwrite=True)
    run(lvlm, "shards/cc-000.tar", output_format="webdataset")
    run(lvlm, "shards/cc-000.tar")  # now with what the other format has added
    assert keys("cc-000") == ["000000", "000001", "000002"]
    with pytest.raises(SettingsError, match="for a data set in a folder, expected jsonl, parquet, webdataset"):
        run(lvlm, output_format="llava")


def test_columns_of_an_earlier_run_stay(folder):
    record = {"status": "ok", "text": "new", "error": "", "finish_reason": "stop"}
    parquet.write_table(pyarrow.table({"image": [b"x"], "text": ["old"], "sira_text": ["older"]}), "t.parquet")
    write_parquet({"0": record}, "t.parquet", ["0"], Path("new.parquet"))
    assert parquet.read_table("new.parquet").to_pylist() == [
        {"image": b"x", "text": "old", "sira_text": "older", "sira_sira_text": "new"}
        | {name: value for name, value in record.items() if name != "text"}
    ]


def test_a_table_replaces_neither_its_source_nor_what_others_wrote(lvlm, folder):
    parquet.write_table(pyarrow.table({"image": [EXAMPLES[0].read_bytes()]}), "t.parquet")
    before = files(".")
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=r"`output=` t\.parquet: the data set would be replaced: give another"):
            run(lvlm, str(folder / "t.parquet"), output="t.parquet", overwrite=overwrite)
    Path("notes.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^notes\.csv: is from another kind of run: give another `output=`"):
        run(lvlm, "t.parquet", output="notes.csv")
    assert files(".") == before | {"notes.csv": b"mine"}
    run(lvlm, "t.parquet", output="notes.csv", overwrite=True)
    run(lvlm, "t.parquet", output="notes.csv")
    assert Path("notes.csv").read_text(encoding="utf-8").startswith("schema,key,file_name")


def test_a_file_of_the_same_name_does_not_replace_the_output_of_another(lvlm, folder):
    """As the parts of a data set that `save_to_disk` has written."""
    Path("test").mkdir()
    shard = write_tar(Path("test/cc-000.tar"), drawn(1, 5))
    run(lvlm, "shards/cc-000.tar")
    before = files("out")
    with pytest.raises(
        SettingsError, match=rf"^out/cc-000\.jsonl: is of {folder}/shards/cc-000\.tar, another file of the"
    ):
        run(lvlm, str(shard))
    assert files("out") == before
    shard.write_bytes(Path("shards/cc-000.tar").read_bytes())  # a copy is as good
    assert {type(event).__name__ for event in run(lvlm, str(shard))[1:]} == {"Skipped"}
    Path("shards/cc-000.tar").unlink()  # and one that has moved may have grown
    write_tar(shard, drawn(4))
    run(lvlm, str(shard))
    assert keys("cc-000") == [f"{number:06}" for number in range(4)]


def test_a_shard_with_a_size_below_zero_is_its_own_error(lvlm, folder):
    """In the middle of the first shard; the second one is as without it."""
    first = folder / "shards/cc-000.tar"
    whole = first.read_bytes().rstrip(b"\0")
    whole += bytes(-len(whole) % 512)
    first.write_bytes(whole + claiming("000009.png", -513) + whole + bytes(1024))
    events = run(lvlm, output_format="webdataset")
    assert [event.name for event in events[1:] if isinstance(event, Failed)] == ["cc-000.tar", "cc-001.tar/000004.png"]
    with tarfile.open("out/cc-000.tar") as new:
        captions = {name: new.extractfile(name).read().decode() for name in new.getnames() if "caption" in name}
    assert captions == {f"{n:06}.caption.txt": text for n, text in enumerate(texts(lvlm)[:3])}
    assert Path("out/cc-001.tar").exists()
