"""Answers as tokens: their probabilities against a count over all token sequences, and with real tokenizers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sira_cli.errors import UnsupportedModelError
from sira_cli.language.wordings import shipped, wording_of
from sira_cli.models.inputs.vocabulary import Vocabulary
from sira_cli.models.look.answer_words import AnswerWords


class Letters:
    """A tokenizer with a token for each letter; the space has none."""

    def encode_known(self, text):
        return [] if " " in text else [ord(letter) - ord("a") for letter in text]

    def data(self, token):
        return bytes([token + ord("a")])


def next_letters(begun):
    """Made-up log-probabilities `[2, 4]` of the letter after some letters, in two texts."""
    generator = torch.Generator().manual_seed(sum(7**n * (token + 1) for n, token in enumerate(begun)))
    return torch.randn(2, 4, generator=generator).log_softmax(dim=-1)


@pytest.mark.parametrize(
    "answers",
    [
        {"x": ["a"], "y": ["b", "c"]},
        {"x": ["aa", "d"], "y": ["ab"], "z": ["b"]},
        {"x": ["abc", "abd"], "y": ["aba"], "z": ["aca"]},
        {"x": ["a"], "y": ["ab"], "z": ["b"]},  # one begins like the other
        {"x": ["ab"], "y": ["a", "abc", "c"]},
    ],
    ids=str,
)
def test_probabilities_are_those_of_the_texts_that_begin_so(answers):
    """Against all texts of three letters, each read letter by letter."""

    def answer(text):
        for length in range(1, len(text) + 1):
            left = [name for name, each in answers.items() if any(word.startswith(text[:length]) for word in each)]
            if len(left) == 1:
                return left[0]  # nothing else can come
            if not left:  # no answer goes on like this: one may have ended
                return next((name for name, each in answers.items() if text[: length - 1] in each), None)
        return None

    found = AnswerWords(Letters(), answers).logprobs(next_letters(()), next_letters).exp()
    expected = torch.zeros(2, len(answers))
    for text in map("".join, itertools.product("abcd", repeat=3)):
        if (name := answer(text)) is not None:
            steps = [next_letters([ord(x) - 97 for x in text[:n]])[:, ord(text[n]) - 97] for n in range(3)]
            expected[:, [*answers].index(name)] += torch.stack(steps).sum(dim=0).exp()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_two_answers_with_the_same_tokens_are_refused():
    with pytest.raises(UnsupportedModelError, match="the same tokens for two answers"):
        AnswerWords(Letters(), {"x": ["ab"], "y": ["ab", "c"]})
    with pytest.raises(UnsupportedModelError, match="no token for 'a b'"):
        AnswerWords(Letters(), {"x": ["a b"], "y": ["c"]})


def tokenizer(kind):
    """A byte-level BPE, or pieces as of SentencePiece with byte fallback, that has learned English only."""
    made = Tokenizer(models.BPE(byte_fallback=kind == "pieces", unk_token="<unk>" if kind == "pieces" else None))
    text = ["Yes No red Red orange yellow green gray Gray blue brown black white purple pink what color is the"] * 9
    if kind == "pieces":
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        special, alphabet = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], []
    else:
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        special, alphabet = [], pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        text, trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    # Bytes are no special tokens: a text may hold them.
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>" if kind == "pieces" else None)


@pytest.mark.parametrize("code", shipped())
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_real_tokenizers_tell_the_answers_of_every_language_apart(kind, code):
    """A model that is about to write a spelling gives its answer nearly all the probability."""
    vocabulary, wording = Vocabulary(tokenizer(kind)), wording_of(code)
    for answers, single in ((wording.answers("colors"), False), ({"": wording.yes, "no": wording.no}, True)):
        words = AnswerWords(vocabulary, answers, single=single)
        for place, spellings in enumerate(answers.values()):
            ids = vocabulary.encode_known(spellings[0])
            assert ids

            def after(begun, ids=ids):
                logits = torch.zeros(1, 2000)
                if tuple(ids[: len(begun)]) == tuple(begun) and len(begun) < len(ids):
                    logits[0, ids[len(begun)]] = 30.0
                return logits.log_softmax(dim=-1)

            found = words.logprobs(after(()), after)[0]
            assert found.argmax() == place, (code, spellings[0])
            assert found[place] > math.log(0.9)


def test_single_tokens_are_enough_where_there_are_some():
    vocabulary = Vocabulary(tokenizer("bytes"))
    words = AnswerWords(vocabulary, {"": ("Yes", "YES"), "no": ("No",)}, single=True)
    asked = []
    first = torch.zeros(1, 2000).log_softmax(dim=-1)
    found = words.logprobs(first, asked.append)
    spelled = [ids for text in ("Yes", " Yes", "YES", " YES") if len(ids := vocabulary.encode(text)) == 1]
    assert asked == []
    assert found[0, 0] == pytest.approx(math.log(len(spelled) / 2000), abs=1e-5)
