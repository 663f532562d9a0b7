"""The threshold of the second look on the command line: where it is ignored or not measured, the user is told."""

from __future__ import annotations

import shutil

import pytest

from tests.support.shards import EXAMPLES


@pytest.fixture
def captions(tmp_path):
    shutil.copy(EXAMPLES[0], tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("Ein Hund steht auf einem Stuhl.")
    (tmp_path / "words.txt").write_text("Hund\nStuhl\n")
    return tmp_path


def test_a_threshold_of_objects_that_are_not_asked_about_is_refused(sira, captions):
    for command in (("check", captions), ("caption", captions / "a.png", "--verify", "flag")):
        code, _, err = sira(*command, "-p", "demo", "--claims", "colors", "--min-support", "0.99")
        assert code == 2
        assert "--min-support is the threshold of objects, but the claims are colors" in err


def test_a_threshold_of_another_language_is_not_measured(sira, captions):
    command = ("check", captions, "-p", "demo", "--objects", captions / "words.txt")
    _, _, err = sira(*command, "--language", "de")
    assert "is not measured for bundled, language de: " in " ".join(err.split())
    for options in ((), ("--language", "en"), ("--language", "de", "--min-support", "0.5")):
        assert "is not measured" not in sira(*command, *options)[2]
