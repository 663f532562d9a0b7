"""To decide and to write on the page of `sira view`: nothing that a person did gets lost, and the way goes on."""

from __future__ import annotations

import pytest

from tests.support.browser import Browser, wait
from tests.view.conftest import record, sized, write
from tests.view.page import COUNT, INSIDE, PROGRESS, choose, edits, open_page, opened, words

STATE = "return document.querySelector('#picture .state').textContent"
CURRENT = "return Number(document.querySelector('.card.current').dataset.place)"
LEAVES = "return !dispatchEvent(new Event('beforeunload', {cancelable: true}))"


@pytest.fixture
def four_hundred(serve, folder):
    """The address of a page with 400 captions, 22 of them decided."""
    rows = [record(number, file_name=f"pictures/{number % 3}.png", id=f"n{number}") for number in range(400)]
    source = write(folder / "captions.jsonl", rows)
    lines = [
        {"schema": "sira.edit/1", "id": f"n{number}", "version": 1, "action": "change", "text": rows[number]["text"]}
        | {"decision": "accepted", "time": "2026-05-04T12:00:00+00:00", "before": {"text": "", "decision": ""}}
        for number in (0, 1, 2, *range(10, 29))
    ]
    write(folder / "captions.edits.jsonl", lines)
    return serve(source)


def write_text(browser: Browser, text: str) -> None:
    browser.press("e")
    wait(browser, "return document.activeElement.id", "mend")
    browser.press_together("Control", "a")
    browser.press(*text)


def write_and_accept(browser: Browser) -> None:
    """Give the first picture of the gallery another text, and accept it."""
    browser.click(".card a")
    opened(browser, "pictures/0.png")
    write_text(browser, "Two cats.")
    browser.press_together("Control", "Enter")
    words(browser, "Two cats.")
    browser.press("a")
    opened(browser, "pictures/1.png")


# --- undo and redo


def test_accepting_what_is_accepted_changes_nothing_also_for_undo(browser, serve, records):
    open_page(browser, serve(records))
    write_and_accept(browser)
    browser.press("Left")
    opened(browser, "pictures/0.png")
    browser.press("a")
    opened(browser, "pictures/1.png")
    browser.press("u")
    wait(browser, "return document.querySelector('#status').textContent.includes('nothing to undo')")
    opened(browser, "pictures/0.png")
    assert browser.run(STATE) == "Accepted"
    assert browser.text("#picture .words") == "Two cats."
    assert [(line["action"], line["text"], line["decision"]) for line in edits(records)] == [
        ("change", "Two cats.", ""),
        ("change", "Two cats.", "accepted"),
    ]
    browser.press("u")
    wait(browser, STATE, "Not yet decided")


def test_accepting_in_the_gallery_what_is_accepted_leaves_older_changes_alone(browser, serve, records):
    address = serve(records)
    open_page(browser, address)
    browser.press("a")
    wait(browser, PROGRESS, "1 of 3 decided")
    browser.press("Home", "a")  # again
    wait(browser, CURRENT, 1)
    open_page(browser, address)  # and in a window that did not do it
    browser.press("a", "u")
    wait(browser, "return document.querySelector('#status').textContent.includes('nothing to undo')")
    assert browser.run(PROGRESS) == "1 of 3 decided"
    assert len(edits(records)) == 1


def test_what_was_taken_back_is_made_again(browser, serve, records):
    open_page(browser, serve(records))
    write_and_accept(browser)
    browser.press("u", "u")
    opened(browser, "pictures/0.png")
    words(browser, "A cat and a dog, number 0.")
    browser.press("U")
    words(browser, "Two cats.")
    assert browser.run(STATE) == "Not yet decided"
    browser.click("#picture [data-do=redo]")
    wait(browser, STATE, "Accepted")
    assert browser.run("return document.querySelector('#picture [data-do=redo]').disabled")
    browser.press("Escape")
    browser.click("#gallery [data-do=undo]")
    wait(browser, PROGRESS, "0 of 3 decided")
    browser.click("#gallery [data-do=redo]")
    wait(browser, PROGRESS, "1 of 3 decided")
    assert [line["action"] for line in edits(records)] == [
        *("change", "change", "undo", "undo", "redo", "redo", "undo", "redo")
    ]


