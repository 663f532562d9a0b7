"""A picture with its text, as the page shows it."""

from __future__ import annotations

from sira_cli.pictures.single import FilePicture
from sira_cli.view.items import CaptionItem
from tests.view.conftest import looked_at


def test_what_is_at_the_line_is_supported():
    values = looked_at(0, cat=0.5, dog=0.4999)
    things = CaptionItem("0", "0.png", FilePicture("0.png", "0.png"), values["text"], values).things
    assert [(thing.thing, thing.low) for thing in things] == [("dog", True), ("cat", False)]
