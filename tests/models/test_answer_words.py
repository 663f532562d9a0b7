"""Yes and no as first tokens of answers, with real tokenizers."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sira_cli.errors import UnsupportedModelError
from sira_cli.look.second_look import answer_tokens
from sira_cli.models.vocabulary import Vocabulary

YES, NO = ["Yes", "yes", "YES"], ["No", "no", "NO", "Not", "not"]


def tokenizer(kind):
    """A byte-level BPE, or pieces as of SentencePiece with byte fallback, that has learned English only."""
    made = Tokenizer(models.BPE(byte_fallback=kind == "pieces", unk_token="<unk>" if kind == "pieces" else None))
    text = ["Yes No what color is the dog"] * 9
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
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>" if kind == "pieces" else None))


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize(
    ("yes", "no"), [(YES, NO), (["Ja", "ja"], ["Nein", "nein"]), (["Да"], ["Нет"]), (["是"], ["否"])]
)
def test_answers_begin_with_their_tokens(kind, yes, no):
    """Also those that the tokenizer has not learned, where two words do not share their first byte."""
    vocabulary = tokenizer(kind)
    if vocabulary.encode_known(yes[0])[:1] == vocabulary.encode_known(no[0])[:1]:  # the first byte of all such letters
        with pytest.raises(UnsupportedModelError, match="with the same token"):
            answer_tokens(vocabulary, yes, no)
        return
    said, denied = answer_tokens(vocabulary, yes, no)
    assert not {*said} & {*denied}
    first = lambda words: {vocabulary.encode_known(word)[0] for word in words}  # noqa: E731
    if len(vocabulary.encode_known(yes[0])) > 1:
        assert first(yes) <= {*said}


def test_single_tokens_are_enough_where_there_are_some():
    vocabulary = tokenizer("bytes")
    said, denied = answer_tokens(vocabulary, YES, NO)
    spelled = lambda words: {  # noqa: E731
        ids[0] for word in words for text in (word, f" {word}") if len(ids := vocabulary.encode(text)) == 1
    }
    assert ({*said}, {*denied}) == (spelled(YES), spelled(NO))
    assert {*said} < {vocabulary.encode(text)[0] for word in YES for text in (word, f" {word}")}  # "YES" is letters


def test_words_without_a_token_are_refused():
    class Letters:
        def encode_known(self, text):
            return [] if "z" in text else [ord(letter) for letter in text]

        def data(self, token):
            return chr(token).encode()

    with pytest.raises(UnsupportedModelError, match="no token for 'zz'"):
        answer_tokens(Letters(), ["zz"], ["no"])
    with pytest.raises(UnsupportedModelError, match="begins 'ab' and 'ac' with the same token"):
        answer_tokens(Letters(), ["ab"], ["ac"])
