"""English that is read once: words and turns of phrase with a plainer form do not come back."""

from __future__ import annotations

import functools
import io
import re
import tokenize
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
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MODULES = [*(ROOT / "sira_cli").rglob("*.py"), *(ROOT / "tools").glob("*.py")]
ALLOWED = (
    "a dog beside a tree",  # a caption
    "if it goes behind",  # in a scene
    "and whose CHAIRi is, the one with the least CHAIRi; where there is none",  # the rule of `sira sweep`
)
_ATTRIBUTE = re.compile(r"\s*(behind|anew|beside): ")  # in a docstring: the name of an attribute or argument


@functools.cache
def lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of each line of a page; of a module, those of its strings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(enumerate(text.splitlines(), 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    shown = [each for each in tokens if each.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[each.type]]
    return [line for token in shown for line in enumerate(token.string.splitlines(), token.start[0])]


@pytest.mark.parametrize("pattern", PLAINER)
def test_plainer_words_are_used(pattern: str):
    """A failure names the lines, and the words to write instead."""
    found = []
    for path in [*PAGES, *MODULES]:
        for number, line in lines(path):
            if re.search(pattern, line) and not _ATTRIBUTE.match(line) and not any(words in line for words in ALLOWED):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, f"write {PLAINER[pattern]}:\n" + "\n".join(found)
