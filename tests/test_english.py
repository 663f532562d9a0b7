"""English that is read once: words and turns of phrase with a plainer form are not used again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLAINER = {
    r"\bbehind\b": "after",
    r"\banew\b": "again, from scratch",
    r"\bbeside\b": "next to, with, compared with",
    r"\b(is|are) none\b": "no X; X does not exist",
    r", too\b(?! \w)": "also",
    r'"""(Return|Yield) what\b': "the noun",
}
FILES = [
    *(ROOT / "sira_cli").rglob("*.py"),
    *(ROOT / "tools").glob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
# Lines that may have them: what is meant is the place in a picture, a word list, or an official text.
ALLOWED: dict[str, tuple[str, ...]] = {}


@pytest.mark.parametrize("pattern", PLAINER)
def test_plainer_words_exist(pattern: str):
    """A failure names the lines, and the words to write instead."""
    found = []
    for file in FILES:
        name = file.relative_to(ROOT).as_posix()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(pattern, line) and not any(words in line for words in ALLOWED.get(name, ())):
                found.append(f"{name}:{number}: {line.strip()[:80]}")
    assert not found, f"write {PLAINER[pattern]}:\n" + "\n".join(found)
