"""`sira compare`: two runs over the same pictures, and what differs."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from pathlib import Path

from sira_cli.analysis.compare import Pair, compare, differences
from tests.support.eval.writing import lines, read
from tests.support.records import caption_record as record

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))


def test_a_comparison_of_two_runs(sira, tmp_path):
    command = ("caption", *EXAMPLES[:3], "-p", "demo", "--max-new-tokens", 40, "--method", "greedy,sira")
    assert sira(*command, "-o", tmp_path / "captions.jsonl")[0] == 0
    a, b = tmp_path / "captions-greedy.jsonl", tmp_path / "captions-sira.jsonl"
    texts = [[record["text"] for record in read(path)] for path in (a, b)]
    comparison = compare(a, b)
    assert comparison.settings == {"method": ("greedy", "sira"), "alpha": (0.0, 0.5)}
    different = [(one, other) for one, other in zip(*texts, strict=True) if one != other]
    assert [(pair.a["text"], pair.b["text"]) for pair in comparison.changed] == different != []
    assert (comparison.both, comparison.equal) == (3, 3 - len(different))
    out = sira("compare", a, b)[1]
    for pair in comparison.changed:
        assert f"{pair.name}\n  {pair.marked()}\n" in out
    assert f"{comparison.equal} of 3 texts are equal" in out
    assert json.loads(sira("compare", a, b, "--json")[1]) == json.loads(json.dumps(comparison.to_record()))


def test_both_texts_can_be_read_from_the_marked_one():
    def marked(a: str, b: str) -> str:
        return Pair(record("", a), record("", b)).marked()

    assert marked("There is a red ball, and  a dog.", "There is a ball and a blue dog!") == (
        "There is a [-red-] ball[-,-] and a {+blue+} dog[-.-]{+!+}"
    )
    assert marked("两只狗。", "两只猫。") == "两只[-狗-]{+猫+}。"
    draw, words = random.Random(0), ["a", "dog", "cat", "is", "on", "the", "it's"]
    for _ in range(300):
        a, b = (" ".join(draw.choice(words) for _ in range(draw.randrange(12))) for _ in range(2))
        stretches = differences(a, b)
        assert ("".join(each.a for each in stretches), "".join(each.b for each in stretches)) == (a, b)
        first = re.sub(r"\{\+.*?\+\}", "", marked(a, b)).replace("[-", "").replace("-]", "")
        second = re.sub(r"\[-.*?-\]", "", marked(a, b)).replace("{+", "").replace("+}", "")
        assert (first.split(), second.split()) == (a.split(), b.split())


def test_sums(tmp_path):
    look, long = {"mode": "flag"}, {"finish_reason": "length"}
    failed = {"status": "error", "error": "4: bad", "finish_reason": "error"}
    first = [record("1", "A dog."), record("2", "A cat and a dog.", **long), record("3", "old"), record("3", "A bird.")]
    a = lines(tmp_path / "a.jsonl", [*first, record("4", "", **failed), record("5", "Only here.")])
    texts = {"2": "A cat\u2028and a horse.", "1": "A dog.", "3": "A fish.", "4": "", "6": "Only there."}
    b = lines(tmp_path / "b.jsonl", [record(name, text, alpha=1.0, verify=look) for name, text in texts.items()])
    b.write_bytes(b.read_bytes().replace(rb"\u2028", "\u2028".encode()) + b'{"schema": "sira.cap')  # torn
    comparison = compare(a, b)
    assert (comparison.both, comparison.equal) == (4, 1)
    assert [pair.name for pair in comparison.changed] == ["2", "3", "4"]
    assert (comparison.only_a, comparison.only_b) == (["5"], ["6"])
    assert comparison.settings == {"alpha": (0.5, 1.0), "verify.mode": (None, "flag")}  # part by part
    assert comparison.finish_reasons == {"error": (1, 0), "length": (1, 0), "stop": (2, 4)}
    assert comparison.figures["words per text"] == (3.0, 3.0)  # of 1, 2 and 3
    assert comparison.words == {"bird": (1, 0), "dog": (1, 0), "fish": (0, 1), "horse": (0, 1)}


def test_texts_stay_on_disk(tmp_path):
    """Memory for a record of a kilobyte is a few numbers."""
    records = [record(f"{number}", "A dog on a sofa. " * 60) for number in range(2000)]
    a, b = (lines(tmp_path / f"{name}.jsonl", records) for name in "ab")
    del records
    tracemalloc.start()
    assert compare(a, b).equal == 2000
    assert tracemalloc.get_traced_memory()[1] < a.stat().st_size / 2
    tracemalloc.stop()


def test_pictures_are_found_in_files_of_other_folders(tmp_path):
    one, other = (
        [record(f"{folder}/{name}.jpg", text, image_sha256=name) for name, text in texts]
        for folder, texts in (("../photos", ("xA", "yB")), ("photos", ("xA", "yC", "zD")))
    )
    found = compare(lines(tmp_path / "one/a.jsonl", one), lines(tmp_path / "b.jsonl", other))
    assert [(pair.name, pair.b["text"]) for pair in found.changed] == [("../photos/y.jpg", "C")]
    assert found.both == 2
    assert found.only_a == []
    assert found.only_b == ["photos/z.jpg"]
