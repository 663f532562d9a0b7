"""CHAIR: the text rule and its quirks, figures by hand, ground truth and its cache, files that are read and written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from sira_cli import presets
from sira_cli.errors import SettingsError
from sira_cli.eval import fallback
from sira_cli.eval.base import Ask
from sira_cli.eval.chair import PROMPT, Chair
from sira_cli.eval.chair_rows import read_ids
from sira_cli.eval.chair_words import HEADS, MERGES, SYNONYMS, mentions
from sira_cli.eval.coco import Annotations, image_of
from tests.eval import language_data

SHARED = Path(__file__).parents[3] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmarks' files are not beside the repository")

CATEGORIES = ["person", "dog", "cat", "car", "toilet", "chair", "dining table", "wine glass"]
IMAGES = {  # objects, reference captions
    7: (["person", "dog"], ["A man walks his dogs.", "A boy near a bench"]),
    8: (["car", "car"], ["Cars on a road."]),
    310196: ([], ["Nothing much."]),
}
CAPTIONS = {
    # 7: person, dog and bench are there; the cat twice and the car are not.
    "7": "A woman with a dog and a cat; the cat is near a car.",
    "8": "Two cars.",
    "310196": "",
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SIRA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write_coco(folder: Path, images=IMAGES, split: str = "val", year: str = "2014") -> Path:
    """COCO's files about a few images."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"id": image, "file_name": f"COCO_{split}{year}_{image:012d}.jpg"} for image in images]
    categories = [{"id": 10 + number, "name": name} for number, name in enumerate(CATEGORIES)]
    instances = [
        {"id": image, "image_id": image, "category_id": 10 + CATEGORIES.index(name), "bbox": [0, 0, 1, 1]}
        for image, (names, _) in images.items()
        for name in names
    ]
    captions = [{"image_id": image, "caption": text} for image, (_, texts) in images.items() for text in texts]
    (folder / f"instances_{split}{year}.json").write_text(
        json.dumps({"images": listed, "categories": categories, "annotations": instances})
    )
    (folder / f"captions_{split}{year}.json").write_text(json.dumps({"images": listed, "annotations": captions}))
    return folder


@pytest.fixture
def coco(tmp_path) -> Path:
    return write_coco(tmp_path / "coco" / "annotations").parent


@pytest.fixture
def chair(coco) -> Chair:
    return Chair.of(coco, ids=list(IMAGES), language="fallback")


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


# The text rule


def said(text: str) -> list[tuple[str, str]]:
    found = mentions(text.split())
    return list(zip(found.words, found.heads, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a man on a bike", [("man", "person"), ("bike", "bicycle")]),
        ("dog dog dog", [("dog", "dog")] * 3),
        # merges
        ("a motor cycle", [("motor cycle", "motorcycle")]),
        ("a baby elephant", [("elephant", "elephant")]),
        ("an adult cub", []),  # cub is no object, and takes the adult with it
        ("a baby and an elephant", [("baby", "person"), ("elephant", "elephant")]),
        ("a passenger jet", [("jet", "airplane")]),
        ("a passenger train", [("train", "train")]),
        ("a passenger bus", [("passenger", "person"), ("bus", "bus")]),
        ("a bow tie", [("tie", "tie")]),
        ("a wine glass", [("wine glass", "wine glass")]),
        ("a wine glas", [("wine glass", "wine glass")]),
        ("a laptop computer", [("laptop computer", "laptop")]),
        # greedy, from left to right: the bear belongs to the baby, not to the teddy that follows it
        ("baby bear teddy bear", [("bear", "bear"), ("teddy bear", "teddy bear")]),
        ("teddy bear cub", [("teddy bear", "teddy bear")]),
        ("baby teddy bear", [("baby", "person"), ("teddy bear", "teddy bear")]),
        ("bow bow tie", [("bow", "tie"), ("tie", "tie")]),
        # a merge is not merged again: "baby dog" is a dog, but no "hot dog"
        ("hot baby dog", [("dog", "dog")]),
        # words that others swallow
        ("a train track", []),
        ("home plate", []),
        ("a train by the track", [("train", "train")]),
        # never found: a space in front, capitals, three words
        ("a motor bike", []),
        ("cheesecake", []),
        ("cupcake", [("cupcake", "cake")]),
        ("iPhone iphone", [("iPhone", "cell phone")]),  # only as the text is lower-cased before
        ("a stove top oven", [("stove", "oven"), ("oven", "oven")]),
        # misspelt words of the list
        ("knive phon televison solider", list(zip(
            ["knive", "phon", "televison", "solider"], ["knife", "cell phone", "tv", "person"], strict=True))),
        # toilet and seat
        ("the seat of the toilet", [("toilet", "toilet")]),
        ("a toilet seat", [("toilet", "toilet")]),
        ("a toilet seat and a seat", [("toilet", "toilet")]),
        ("a seat", [("seat", "chair")]),
        ("a toilet and a chair", [("toilet", "toilet"), ("chair", "chair")]),
        ("a urinal and a seat", [("urinal", "toilet"), ("seat", "chair")]),
        ("", []),
    ],
)  # fmt: skip
def test_what_is_mentioned(text, expected):
    assert said(text) == expected


