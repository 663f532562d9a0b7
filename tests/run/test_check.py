"""A second look, at captions that exist already (`check`, resumable) and at new ones (`caption --verify`)."""

from __future__ import annotations

import json
import math

import pyarrow
import pytest
from pyarrow import parquet

from sira_cli import load
from sira_cli.errors import DataError
from sira_cli.look.claims import Verify
from sira_cli.pictures.captions import find_captions
from sira_cli.run.check import EMPTY, NOT_RECOGNISED, Check
from tests.run.helpers import draw, read
from tests.support.shards import write_tar

TEXTS = {
    "0": "A dog stands there. There is a bowl beside a blue bicycle.",
    "1": "There is a house. A horse stands in front of it.",
    "2": "A boat with an elephant.",
    "3": "Ein Lastwagen und zwei Stühle.",
}


@pytest.fixture
def scenes(tmp_path):
    """Scenes with captions: one without a caption, one whose caption is empty, one whose picture is broken."""
    folder = draw(tmp_path / "scenes", *TEXTS.values(), None, "")
    (folder / "6.png").write_bytes(b"no picture")
    (folder / "6.txt").write_text("A dog.")
    return folder


def records(path):
    return {record["file_name"]: record for record in read(path)}


def test_records_hold_what_the_library_says_of_the_captions(sira, demo, scenes, tmp_path):
    command = ["check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl"]
    code, out, err = sira(*command, "-b", "3")
    found = records(tmp_path / "a.jsonl")
    assert (code, [*found]) == (3, [f"scenes/{name}.png" for name in "012356"])  # 4 has no caption
    for name, record in found.items():
        text = (scenes / name[7:]).with_suffix(".txt").read_text(encoding="utf-8").strip()
        assert record["schema"] == "sira.check/1"
        assert record["text"] == text
        assert record["preset"] == "demo"
        assert record["prompt"] == record["verify"]["question"] == "Is there {thing} in the image?"
        if record["status"] == "ok":
            check = demo.check(scenes / name[7:], text)
            same_claims(record, check)
            assert record["support"] == pytest.approx(check.support, abs=1e-4)
    remarks = {name[7]: record.pop("warnings")[0] for name, record in found.items() if "warnings" in record}
    assert remarks == {"3": NOT_RECOGNISED, "5": EMPTY}
    assert (found["scenes/3.png"]["objects"], found["scenes/3.png"]["support"]) == ([], 1.0)
    keys = {tuple((key, type(value)) for key, value in record.items()) for record in found.values()}
    assert len(keys) == 1  # the failed one among them
    failed = found["scenes/6.png"]
    assert failed["status"] == "error"
    assert failed["support"] == 0.0
    assert failed["objects"] == []
    assert failed["text"] == "A dog."
    for message in ("6.png", "left out: 1 picture without a caption", "1 of 6 failed (--retry-errors tries them"):
        assert message in err
    assert sira(*command)[1] == out  # nothing is left to do, and all is shown again
    assert json.loads((tmp_path / "a.run.json").read_text())["pictures"]["ok before"] == 5


def same_claims(record, check) -> None:
    """The record has the things, places and supports of the library's check."""
    named = [(claim.thing, [list(span) for span in claim.spans]) for claim in check.objects]
    assert [(claim["thing"], claim["spans"]) for claim in record["objects"]] == named
    supports = [claim["support"] for claim in record["objects"]]
    assert supports == pytest.approx([claim.support for claim in check.objects], abs=1e-4)


def test_what_is_at_the_line_is_supported(sira, scenes, tmp_path):
    command = ("check", scenes, "-p", "demo", "-o", tmp_path / "a.jsonl")
    sira(*command)
    least = min(claim["support"] for record in records(tmp_path / "a.jsonl").values() for claim in record["objects"])
    for limit, below in ((least, " 0 of them,"), (math.nextafter(least, 1), " 1 of them,")):
        assert below in sira(*command, "--overwrite", "--min-support", repr(limit))[1]


