"""CHAIR: its text rule and quirks, figures by hand, captions from files, and the ground truth with its cache."""

from __future__ import annotations

import functools
import hashlib
import json
import re

import numpy as np
import pytest

from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.benchmark import AnswerFiles, Asking
from sira_cli.eval.chair import HEADS, Chair, find_truth, mentions, opened, read_ids
from sira_cli.eval.figures import CHAIR_DENOMINATORS, chair_figures, text_counts
from sira_cli.eval.statistics import estimates
from sira_cli.language import CHAIR_WORDS, singular, tokens
from tests.support.eval import language_data
from tests.support.eval.benchmarks import CAPTIONS, IMAGES, write_coco
from tests.support.eval.writing import lines, save

# The text rule.


# A cub is no object, and takes the adult with it. Greedy, from left to right: the bear belongs to the baby, not to the
# teddy that follows it. A merge is not merged again: a baby dog is a dog, but no hot dog. Never found: a space in front
# (motor bike, cheesecake), capitals, three words.
MENTIONED = """
a man on a bike: man person, bike bicycle | dog dog: dog dog, dog dog | a motor cycle: motor+cycle motorcycle
a baby elephant: elephant elephant | an adult cub: | a baby and an elephant: baby person, elephant elephant
a passenger jet: jet airplane | a passenger train: train train | a passenger bus: passenger person, bus bus
a bow tie: tie tie | a wine glass: wine+glass wine+glass | a wine glas: wine+glass wine+glass
a laptop computer: laptop+computer laptop | baby bear teddy bear: bear bear, teddy+bear teddy+bear
teddy bear cub: teddy+bear teddy+bear | baby teddy bear: baby person, teddy+bear teddy+bear
bow bow tie: bow tie, tie tie | hot baby dog: dog dog | a train track: | home plate: | a train by the track: train train
a motor bike: | cheesecake: | cupcake: cupcake cake | iPhone iphone: iPhone cell+phone
a stove top oven: stove oven, oven oven | the seat of the toilet: toilet toilet
knive phon televison solider: knive knife, phon cell+phone, televison tv, solider person
a toilet seat and a seat: toilet toilet | a seat: seat chair
a toilet and a chair: toilet toilet, chair chair | a urinal and a seat: urinal toilet, seat chair
"""


def test_what_is_mentioned():
    for row in re.split(r" \| |\n", MENTIONED.strip()):
        text, _, expected = row.partition(":")
        found = mentions(text.split())
        pairs = [f"{word} {head}" for word, head in zip(found.words, found.heads, strict=True)]
        assert pairs == [pair.replace("+", " ") for pair in expected.strip().split(", ") if pair], text
    assert mentions(["a", "bow", "tie", ",", "a", "wine", "glass", "."]).length == 6  # of merged tokens


def test_the_list_is_the_official_one():
    """By the hash of the file in CHAIR's repository."""
    official = "b685537b36fe21b791c87151b96a991ceb582edff19f3da204dcc7a7905502f2"
    assert hashlib.sha256(CHAIR_WORDS.read_bytes()).hexdigest() == official
    assert (len({*HEADS.values()}), HEADS["chesterfield"]) == (80, "couch")  # a space at the end of the line goes


@pytest.mark.parametrize(
    ("model", "sizes", "digest"),
    [
        ("instructblip-greedy", [14_356, 14_320, 556], "c047d5e040c30caa"),
        ("shikra-greedy", [13_107, 13_056, 1_001], "47c7a7fa3c1424bb"),
    ],
)
def test_real_captions_are_read_as_ever(model, sizes, digest, benchmarks):
    """As a slow rule read them once: words, merged words, things; and all of it in a hash."""
    found, hashed = [0, 0, 0], hashlib.sha256()
    for line in (benchmarks / "chair" / f"{model}.jsonl").read_text().splitlines():
        words = [singular(word) for word in tokens(json.loads(line)["caption"].lower())]
        said = mentions(words)
        sums = zip(found, (len(words), said.length, len(said.words)), strict=True)
        found = [before + each for before, each in sums]
        hashed.update(repr((said.length, said.words, said.heads)).encode())
    assert (found, hashed.hexdigest()[:16]) == (sizes, digest)


# Figures.


def test_counts_and_figures_by_hand(chair):
    (part,) = chair.parts
    tally = chair.score(part, CAPTIONS)["captions"]
    assert tally.right == {"7": False, "8": True, "310196": True}
    assert chair.figures("captions", tally.total()) == {
        "CHAIRs": 100 * (1 / 3),
        "CHAIRi": 100 * (3 / 7),
        "over kinds": 100 * (2 / 5),  # 5 kinds in the captions, 3 of which are in the pictures
        "recall": 100 * (3 / 4),
        "length": 100 * (0.01 * 22 / 3),
        "F1": 200 * (3 / 9),
        "words": 19 / 3,
        "broken": 100 * (1 / 3),  # the empty one
    }