def test_length_counts_merged_tokens_and_the_seat():
    assert mentions(["a", "bow", "tie", ",", "a", "wine", "glass"]).tokens == ("a", "tie", ",", "a", "wine glass")
    assert mentions(["the", "seat", "of", "the", "toilet"]).tokens == ("the", "seat", "of", "the", "toilet")


def test_places_are_before_merges_but_too_low_behind_a_dropped_seat():
    assert mentions(["a", "bow", "tie", ",", "a", "wine", "glass", "."]).places == (1, 5)
    assert mentions(["a", "dog", "by", "the", "toilet"]).places == (1, 4)
    # The toilet is token 4 and the dog token 7; the list without the seat has them one further to the front.
    assert mentions(["the", "seat", "of", "the", "toilet", "and", "a", "dog"]).places == (3, 6)
    # A merge behind the seat: numbers are looked up among the starts of all tokens.
    assert mentions(["seat", "toilet", "bow", "tie", "dog"]).places == (0, 1, 2)


def test_every_category_of_coco_is_a_head():
    heads = set(HEADS.values())
    assert len(heads) == 80
    assert {"hair drier", "tv", "skis", "potted plant", "sports ball", *CATEGORIES} <= heads
    assert " motor bike" in HEADS
    assert " cheesecake" in HEADS
    assert HEADS["chesterfield"] == "couch"  # a space at the end of the line goes


@needs_shared
def test_the_list_is_the_official_one():
    assert SYNONYMS.read_bytes() == (SHARED / "data" / "chair" / "synonyms.txt").read_bytes()


DOUBLE = """motor bike|motor cycle|air plane|traffic light|street light|traffic signal|stop light|fire hydrant|stop sign
parking meter|suit case|sports ball|baseball bat|baseball glove|tennis racket|wine glass|hot dog|cell phone|mobile phone
teddy bear|hair drier|potted plant|laptop computer|home plate|train track""".replace("\n", "|").split("|")


def slow_rule(tokens: list[str], synonyms: str) -> tuple[list[str], list[str], list[str], list[int]]:
    """The rule once more, by marking positions: tokens, words, heads, places."""

    def pair(at: int) -> str | None:
        one, two = tokens[at : at + 2]
        if re.fullmatch("baby|adult", one) and re.fullmatch(
            "bird|cat|dog|horse|sheep|cow|elephant|bear|zebra|giraffe|animal|cub", two
        ):
            return two
        if one == "passenger" and two in ("jet", "train"):
            return two
        special = {"bow tie": "tie", "toilet seat": "toilet", "wine glas": "wine glass"}
        both = one + " " + two
        return special.get(both) or (both if both in DOUBLE else None)

    firsts: set[int] = set()
    for at in range(len(tokens) - 1):
        if pair(at) and at - 1 not in firsts:
            firsts.add(at)
    began = [at for at in range(len(tokens)) if at - 1 not in firsts]
    merged = [pair(at) if at in firsts else tokens[at] for at in began]
    seatless = list(merged)
    if merged.count("toilet") and merged.count("seat"):
        while "seat" in seatless:
            seatless.remove("seat")
    lines = [line.strip() for line in synonyms.split("\n")]
    words, heads, places = [], [], []
    for number, word in enumerate(seatless):
        for line in lines:
            if f", {word}, " in f", {line}, ":
                words.append(word)
                heads.append(line.split(", ")[0])
                places.append(began[number])
                break
    return merged, words, heads, places


