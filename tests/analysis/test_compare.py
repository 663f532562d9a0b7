"""`sira compare`, and several methods over the same pictures in one load of the model."""

from __future__ import annotations

import json
import random
import re
import shutil
import tracemalloc
from pathlib import Path

import pytest

from sira_cli.analysis.compare import Pair, compare, differences
from sira_cli.errors import DataError
from tests.support.records import caption_record as record

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
FAST = ("-p", "demo", "--max-new-tokens", 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    for path in EXAMPLES[:3]:
        shutil.copy(path, tmp_path / "pictures")
    return tmp_path


def write(path: Path, *records: dict) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records), encoding="utf-8")
    return path


def test_a_comparison_of_two_runs(sira, folder):
    sira("caption", folder / "pictures", *FAST, "--method", "greedy,sira", "-o", folder / "captions.jsonl")
    a, b = folder / "captions-greedy.jsonl", folder / "captions-sira.jsonl"
    texts = [[json.loads(line)["text"] for line in path.read_text().splitlines()] for path in (a, b)]
    comparison = compare(a, b)
    assert comparison.settings == {"method": ("greedy", "sira"), "alpha": (0.0, 0.5)}
    different = [(one, other) for one, other in zip(*texts, strict=True) if one != other]
    assert [(pair.a["text"], pair.b["text"]) for pair in comparison.changed] == different != []
    assert (comparison.both, comparison.equal) == (3, 3 - len(different))
    words = tuple(sum(len(text.split()) for text in side) / 3 for side in texts)
    assert comparison.figures["words per text"] == pytest.approx(words)
    code, out, _ = sira("compare", a, b)
    assert code == 0
    for pair in comparison.changed:
        assert f"{pair.name}\n  {pair.marked()}\n" in out
    assert f"{comparison.equal} of 3 texts are equal" in out
    assert json.loads(sira("compare", a, b, "--json")[1]) == json.loads(json.dumps(comparison.to_record()))


def marked(a: str, b: str) -> str:
    return Pair(record("", a), record("", b)).marked()


def test_both_texts_can_be_read_from_the_marked_one():
    assert marked("There is a red ball, and  a dog.", "There is a ball and a blue dog!") == (
        "There is a [-red-] ball[-,-] and a {+blue+} dog[-.-]{+!+}"
    )
    assert marked("两只狗。", "两只猫。") == "两只[-狗-]{+猫+}。"
    draw = random.Random(0)
    for _ in range(300):
        a, b = (
            " ".join(draw.choice(["a", "dog", "cat", "is", "on", "the", "it's"]) for _ in range(draw.randrange(12)))
            for _ in range(2)
        )
        stretches = differences(a, b)
        assert ("".join(each.a for each in stretches), "".join(each.b for each in stretches)) == (a, b)
        first = re.sub(r"\{\+.*?\+\}", "", marked(a, b)).replace("[-", "").replace("-]", "")
        second = re.sub(r"\[-.*?-\]", "", marked(a, b)).replace("{+", "").replace("+}", "")
        assert (first.split(), second.split()) == (a.split(), b.split())


def test_settings_that_have_parts_differ_part_by_part(sira, tmp_path):
    look = {"mode": "flag", "min_support": 0.8, "claims": {"objects": {"question": "Is there a {thing}?"}}}
    a = write(tmp_path / "a.jsonl", record("1", "A dog."))
    looks = [record("1", "A dog.", verify=look | {"mode": mode}) for mode in ("flag", "guide")]
    b, c = (write(tmp_path / f"{each['verify']['mode']}.jsonl", each) for each in looks)
    assert compare(b, c).settings == {"verify.mode": ("flag", "guide")}
    assert list(compare(a, c).settings) == ["verify.mode", "verify.min_support", "verify.claims.objects.question"]
    out = sira("compare", a, c)[1]
    assert re.search(r"^ *verify\.mode +guide *$", out, re.MULTILINE)
    assert "{'" not in out


def test_sums(tmp_path):
    long, failed = {"finish_reason": "length"}, {"status": "error", "error": "4: bad", "finish_reason": "error"}
    first = [record("1", "A dog."), record("2", "A cat and a dog.", **long), record("3", "old"), record("3", "A bird.")]
    a = write(tmp_path / "a.jsonl", *first, record("4", "", **failed), record("5", "Only here."))
    texts = {"2": "A cat\u2028and a horse.", "1": "A dog.", "3": "A fish.", "4": "A fish.", "6": "Only there."}
    b = write(tmp_path / "b.jsonl", *(record(name, text, alpha=1.0) for name, text in texts.items()))
    b.write_bytes(b.read_bytes() + b'{"schema": "sira.cap')  # torn
    comparison = compare(a, b)
    assert (comparison.both, comparison.equal) == (4, 1)
    assert [pair.name for pair in comparison.changed] == ["2", "3", "4"]
    assert (comparison.only_a, comparison.only_b) == (["5"], ["6"])
    assert comparison.settings == {"alpha": (0.5, 1.0)}
    assert comparison.finish_reasons == {"error": (1, 0), "length": (1, 0), "stop": (2, 4)}
    assert comparison.figures["words per text"] == (3.0, 3.0)  # of 1, 2 and 3
    assert comparison.words == {"bird": (1, 0), "dog": (1, 0), "fish": (0, 1), "horse": (0, 1)}


def test_texts_stay_on_disk(tmp_path):
    """Memory for a record of a kilobyte is a few numbers."""
    text = "A dog on a sofa. " * 60
    a, b = (write(tmp_path / f"{name}.jsonl", *(record(f"{number}", text) for number in range(2000))) for name in "ab")
    tracemalloc.start()
    assert compare(a, b).equal == 2000
    assert tracemalloc.get_traced_memory()[1] < a.stat().st_size / 2
    tracemalloc.stop()


def test_pictures_are_found_in_files_of_other_folders(tmp_path):
    one, two = (record(f"../photos/{name}.jpg", text, image_sha256=name) for name, text in ("xA", "yB"))
    a = write(tmp_path / "one/a.jsonl", one, two)
    moved = [record(f"photos/{name}.jpg", text, image_sha256=name) for name, text in ("xA", "yC", "zD")]
    found = compare(a, write(tmp_path / "b.jsonl", *moved))
    assert [(pair.name, pair.b["text"]) for pair in found.changed] == [("../photos/y.jpg", "C")]
    assert (found.both, found.only_a, found.only_b) == (2, [], ["photos/z.jpg"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"type": "run"}\n', "line 1 is not a record of sira caption, sira ask or sira check"),
        (json.dumps(record("z", "Z.")) + "\n", "have no picture in common"),
    ],
)
def test_what_cannot_be_compared(sira, tmp_path, content, message):
    a, b = write(tmp_path / "a.jsonl", record("1", "A.")), tmp_path / "b.jsonl"
    b.write_text(content)
    with pytest.raises(DataError, match=message):
        compare(a, b)
    code, out, err = sira("compare", a, b)
    assert (code, out, err.count("\n")) == (2, "", 1)
    missing = tmp_path / "missing.jsonl"
    assert f"{missing}: cannot be read: No such file or directory" in sira("compare", a, missing)[2]