def test_the_decoder_plays_no_part_in_the_key_of_a_check(demo):
    other = load("demo", method="greedy", temperature=0.7, prefix="Look: ").preset
    looks = ((demo.preset, None), (demo.preset, Verify(demo.preset.verify.min_support)), (other, None))
    tasks = [Check.under(*each) for each in (*looks, (demo.preset, Verify(min_support=0.4)))]
    keys = [task.key("a.png", "hash", task.prompt) for task in tasks]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_what_caption_wrote_can_be_checked(sira, scenes, tmp_path):
    captions = tmp_path / "captions.jsonl"
    sira("caption", scenes, "-p", "demo", "--method", "greedy", "-o", captions, "--verify", "flag")
    code, _, err = sira("check", captions, "-p", "demo", "-o", tmp_path / "checks.jsonl")
    assert code == 0
    assert "left out: 1 record of pictures that failed" in err
    made = records(captions)
    for name, record in records(tmp_path / "checks.jsonl").items():
        one, other = ([claim["support"] for claim in each["objects"]] for each in (record, made[name]))
        assert (record["text"], one) == (made[name]["text"], pytest.approx(other, abs=1e-4))


def test_ones_own_words_and_line(sira, scenes, tmp_path):
    (tmp_path / "words.txt").write_text("Lastwagen\nStuhl, Stühle\n", encoding="utf-8")
    more = ["--objects", tmp_path / "words.txt", "--min-support", "1", "--json"]
    _, out, _ = sira("check", scenes / "3.png", "-p", "demo", *more)
    record = json.loads(out)
    assert [claim["thing"] for claim in record["objects"]] == ["lastwagen", "stühle"]
    assert record["verify"]["min_support"] == 1.0


def test_the_best_of_a_pictures_captions_is_exported(sira, scenes, tmp_path):
    rows = ["file_name,text", *(f"0.png,There is a {name}." for name in ("sofa", "bicycle", "bed")), "1.png,A house."]
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    checks, best = tmp_path / "checks.jsonl", tmp_path / "best.jsonl"
    assert sira("check", tmp_path / "captions.csv", "--images", scenes, "-p", "demo", "-o", checks)[0] == 0
    assert sira("export", checks, "--best", "-o", best)[0] == 0
    assert [record["text"] for record in read(best)] == ["There is a bicycle.", "A house."]


# --- data sets


@pytest.fixture
def sharded(scenes, tmp_path):
    """Three captions in a shard, of which one sample has no text, and the same ones in a table."""
    data, texts = [(scenes / f"{number}.png").read_bytes() for number in range(4)], [*TEXTS.values()][:3]
    members = [(f"{number:03}.png", each) for number, each in enumerate(data)]
    members += [("000.json", json.dumps({"caption": texts[0], "n": 1}).encode())]
    members += [(f"00{number}.txt", f"{texts[number]}\n".encode()) for number in (1, 2)]
    rows = {"image": data, "caption": [*texts, None], "alt": ["A dog.", "", None, "A cup."]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "table.parquet")
    return write_tar(tmp_path / "shard.tar", sorted(members)), tmp_path / "table.parquet"


def test_captions_in_shards_are_checked_like_those_in_files(sira, sharded, scenes, tmp_path):
    sira("check", *(scenes / f"{number}.png" for number in range(3)), "-p", "demo", "-o", tmp_path / "files.jsonl")
    for place, name in zip(sharded, ("shard.tar/{:03}.png", "table.parquet/{}"), strict=True):
        command = ["check", place, "-p", "demo", "-o", tmp_path / f"{place.name}.jsonl"]
        code, out, err = sira(*command)
        assert code == 0, err
        assert "left out: 1 picture without a caption" in err, err
        found = records(tmp_path / f"{place.name}.jsonl")
        first = 1 if place.suffix == ".parquet" else 0  # rows are counted from 1
        assert [*found] == [name.format(first + number) for number in range(3)]
        for one, other in zip(found.values(), read(tmp_path / "files.jsonl"), strict=True):
            own = ("file_name", "key", "duration_ms")
            assert one | dict.fromkeys(own) == other | dict.fromkeys(own)
        assert sira(*command)[:2] == (0, out)
        assert records(tmp_path / f"{place.name}.jsonl") == found


