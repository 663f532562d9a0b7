"""The words that count as answers to a question, as tokens.

red, Red, blue, Blue     first tokens that lead to one answer only: their probability is the answer's
gray, green -> gr ...    a first token of two answers: the model is also asked for the next token after it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sira_cli.errors import UnsupportedModelError
from sira_cli.models.inputs.vocabulary import Vocabulary

Tokens = tuple[int, ...]


class AnswerWords:
    """The answers of one kind of question.

    Attributes:
        values: what the answers stand for.
    """

    def __init__(self, vocabulary: Vocabulary, answers: Mapping[str, Sequence[str]], *, single: bool = False) -> None:
        """Find the tokens.

        Args:
            vocabulary: the tokenizer.
            answers: the spellings of each answer, by what it stands for.
            single: only spellings that are one token count, if an answer has any.

        Raises:
            UnsupportedModelError: the tokenizer has no tokens for an answer, or the same for two of them.
        """
        self.values = list(answers)
        spelled = [_spellings(vocabulary, words, single) for words in answers.values()]
        leads: dict[Tokens, set[int]] = {}
        for answer, spellings in enumerate(spelled):
            for tokens in spellings:
                for length in range(1, len(tokens) + 1):
                    leads.setdefault(tokens[:length], set()).add(answer)
        self._deciding: dict[Tokens, dict[int, set[int]]] = {(): {}}  # after these tokens, the next ones of each answer
        self._ending: dict[Tokens, int] = {}  # answers that end here, where others go on
        self._deeper: dict[Tokens, set[int]] = {}  # next tokens that do not decide
        for answer, spellings in enumerate(spelled):
            for tokens in spellings:
                begun = next((n for n in range(len(tokens)) if len(leads[tokens[: n + 1]]) == 1), len(tokens))
                for length in range(begun):
                    self._deeper.setdefault(tokens[:length], set()).add(tokens[length])
                if begun < len(tokens):
                    self._deciding.setdefault(tokens[:begun], {}).setdefault(answer, set()).add(tokens[begun])
                elif self._ending.setdefault(tokens, answer) != answer:
                    raise UnsupportedModelError(f"the tokenizer has the same tokens for two answers: {self.values}")

    def logprobs(self, first: Tensor, after: Callable[[Tokens], Tensor]) -> Tensor:
        """Return the log-probability of each answer: `[Q, A]`.

        Args:
            first: of the first token of Q answers, `[Q, V]`.
            after: returns the same for the token that follows some first tokens.
        """
        parts: list[list[Tensor]] = [[] for _ in self.values]
        reached: dict[Tokens, Tensor] = {}  # log-probabilities of tokens that do not decide, [Q]
        for begun in sorted({*self._deciding, *self._deeper}, key=len):
            logprobs = after(begun) if begun else first
            before = reached.get(begun, 0.0)
            going_on = []
            for answer, tokens in self._deciding.get(begun, {}).items():
                going_on.append(logprobs[:, sorted(tokens)].logsumexp(dim=1))
                parts[answer].append(going_on[-1] + before)
            for token in sorted(self._deeper.get(begun, ())):
                going_on.append(logprobs[:, token])
                reached[*begun, token] = going_on[-1] + before
            if begun in self._ending:
                rest = (1 - torch.stack(going_on).logsumexp(dim=0).exp()).clamp(min=0)
                parts[self._ending[begun]].append(rest.log() + before)
        return torch.stack([torch.stack(part).logsumexp(dim=0) for part in parts], dim=1)


def _spellings(vocabulary: Vocabulary, words: Sequence[str], single: bool) -> list[Tokens]:
    """Return the tokens of every spelling of an answer, at the start of a text and after a space.

    Raises:
        UnsupportedModelError: it has no tokens for them.
    """
    alone = [tuple(ids) for word in words if (ids := vocabulary.encode_known(word))]
    spaced = [tuple(ids) for word in words if (ids := vocabulary.encode_known(f" {word}"))]
    if single and any(len(ids) == 1 for ids in alone + spaced):
        return [ids for ids in alone + spaced if len(ids) == 1]
    found = [*alone, *(ids for ids in spaced if vocabulary.data(ids[0]).strip())]
    # A tokenizer may put a token for the space before a text, which some templates write themselves.
    found += [ids[1:] for ids in alone if len(ids) > 1 and not vocabulary.data(ids[0]).strip()]
    if not found:
        raise UnsupportedModelError(f"the tokenizer has no token for {words[0]!r}: it cannot be an answer")
    return found
