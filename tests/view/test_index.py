"""The index of captions: what is found and in which order, and how little of the captions is in memory."""

from __future__ import annotations

import json
import random
import tracemalloc

import pytest

from sira_cli.view import Collection, Edits
from sira_cli.view.index import FILTERS, SORTS
from sira_cli.view.live import Live
from tests.view.conftest import looked_at, record, write

WORDS = ["a", "cat", "dog", "Über", "STRASSE", "sofa", "number", "bird", "red"]


@pytest.fixture
def mixed(folder):
    """300 records of all kinds, with texts, supports and decisions by chance; and their edits."""
    chance = random.Random(26)
    rows = []
    for number in range(300):
        text = " ".join(chance.choices(WORDS, k=chance.randrange(1, 9)))
        row = record(number, text=text, file_name=f"pictures/{chance.choice('aBcD')}{number}.png", id=f"n{number}")
        if chance.random() < 0.5:
            row |= {key: looked_at(0, chance.random(), chance.random())[key] for key in ("objects", "verify")}
            row["text"] = f"A cat and a dog, {text}"
        if chance.random() < 0.1:
            row |= {"status": "error", "text": "", "error": "boom"}
        if chance.random() < 0.1:
            row["warnings"] = ["is tiny"]
        rows.append(row)
    captions = Collection.read(write(folder / "captions.jsonl", rows))
    edits = Edits(captions.edits_file)
    for item in chance.sample([*captions.items], 80):
        text = chance.choice([None, "A horse.", ""])
        edits.change(item, seen=0, text=text, decision=chance.choice(["", "accepted", "rejected"]))
    return captions, edits


def fits(name: str, item, state, missing: bool) -> bool:
    """Whether an item is shown, as the page decided it when it had all of them."""
    edited = state.text != item.text
    low = not edited and any(thing.low for thing in item.things)
    return {
        "all": True,
        "undecided": not state.decision,
        "low": low,
        "differs": False,
        "edited": edited,
        "accepted": state.decision == "accepted",
        "rejected": state.decision == "rejected",
        "errors": (bool(item.error) and not edited) or missing,
        "warnings": bool(item.warnings),
        "empty": not state.text,
    }[name]


@pytest.mark.parametrize("name", FILTERS)
def test_what_is_shown_is_what_a_look_at_every_caption_finds(mixed, name):
    captions, edits = mixed
    live = Live(captions, edits, None)
    live.update()
    missing = captions.missing
    items, state = [*captions.items], edits.state
    assert len(missing) == 300
    keys = {
        "file": lambda number: 0,
        "support": lambda number: 2 if items[number].support is None else items[number].support,
        "name": lambda number: items[number].name.lower(),
        "length": lambda number: -len(state(items[number]).text),
    }
    assert [*keys] == [*SORTS]
    codes = {"": 0, "accepted": 1, "rejected": 2}
    for sort, key in keys.items():
        for words in ((), ("cat",), ("über", "a"), ("strasse", ".png"), ("n1",)):
            expected = [
                number
                for number, item in enumerate(items)
                if fits(name, item, state(item), missing=True)
                and all(word in f"{state(item).text} {item.name}".lower() for word in words)
            ]
            expected.sort(key=lambda number: (key(number), number))
            found = captions.index.shown(words, name, sort)
            assert [one >> 2 for one in found] == expected
            assert [one & 3 for one in found] == [codes[state(items[number]).decision] for number in expected]


@pytest.mark.slow
def test_records_stay_on_disk(folder):
    """30 MB of records, of which no more than a small part is in memory at once."""
    path = folder / "captions.jsonl"
    with path.open("w") as file:
        for number in range(20_000):
            row = record(number, text=f"Number {number}, {'a cat ' * 200}", id=f"n{number}")
            file.write(json.dumps(row) + "\n")
    tracemalloc.start()
    try:
        captions = Collection.read(path)
        assert sum(len(item.text) for item in captions.items) > path.stat().st_size / 2
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size * 0.75
    finally:
        tracemalloc.stop()
    assert captions.items[-1].text.startswith("Number 19999, ")
    assert [item.id for item in captions.items[5:7]] == ["n5", "n6"]