@needs_shared
@pytest.mark.parametrize("model", ["instructblip-greedy", "llava-1.5-beam5", "minigpt4-ours", "shikra-greedy"])
def test_the_rule_against_a_slow_one_on_real_captions(model):
    data = SHARED / "data" / "chair"
    synonyms = (data / "synonyms.txt").read_text()
    mentioned = merged = 0
    for line in (data / "captions" / f"{model}.jsonl").read_text().splitlines()[::4]:
        tokens = [fallback.singular(word) for word in fallback.tokens(json.loads(line)["caption"].lower())]
        found = mentions(tokens)
        assert (list(found.tokens), list(found.words), list(found.heads), list(found.places)) == (
            slow_rule(tokens, synonyms)
        )
        mentioned += len(found.words)
        merged += len(tokens) - len(found.tokens)
    assert mentioned > 500
    assert merged > 10


def test_the_rule_against_a_slow_one_on_all_pairs_of_its_words():
    """Every merge beside every other, with toilets and seats: what real captions seldom have."""
    pairs = [*MERGES, "toilet", "seat", "a man"]
    for first in pairs:
        for second in pairs:
            tokens = f"{first} {second} seat baby {first}".split()
            found = mentions(tokens)
            assert (list(found.tokens), list(found.words), list(found.heads), list(found.places)) == (
                slow_rule(tokens, SYNONYMS.read_text())
            )


# Figures


def test_counts_and_figures_by_hand(chair):
    (part,) = chair.parts
    tally = chair.score(part, CAPTIONS)["captions"]
    name = "COCO_val2014_000000000007.jpg"
    assert tally.counts[name] == {
        "captions": 1,
        "hallucinated captions": 1,
        "mentions": 5,
        "hallucinated mentions": 3,
        "objects": 3,
        "recalled objects": 2,
        "tokens": 16,
    }
    assert tally.right == {"7": False, "8": True, "310196": True}
    total = tally.total()
    assert total["captions"] == 3
    assert chair.figures("captions", total) == {
        "CHAIRs": 100 * (1 / 3),
        "CHAIRi": 100 * (3 / 6),
        "recall": 100 * (3 / 4),
        "length": 100 * (0.01 * 19 / 3),
    }


def test_figures_of_nothing_are_0(chair):
    zeros = {"CHAIRs": 0.0, "CHAIRi": 0.0, "recall": 0.0, "length": 0.0}
    tally = chair.score(chair.parts[0], {"310196": ""})["captions"]
    assert chair.figures("captions", tally.total()) == zeros
    assert chair.score(chair.parts[0], {})["captions"].total() == {}


def test_a_missing_answer_is_left_out(chair):
    tally = chair.score(chair.parts[0], {"8": CAPTIONS["8"]})["captions"]
    assert tally.right == {"8": True}
    assert list(tally.counts) == ["COCO_val2014_000000000008.jpg"]


def test_reference_captions_hallucinate_nothing(coco):
    """What the references mention is true by definition."""
    chair = Chair.of(coco, ids=list(IMAGES), language="fallback")
    texts = {str(image): " ".join(captions) for image, (_, captions) in IMAGES.items()}
    figures = chair.figures("captions", chair.score(chair.parts[0], texts)["captions"].total())
    assert (figures["CHAIRs"], figures["CHAIRi"]) == (0.0, 0.0)
    assert figures["recall"] == 100.0


