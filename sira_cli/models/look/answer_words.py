"""The words that count as yes and as no, as first tokens of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from sira_cli.errors import UnsupportedModelError
from sira_cli.models.inputs.vocabulary import Vocabulary


def answer_tokens(vocabulary: Vocabulary, yes: Sequence[str], no: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the first tokens of answers that say yes, and of those that say no."""
    said, denied = _first_tokens(vocabulary, yes), _first_tokens(vocabulary, no)
    if said & denied:
        raise UnsupportedModelError(
            f"the tokenizer begins {yes[0]!r} and {no[0]!r} with the same token: their answers cannot be told apart"
        )
    return sorted(said), sorted(denied)


def _first_tokens(vocabulary: Vocabulary, words: Sequence[str]) -> set[int]:
    """Return the first token of every spelling of an answer, at the start of a text and after a space."""
    alone = [ids for word in words if (ids := vocabulary.encode_known(word))]
    spaced = [ids for word in words if (ids := vocabulary.encode_known(f" {word}"))]
    if any(len(ids) == 1 for ids in alone + spaced):
        return {ids[0] for ids in alone + spaced if len(ids) == 1}
    found = [*alone, *(ids for ids in spaced if vocabulary.data(ids[0]).strip())]
    # A tokenizer may put a token for the space before a text, which some templates write themselves.
    found += [ids[1:] for ids in alone if len(ids) > 1 and not vocabulary.data(ids[0]).strip()]
    if not found:
        raise UnsupportedModelError(f"the tokenizer has no token for {words[0]!r}: it cannot be an answer")
    return {ids[0] for ids in found}