# --- what was typed


@pytest.fixture
def in_conflict(browser, serve, records):
    """A page on which a text was typed that another window was faster than; yields its address."""
    address = serve(records)
    open_page(browser, address)
    browser.click(".card a")
    opened(browser, "pictures/0.png")
    browser.press("e")
    script = """
        const sent = {method: 'POST', headers: {'Content-Type': 'application/json'}, body: arguments[0]};
        return fetch('api/items/0', sent).then((answer) => answer.status)"""
    assert browser.run(script, '{"seen": 0, "text": "Theirs."}') == 200
    browser.press_together("Control", "a")
    browser.press(*"Mine.")
    assert browser.run(LEAVES)
    browser.press_together("Control", "Enter")
    wait(browser, "return document.querySelector('.conflict')?.textContent.includes('changed elsewhere')")
    assert browser.run(LEAVES)  # the browser asks before the window is closed
    yield address
    browser.log("browser")  # it says that there was a conflict


def test_typing_on_in_a_conflict_drops_nothing_and_decides_nothing(browser, in_conflict, records):
    browser.press("Enter", *"more", "Enter")
    assert "Mine." in browser.text(".conflict")
    assert browser.run(LEAVES)
    assert [(line["text"], line["decision"]) for line in edits(records)] == [("Theirs.", "")]
    browser.run("document.querySelector('.conflict button:last-of-type').click()")
    wait(browser, "return document.querySelector('#picture .text, #picture')?.textContent.includes('Mine.')")


@pytest.mark.parametrize("way", ["Escape", "Right", "close"])
def test_what_was_typed_is_offered_again_however_a_conflict_was_left(browser, in_conflict, records, way):
    if way == "close":
        browser.run("location.replace('about:blank')")
        wait(browser, "return location.href", "about:blank")
        open_page(browser, in_conflict, cards=False)
    else:
        browser.press(way)
    if way == "Right":
        opened(browser, "pictures/1.png")
        assert not browser.run(LEAVES)
    browser.run("location.hash = ''")
    wait(browser, "return document.querySelector('#gallery').checkVisibility()")
    wait(browser, "return document.querySelector('.card .doubt')?.textContent", "Not saved")
    browser.run("location.hash = '#1'")
    opened(browser, "pictures/0.png")
    words(browser, "Theirs.")
    assert "Mine." in browser.text(".draft")
    assert "was changed since" in browser.text(".draft")
    browser.click("[data-do=save-draft]")
    words(browser, "Mine.")
    assert browser.run("return document.querySelector('.draft')") is None
    assert [line["text"] for line in edits(records)] == ["Theirs.", "Mine."]
    browser.press("Escape")
    wait(browser, "return document.querySelectorAll('.card .doubt').length", 0)


def test_what_was_typed_outlives_the_window_and_can_be_discarded(browser, serve, records):
    address = serve(records)
    open_page(browser, address)
    browser.press("e")
    opened(browser, "pictures/0.png")
    browser.press(*"Half a te")
    browser.run("location.replace('about:blank')")
    open_page(browser, address, cards=False)
    browser.run("location.hash = '#1'")
    wait(browser, "return document.querySelector('.draft .first')?.textContent.includes('Half a te')")
    browser.press("e")
    wait(browser, "return document.querySelector('textarea')?.value.includes('Half a te')")
    browser.press("Escape")
    wait(browser, "return document.querySelector('.draft .first')?.textContent.includes('Half a te')")
    browser.click("[data-do=discard]")
    wait(browser, "return document.querySelector('.draft')", None)
    open_page(browser, address)
    assert browser.run("return document.querySelector('.card .doubt')") is None
    assert not (records.with_name("captions.edits.jsonl")).exists()