BROKEN = {
    "There is a dog. There is a cat.": 0,
    "A dog sits here. A dog sits here.": 1,
    "There is a kite and a flower on the right and a flower on the right.": 1,
    "A dog on the left and a cat on the left, in the sun, in the sun.": 0,  # short clauses
    "A very very very large dog.": 1,
    " ": 1,
}


def test_broken_texts():
    assert {text: text_counts(text, [])["broken"] for text in BROKEN} == BROKEN


def test_the_two_rules_read_captions_differently(coco, tmp_path, monkeypatch):
    language_data.use(monkeypatch, language_data.build(tmp_path / "nltk_data"))
    found = {}
    for rule in ("lemma", "singular"):
        chair = Chair(coco, ids=[8], rule=rule, language="nltk")
        found[rule] = list(mentions(chair._words("The men are near a bus with two wine glasses.")).heads)
        assert chair.facts()["rule"] == rule
        assert chair.facts()["official"] is True
    language_data.forget()
    # `singularize` takes bus for a plural
    assert found == {"lemma": ["person", "bus", "wine glass"], "singular": ["person", "wine glass"]}
    with pytest.raises(SettingsError, match="`rule=` 'stem': expected lemma or singular"):
        Chair(coco, ids=[7], rule="stem", language="fallback")


# Captions and lists of images in files.


def test_captions_are_read_from_lines_arrays_and_shards(coco, chair, tmp_path):
    given = [{"image_id": int(image), "caption": text} for image, text in CAPTIONS.items()]
    one, array = lines(tmp_path / "a.jsonl", given), save(tmp_path / "a.json", given)
    shards = lines(tmp_path / "c.jsonl", given[2:]), lines(tmp_path / "d.jsonl", given[:2])
    for paths in ([one], [array], shards):
        assert [*chair.read(paths)["captions"].items()] == [*CAPTIONS.items()]  # in the order of the images
    some = Chair(coco, ids=[8], language="fallback")
    assert some.read([one]) == {"captions": {"8": CAPTIONS["8"]}}


def test_lists_of_images(tmp_path):
    text = save(tmp_path / "ids.txt", "310196\n\n000000000007.jpg\nval2014/COCO_val2014_000000000008.jpg\n")
    array = save(tmp_path / "ids.json", [310196, "7", "COCO_train2014_000000000008.jpg"])
    assert list(read_ids(text)) == list(read_ids(array)) == [310196, 7, 8]
    assert read_ids(text)[7].startswith(f"{text}: line ")
    for content, message in (
        ("", "ids.txt: holds no images"),
        ("7\nseven\n", "ids.txt: line 2: expected an image's number or its file name in COCO, got 'seven'"),
        ("7\n8\n000000000007.jpg", "ids.txt: line 3: image 7 is also in .*ids.txt: line 1"),
    ):
        with pytest.raises(DataError, match=message):
            read_ids(save(text, content))


def test_a_sample_of_images_is_drawn_by_a_seed(tmp_path):
    """By the rule: in the order of a hash, so the first ones of a larger sample. It stands in the report."""
    folder = write_coco(tmp_path / "coco", dict.fromkeys(range(1, 41), IMAGES[7]))

    def drawn(ids: str) -> list[str]:
        chair = opened(folder, Asking(options={"ids": ids, "language": "fallback", "lengths": "64"}))
        assert chair.facts()["sample"] == ids
        return [ask.id for ask in chair.parts[0].asks]

    order = sorted(map(str, range(1, 41)), key=lambda image: hashlib.sha256(f"7:{image}".encode()).hexdigest())
    assert (drawn("40@7"), drawn("5@7")) == (order, order[:5])
    assert drawn("5@8") != order[:5]
    for count in (0, 41):
        with pytest.raises(SettingsError, match=rf"`ids=` {count}@7: .*captions_val2014.json has 40 images"):
            drawn(f"{count}@7")


def test_a_file_of_images_may_have_the_name_of_a_sample(coco, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "2@0", "8\n")
    chair = opened(coco, Asking(options={"ids": "2@0", "language": "fallback"}))
    assert [ask.id for ask in chair.parts[0].asks] == ["8"]
    assert "sample" not in chair.facts()


# Ground truth.


truth_of = functools.partial(find_truth, words=lambda text: text.lower().strip(".").split())


def test_ground_truth_is_instances_and_references(coco):
    """Instances alone have no bench, references alone no dog. The official script reads annotations only."""
    for listed in (True, False):
        for path in () if listed else (coco / "annotations").iterdir():
            content = json.loads(path.read_text())
            del content["images"]
            save(path, content)
        for folder in (coco, coco / "annotations"):
            truth = truth_of(folder, [7, 310196])
            assert truth.objects == {7: {"person", "dog", "bench"}, 310196: frozenset()}
            assert truth.names == {7: "COCO_val2014_000000000007.jpg", 310196: "COCO_val2014_000000310196.jpg"}
    with pytest.raises(DataError, match=r"image 9 is not in .*instances_.*\(1 are missing\)"):
        truth_of(coco, [9])