def test_details_have_the_official_keys(chair):
    first, second, third = chair.details(chair.parts[0], CAPTIONS)
    words = ["a", "woman", "with", "a", "dog", "and", "a", "cat", ";", "the", "cat", "is", "near", "a", "car", "."]
    assert first == {
        "image_id": 7,
        "caption": CAPTIONS["7"],
        "mscoco_hallucinated_words": [["cat", "cat"], ["cat", "cat"], ["car", "car"]],
        "mscoco_gt_words": ["bench", "dog", "person"],
        "mscoco_generated_words": ["person", "dog", "cat", "cat", "car"],
        "hallucination_idxs": [7, 10, 14],
        "words": words,
        "metrics": {"CHAIRs": 1, "CHAIRi": 3 / 5, "Recall": 2 / 3, "Len": 0.0},
    }
    assert second["metrics"] == {"CHAIRs": 0, "CHAIRi": 0.0, "Recall": 1.0, "Len": 0.0}
    assert third["metrics"] == {"CHAIRs": 0, "CHAIRi": 0.0, "Recall": 0.0, "Len": 0.0}
    assert third["words"] == []
    json.dumps([first, second, third])


def test_the_two_rules_read_captions_differently(coco, tmp_path, monkeypatch):
    language_data.use(monkeypatch, language_data.build(tmp_path / "nltk_data"))
    found = {}
    for rule in ("lemma", "singular"):
        chair = Chair.of(coco, ids=[8], rule=rule, language="nltk")
        (detail,) = chair.details(chair.parts[0], {"8": "The men are near a bus with two wine glasses."})
        found[rule] = detail["mscoco_generated_words"]
        assert chair.facts()["rule"] == rule
        assert chair.facts()["official"] is True
    language_data.forget()
    assert found["lemma"] == ["person", "bus", "wine glass"]
    assert found["singular"] == ["person", "wine glass"]  # `singularize` takes bus for a plural


def test_facts_name_rule_language_and_files(chair, coco):
    assert chair.facts() == {
        "rule": "lemma",
        "language": "fallback",
        "official": False,
        "why": "it was chosen",
        "rules": 1,
        "annotations": [str(coco / "annotations" / f"{kind}_val2014.json") for kind in ("instances", "captions")],
    }


# What is asked


def test_a_part_for_each_length(coco):
    chair = Chair.of(coco, ids=[8, 7], language="fallback", lengths=(64, 512))
    assert [(part.name, part.task, part.groups, part.settings) for part in chair.parts] == [
        ("64", "caption", ("64 tokens",), {"max_new_tokens": 64}),
        ("512", "caption", ("512 tokens",), {"max_new_tokens": 512}),
    ]
    assert chair.parts[0].asks == chair.parts[1].asks
    assert chair.parts[0].asks == (
        Ask("8", "COCO_val2014_000000000008.jpg", PROMPT),
        Ask("7", "COCO_val2014_000000000007.jpg", PROMPT),
    )
    assert PROMPT == "Please describe this image in detail."
    assert list(chair.score(chair.parts[1], {"8": "Two cars."})) == ["512 tokens"]


def test_what_of_refuses(coco, tmp_path):
    with pytest.raises(SettingsError, match="--rule 'stem': expected lemma or singular"):
        Chair.of(coco, ids=[7], rule="stem", language="fallback")
    with pytest.raises(SettingsError, match=r"nowhere: expected COCO's instances_val2014\.json and captions_val2014"):
        Chair.of(tmp_path / "nowhere", ids=[7], language="fallback")


# Ground truth


def truth_of(folder: Path, ids, words=lambda text: text.lower().strip(".").split(), **by: Any):
    return Annotations.find(folder).truth(ids, words, by)


def test_ground_truth_is_instances_and_references(coco):
    truth = truth_of(coco, [7, 310196])
    assert truth.objects == {7: {"person", "dog", "bench"}, 310196: frozenset()}
    assert truth.names == {7: "COCO_val2014_000000000007.jpg", 310196: "COCO_val2014_000000310196.jpg"}
    # Instances alone have no bench, references alone no dog, as "dogs" is not put in the singular here.
    assert truth_of(coco / "annotations", [7]) == truth_of(coco, [7])