def test_the_column_of_captions_can_be_named(sharded, tmp_path):
    shard, table = sharded
    for place, column, captions in ((table, "alt", ["A dog.", "", "A cup."]), (shard, "caption", [TEXTS["0"]])):
        assert [picture.caption for picture in find_captions(place, text_column=column).pictures] == captions
    none = write_tar(tmp_path / "none.tar", [("a.png", b"x"), ("a.json", b'{"alt": "A dog."}')])
    for place, column, message in (
        (table, "n", r"looked for a column n \(`text_column=`\), found caption, alt"),
        (shard, "n", "n is not text: 1"),
        (none, None, r"none of 1 pictures has a caption: .*\(`text_column=`\), found alt"),
    ):
        with pytest.raises(DataError, match=message):
            find_captions(place, text_column=column)


def test_a_caption_that_cannot_be_put_into_a_prompt_fails_alone(sira, tmp_path):
    draw(tmp_path, "A <image> of a dog.", "A house.")
    code, out, err = sira("check", tmp_path, "-p", "demo", "--objects", "ask", "--json")
    assert code == 3
    assert "0.png: the prompt holds <image>" in err
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["error", "ok"]


# --- while captions are written


def test_records_of_caption_hold_what_the_library_says_of_the_text(sira, scenes, tmp_path):
    command = ["caption", scenes, "-p", "demo", "--method", "greedy", "--verify", "flag", "--min-support", "0.5"]
    command += ["-o", tmp_path / "a.jsonl"]
    code, _, err = sira(*command, "-b", "3")
    lvlm, found = load("demo", method="greedy"), records(tmp_path / "a.jsonl")
    assert (code, len(found)) == (3, 7)
    look = {"mode": "flag", "words": "chair+amber/1", "question": "Is there {thing} in the image?", "min_support": 0.5}
    for name, record in found.items():
        assert record["verify"] == look
        assert record["status"] == "ok" or record["objects"] == []
        if record["status"] == "ok":
            same_claims(record, lvlm.check(tmp_path / name, record["text"]))
    doubted = [name for name, each in found.items() if min([1, *(one["support"] for one in each["objects"])]) < 0.5]
    assert 0 < len(doubted) < 6
    assert f"{len(doubted)} with objects that the picture does not support" in err
    assert "6 of 7 pictures were done before" in sira(*command)[2]  # nothing is left
    assert "not supported: " in sira("caption", tmp_path / doubted[0], *command[2:-2])[2]


@pytest.mark.parametrize("more", [["--verify", "flag", "--min-support", "0.9"], []])
def test_a_file_holds_texts_looked_at_in_one_way(sira, scenes, tmp_path, more):
    first = ["caption", scenes / "0.png", "-p", "demo", "--max-new-tokens", "8", "-o", tmp_path / "a.jsonl"]
    assert sira(*first, "--verify", "flag")[0] == 0
    code, _, err = sira(*first, *more)
    assert code == 2
    assert "holds records of another configuration: verify." in err


@pytest.mark.parametrize("mode", ["flag", "guide"])
def test_the_prefix_and_the_suffix_claim_nothing(scenes, mode):
    """The user wrote them, such as the trigger word of a training set."""
    alone = load("demo", max_new_tokens=12).caption(scenes / "1.png", verify=mode)
    around = load("demo", max_new_tokens=12, prefix="ohwx dog, ", suffix=" A zebra.")
    around = around.caption(scenes / "1.png", verify=mode)
    assert around.text == f"ohwx dog, {alone.text} A zebra."
    moved = [{**each, "spans": [[start + 10, end + 10] for start, end in each["spans"]]} for each in alone.objects]
    assert around.objects == moved != []