def test_all_pairs_of_one_year_are_used(tmp_path):
    folder = write_coco(tmp_path / "coco", {7: IMAGES[7]})
    write_coco(folder, {8: IMAGES[8]}, split="train")
    write_coco(folder, {9: (["cat"], [])}, year="2017")
    truth = truth_of(folder, [8, 7])
    assert truth.objects == {7: {"person", "dog", "bench"}, 8: {"car"}}
    assert truth.names[8] == "COCO_train2014_000000000008.jpg"
    with pytest.raises(DataError, match=r"image 9 is not in .*instances_val2014.json.*2 are missing"):
        truth_of(folder, [7, 9, 11])
    for path in folder.glob("*2014.json"):
        path.unlink()
    assert truth_of(folder, [9]).objects == {9: {"cat"}}
    with pytest.raises(DataError, match=r"nowhere: expected COCO's instances_val2014\.json and captions_val2014"):
        truth_of(tmp_path / "nowhere", [7])


NAMES = [{"id": 1, "name": "person"}, {"id": 2, "name": "spork"}]
ROWS = [{"image_id": 7, "caption": "x"}, {"image_id": 7}]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("instances", None, "instances_val2014.json: expected a JSON object"),
        ("captions", {"annotations": 3}, "captions_val2014.json: expected a list 'annotations'"),
        ("instances", {"categories": NAMES}, r"categories\[1\]: 'spork' is not in CHAIR's list"),
        ("instances", {"annotations": [{"image_id": 7, "category_id": 99}]}, r"\[0\]: category 99 is not defined"),
        ("captions", {"annotations": ROWS}, r"annotations\[1\]: expected image_id \(int\) and caption \(str\)"),
    ],
)
def test_what_is_not_as_in_coco_is_named(coco, kind, changes, message):
    path = coco / "annotations" / f"{kind}_val2014.json"
    save(path, [] if changes is None else json.loads(path.read_text()) | changes)
    with pytest.raises(DataError, match=message):
        truth_of(coco, [7])


@pytest.mark.parametrize(
    ("listed", "answered", "options", "images"),
    [
        ("7\n8\n", [7, 8], {}, [7, 8]),
        ("7\n8\n", [8], {}, [7, 8]),  # of which one is missing
        ("7\n", [7, 8], {}, [7, 8]),  # the list is of other images
        ("7\n8\n", [8], {"ids": "8\n"}, [8]),  # asked for
        ("", [8], {}, [8]),
    ],
)
def test_the_images_of_captions_are_those_of_the_folders_list(coco, tmp_path, listed, answered, options, images):
    if listed:
        save(coco / "ids.txt", listed)
    captions = lines(tmp_path / "c.jsonl", [{"image_id": image, "caption": "A dog."} for image in answered])
    given = {name: str(save(tmp_path / name, text)) for name, text in options.items()}
    sources = [AnswerFiles("mine", (captions,), own=False)]
    chair = opened(coco, Asking(options=given | {"language": "fallback"}, sources=sources))
    assert [int(ask.id) for ask in chair.parts[0].asks] == images
    if {*images} == {*answered}:
        assert len(chair.read([captions])["captions"]) == len(images)
    else:
        with pytest.raises(
            DataError, match=r"no caption of image 7 \(1 of 2 are missing\): finish the run, or give `ids"
        ):
            chair.read([captions])


@pytest.mark.parametrize(("pictures", "alike"), [(50, 2.0), (200, 2.0), (200, 20.0)])
def test_the_interval_of_chairi_holds_the_truth_in_95_of_100(pictures, alike):
    """Simulated: mentions of a picture are alike (the less, the larger `alike`), and pictures have more or fewer."""
    draw = np.random.default_rng(0)
    rounds = 1_000
    share = 0.12
    kept = 0
    names = ["hallucinated captions", "captions", "hallucinated mentions", "mentions", "recalled objects", "objects"]
    for _ in range(rounds):
        mentions_each = 1 + draw.poisson(4, pictures)
        doubtful = draw.beta(alike * share, alike * (1 - share), pictures)
        absent = draw.binomial(mentions_each, doubtful)
        ones = np.ones(pictures)
        counts = np.stack([absent > 0, ones, absent, mentions_each, ones, ones], axis=1).astype(float)
        found = estimates(names, counts, chair_figures, CHAIR_DENOMINATORS)["CHAIRi"].figure()
        kept += found.low <= 100 * share <= found.high
    assert 0.93 <= kept / rounds <= 0.975