def test_all_pairs_of_one_year_are_used(tmp_path):
    folder = write_coco(tmp_path / "coco", {7: IMAGES[7]})
    write_coco(folder, {8: IMAGES[8]}, split="train")
    write_coco(folder, {9: (["cat"], [])}, year="2017")
    truth = truth_of(folder, [8, 7])
    assert truth.objects == {7: {"person", "dog", "bench"}, 8: {"car"}}
    assert truth.names[8] == "COCO_train2014_000000000008.jpg"
    with pytest.raises(SettingsError, match="image 9 is not in ") as caught:
        truth_of(folder, [7, 9, 11])
    assert "instances_val2014.json" in str(caught.value)
    assert "2 are missing" in str(caught.value)
    for path in folder.glob("*2014.json"):
        path.unlink()
    assert truth_of(folder, [9]).objects == {9: {"cat"}}


def test_files_need_not_list_their_images(tmp_path):
    """The official script reads annotations only."""
    folder = write_coco(tmp_path / "coco")
    for path in folder.iterdir():
        content = json.loads(path.read_text())
        del content["images"]
        path.write_text(json.dumps(content))
    truth = truth_of(folder, [7, 310196])
    assert truth.objects == {7: {"person", "dog", "bench"}, 310196: frozenset()}
    assert truth.names[310196] == "COCO_val2014_000000310196.jpg"
    with pytest.raises(SettingsError, match=r"image 9 is not in .*instances_.*\(1 are missing\)"):
        truth_of(folder, [9])


def test_a_pair_is_needed(tmp_path):
    folder = write_coco(tmp_path / "coco")
    (folder / "captions_val2014.json").rename(folder / "captions_train2014.json")
    with pytest.raises(SettingsError, match="expected COCO's"):
        Annotations.find(folder)


def test_train_is_not_read_when_val_has_all(tmp_path):
    folder = write_coco(tmp_path / "coco")
    for kind in ("instances", "captions"):
        (folder / f"{kind}_train2014.json").write_text("no JSON")
    assert truth_of(folder, [7]).objects[7] == {"person", "dog", "bench"}
    with pytest.raises(SettingsError, match=r"instances_train2014\.json: line 1 is not JSON"):
        truth_of(folder, [7, 12])


def broken(folder: Path, kind: str, change) -> None:
    path = folder / f"{kind}_val2014.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("instances", lambda content: [content], "instances_val2014.json: expected a JSON object"),
        ("captions", lambda content: [content], "captions_val2014.json: expected a JSON object"),
        ("instances", lambda content: {**content, "images": 3}, "instances_val2014.json: expected a list 'images'"),
        ("captions", lambda content: {}, "captions_val2014.json: expected a list 'annotations'"),
        (
            "instances",
            lambda content: {**content, "categories": [{"id": 1, "name": "person"}, {"id": 2, "name": "spork"}]},
            r"instances_val2014.json: categories\[1\]: 'spork' is not in CHAIR's list",
        ),
        (
            "instances",
            lambda content: {**content, "annotations": [{"image_id": 7, "category_id": 99}]},
            r"instances_val2014.json: annotations\[0\]: there is no category 99",
        ),
        (
            "captions",
            lambda content: {"annotations": [{"image_id": 7, "caption": "x"}, {"image_id": 7}]},
            r"captions_val2014.json: annotations\[1\]: expected image_id \(int\) and caption \(str\), got \{'image_id'",
        ),
        ("captions", lambda content: {"annotations": ["x"]}, r"annotations\[0\]: expected image_id"),
        (
            "instances",
            lambda content: {**content, "images": [{"id": "7", "file_name": "7.jpg"}]},
            r"images\[0\]: expected id \(int\) and file_name \(str\)",
        ),
    ],
)
def test_what_is_not_as_in_coco_is_named(tmp_path, kind, change, message):
    folder = write_coco(tmp_path / "coco")
    broken(folder, kind, change)
    with pytest.raises(SettingsError, match=message):
        truth_of(folder, [7])


def test_synonyms_of_a_head_are_categories_too(tmp_path):
    folder = write_coco(tmp_path / "coco")
    categories = [{"id": 10 + number, "name": "motorbike"} for number, _ in enumerate(CATEGORIES)]
    broken(folder, "instances", lambda content: {**content, "categories": categories})
    assert truth_of(folder, [8]).objects[8] == {"motorcycle"}


# Its cache


def cached(home: Path) -> list[Path]:
    return sorted((home / "cache" / "chair").glob("*"))


def never(text: str) -> list[str]:
    raise AssertionError(f"read again: {text}")