# --- where one is


def test_keys_act_on_a_card_that_is_in_sight(browser, four_hundred, folder):
    open_page(browser, four_hundred)
    browser.click(".bar h1")
    browser.run("scrollTo(0, 9000)")
    wait(browser, f"return Math.min(...({INSIDE})) > 50")
    browser.press("r")
    wait(browser, "return document.querySelectorAll('.card .rejected').length", 1)
    place = int(edits(folder / "captions.jsonl")[-1]["id"].removeprefix("n"))
    assert place in browser.run(f"return ({INSIDE})")
    browser.run("scrollTo(0, 18000)")
    wait(browser, f"return Math.min(...({INSIDE})) > 150")
    browser.press("Enter")
    wait(browser, "return document.querySelector('#picture h1') !== null")
    assert int(browser.run("return location.hash").removeprefix("#")) > 150


def test_progress_and_the_next_that_is_undecided(browser, four_hundred):
    open_page(browser, four_hundred)
    assert browser.run(PROGRESS) == "22 of 400 decided"
    assert browser.run("return [document.querySelector('#bar').value, document.querySelector('#bar').max]") == [22, 400]
    browser.press("n")
    wait(browser, CURRENT, 3)
    browser.press("Enter")
    wait(browser, "return location.hash", "#4")
    for place in (*range(4, 10), 29):
        browser.press("n")
        wait(browser, "return location.hash", f"#{place + 1}")
    browser.press("Escape")
    choose(browser, "filter", "accepted")
    wait(browser, COUNT, "22 of 400 captions")
    browser.click("#gallery [data-do=undecided]")
    wait(browser, "return document.querySelector('#status').textContent", "All of these are decided.")


def test_cards_have_buttons(browser, serve, records):
    open_page(browser, serve(records))
    browser.click(".card[data-place='1'] [data-do=accept]")
    wait(browser, "return document.querySelector('.card[data-place=\"1\"] .state.accepted') !== null")
    browser.click(".card[data-place='2'] [data-do=reject]")
    wait(browser, PROGRESS, "2 of 3 decided")
    assert [(line["id"], line["decision"]) for line in edits(records)] == [
        ("pictures/1.png", "accepted"),
        ("pictures/2.png", "rejected"),
    ]
    pressed = "return [...document.querySelectorAll('.card [aria-pressed=true]')].map((e) => e.textContent)"
    assert browser.run(pressed) == ["Accept", "Reject"]
    assert browser.run("return document.querySelector('#picture').checkVisibility()") is False
    browser.press("u")  # also after a click
    wait(browser, PROGRESS, "1 of 3 decided")


def test_a_telephone_is_enough_to_decide(browser, serve, records):
    sized(browser, 390, 844)
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        open_page(browser, serve(records))
        reached = """
            const button = [...document.querySelectorAll(arguments[0])].find((each) => each.checkVisibility());
            const box = button.getBoundingClientRect();
            return [document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === button,
                    box.height >= 40, box.width >= 40, box.right <= innerWidth]"""
        assert browser.run(reached, ".card[data-place='0'] [data-do=accept]") == [True] * 4
        browser.click(".card[data-place='0'] [data-do=accept]")
        wait(browser, PROGRESS, "1 of 3 decided")
        assert browser.run(reached, "#gallery [data-do=undo]") == [True] * 4
        browser.run("location.hash = '#2'")
        opened(browser, "pictures/1.png")
        for action in ("accept", "reject", "edit", "undo"):  # without scrolling
            assert browser.run(reached, f"#picture [data-do={action}]") == [True] * 4, action
        browser.click("#picture [data-do=reject]")
        opened(browser, "pictures/2.png")
    finally:
        browser.devtools("Emulation.setTouchEmulationEnabled", enabled=False)
    assert [(line["id"], line["decision"]) for line in edits(records)] == [
        ("pictures/0.png", "accepted"),
        ("pictures/1.png", "rejected"),
    ]