def test_ground_truth_is_read_once(coco, home):
    first = truth_of(coco, [7, 310196], rule="lemma")
    assert presets.cache() == home / "cache"
    (path,) = cached(home)
    assert path.suffix == ".json"
    json.loads(path.read_text())
    assert truth_of(coco, [310196, 7], never, rule="lemma") == first


@pytest.mark.parametrize("what", ["ids", "rule", "size", "time", "place"])
def test_what_decides_is_in_the_key(coco, tmp_path, what):
    ids, by, folder = [7], {"rule": "lemma"}, coco
    path = coco / "annotations" / "captions_val2014.json"
    truth_of(coco, [7], rule="lemma")
    if what == "ids":
        ids = [7, 8]
    elif what == "rule":
        by = {"rule": "singular"}
    elif what == "size":
        state = path.stat()
        path.write_text(path.read_text() + " ")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif what == "time":
        os.utime(path, ns=(0, 1))
    else:
        folder = coco.rename(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="read again"):
        truth_of(folder, ids, never, **by)


def test_lists_of_images_do_not_push_each_other_out(coco, home):
    truth_of(coco, [7])
    truth_of(coco, [8])
    assert len(cached(home)) == 2
    truth_of(coco, [7], never)


def test_rule_and_language_are_in_the_key(coco, home, tmp_path, monkeypatch):
    for rule in ("lemma", "singular"):
        Chair.of(coco, ids=[7], rule=rule, language="fallback")
    assert len(cached(home)) == 2
    language_data.use(monkeypatch, language_data.build(tmp_path / "nltk_data"))
    Chair.of(coco, ids=[7], language="nltk")
    language_data.forget()
    assert len(cached(home)) == 3


@pytest.mark.parametrize(
    "content",
    [
        *[b"", b"{", b"\xff\xfe", b"[]", b"3", b"null", b"{}", b'{"7": 1}', b'{"7": {"name": "a.jpg"}}', b'{"x": {}}'],
        *[b'{"7": {"name": "a.jpg", "objects": 4}}', b'{"7": {"name": "a.jpg", "objects": ["spork"]}}'],
        *[b'{"8": {"name": "a.jpg", "objects": []}}', b'{"7": {"name": "a.jpg", "objects": [["cat"]]}}'],
    ],
)
def test_a_corrupt_cache_is_made_anew(coco, home, content):
    first = truth_of(coco, [7])
    (path,) = cached(home)
    good = path.read_bytes()
    path.write_bytes(content)
    assert truth_of(coco, [7]) == first
    assert path.read_bytes() == good
    assert cached(home) == [path]


# Answers


def test_read_takes_all_forms(chair, tmp_path):
    expected = {"captions": CAPTIONS}
    rows = [{"image_id": int(image), "caption": text} for image, text in CAPTIONS.items()]
    assert chair.read([write_lines(tmp_path / "a.jsonl", *rows)]) == expected
    array = tmp_path / "a.json"
    array.write_text(json.dumps(rows, indent=1))
    assert chair.read([array]) == expected
    mixed = [
        {"image_id": "7", "caption": CAPTIONS["7"]},
        {"image": "val2014/COCO_val2014_000000000008.jpg", "caption": CAPTIONS["8"], "model": "x"},
        {"file_name": "000000310196.jpg", "caption": ""},
    ]
    assert chair.read([write_lines(tmp_path / "b.jsonl", *mixed)]) == expected
    shards = [write_lines(tmp_path / "c.jsonl", mixed[2]), write_lines(tmp_path / "d.jsonl", *mixed[:2])]
    assert chair.read(shards) == expected
    assert list(chair.read(shards)["captions"]) == list(CAPTIONS)  # in the order of the images


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "a.jsonl: holds no captions"),
        (['{"image_id"'], "a.jsonl: line 1 is not JSON"),
        (["3"], "a.jsonl: line 1: expected a JSON object"),
        (
            [{"image_id": 7, "caption": "x"}, {"caption": "x"}],
            "a.jsonl: line 2: expected image_id or image or file_name",
        ),
        ([{"image_id": 7}], "a.jsonl: line 1: expected caption, found image_id"),
        ([{"image_id": "7" * 5000, "caption": "x"}], "a.jsonl: line 1: image_id is no image of COCO: '7"),
        ([{"image_id": 7, "caption": None}], "a.jsonl: line 1: caption is no text: None"),
        ([{"image_id": 7.5, "caption": "x"}], "a.jsonl: line 1: image_id is no image of COCO: 7.5"),
        ([{"image_id": True, "caption": "x"}], "a.jsonl: line 1: image_id is no image of COCO: True"),
        ([{"image": "photo.jpg", "caption": "x"}], "a.jsonl: line 1: image is no image of COCO: 'photo.jpg'"),
        (
            [{"image_id": 7, "caption": "x"}, {"image_id": "7", "caption": "y"}],
            "a.jsonl: line 2: image 7 has a caption in .*a.jsonl: line 1, too",
        ),
        ([{"image_id": 7, "caption": "x"}, {"image_id": 9, "caption": "y"}], "line 2: image 9 is not among the 3"),
        ([{"image_id": 8, "caption": "x"}], r"a.jsonl: no caption of image 7 \(2 of 3 are missing\)"),
    ],
)
def test_rows_that_are_wrong_are_named(chair, tmp_path, rows, message):
    with pytest.raises(SettingsError, match=message):
        chair.read([write_lines(tmp_path / "a.jsonl", *rows)])


def test_answers_of_one_length_are_its_part(coco, tmp_path):
    chair = Chair.of(coco, ids=[7], lengths=(64,), language="fallback")
    assert chair.read([write_lines(tmp_path / "a.jsonl", {"image_id": 7, "caption": "x"})]) == {"64": {"7": "x"}}


def test_what_is_exported_can_be_read(coco, tmp_path):
    chair = Chair.of(coco, ids=list(IMAGES), lengths=(64, 512), language="fallback")
    texts = {"64": CAPTIONS, "512": {"8": "Zwei Autos: 🚗"}}
    paths = chair.export(texts, tmp_path)
    assert [path.name for path in paths] == ["64.jsonl", "512.jsonl"]
    assert json.loads(paths[0].read_text().splitlines()[0]) == {"image_id": 7, "caption": CAPTIONS["7"]}
    assert paths[1].read_text(encoding="utf-8") == '{"image_id": 8, "caption": "Zwei Autos: 🚗"}\n'
    again = Chair.of(coco, ids=list(IMAGES), language="fallback")
    assert again.read([paths[0]]) == {"captions": CAPTIONS}
    assert chair.export({"512": CAPTIONS}, tmp_path) == [paths[1]]  # what nothing was said of has no file


# Lists of images


def test_ids_are_read_in_every_form(tmp_path):
    lines = write_lines(tmp_path / "ids.txt", "310196", "", "000000000007.jpg", "val2014/COCO_val2014_000000000008.jpg")
    assert list(read_ids(lines)) == [310196, 7, 8]
    assert read_ids(lines)[7].startswith(f"{lines}: line ")
    array = tmp_path / "ids.json"
    array.write_text('[310196, "7", "COCO_train2014_000000000008.jpg"]')
    assert list(read_ids(array)) == [310196, 7, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ids: holds no images"),
        ("[]", "ids: holds no images"),
        ("7\nseven\n", "ids: line 2: expected an image's number or its file name in COCO, got 'seven'"),
        ("[7, 8.5]", r"ids: row 2: expected an image's number or its file name in COCO, got 8\.5"),
        ("[true]", "ids: row 1: expected an image's number"),
        ("7\n8\n000000000007.jpg", "ids: line 3: image 7 is in .*ids: line 1, too"),
        ("[7,", "ids: line 1 is not JSON"),
    ],
)
def test_lists_that_are_wrong_are_refused(tmp_path, text, message):
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_ids(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_ids(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "image"),
    [
        *[("7", 7), (" 0007 ", 7), ("COCO_val2014_000000000042.jpg", 42), ("a/b/000000000042.JPG", 42)],
        *[(r"c:\val\42.png", 42), ("photo7.jpg", None), ("", None), ("-7", None), ("\u0667", None), ("7.gif", None)],
    ],
)
def test_image_of_a_name(text, image):
    assert image_of(text) == image
