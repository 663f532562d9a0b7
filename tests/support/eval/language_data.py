"""A small NLTK data folder in the real formats: punkt_tab, the English tagger, and a WordNet of some dozen words."""

from __future__ import annotations

import random
from pathlib import Path

import nltk
import nltk.corpus
import pytest
from nltk.corpus.reader import CorpusReader, WordNetCorpusReader
from nltk.corpus.util import LazyCorpusLoader
from nltk.tag.perceptron import PerceptronTagger
from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

SENTENCES = """
the/DT men/NNS are/VBP riding/VBG horses/NNS near/IN two/CD benches/NNS ./.
a/DT woman/NN rides/VBZ a/DT horse/NN and/CC leaves/VBZ the/DT better/JJR seat/NN to/TO the/DT child/NN ./.
The/DT dogs/NNS run/VBP happily/RB ,/, they/PRP do/VBP n't/RB sit/VB ./.
there/EX are/VBP wine/NN glasses/NNS on/IN the/DT table/NN ;/: it/PRP 's/VBZ a/DT toilet/NN
Horses/NNS are/VBP riding/VBG the/DT horses/NNS
"""
WORDS = {
    "noun": "man horse bench woman seat child dog wine glass table toilet leaf knife",
    "verb": "be ride leave run do sit",
    "adj": "good happy",
    "adv": "happily",
}
EXCEPTIONS = {"noun": "men man\nwomen woman\nchildren child\nleaves leaf\n", "verb": "are be\nis be\nridden ride\n"}
EXCEPTIONS |= {"adj": "better good\n", "adv": ""}
_HEADER = "  1 WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved.  \n"


def build(folder: Path) -> Path:
    """Write all three packages."""
    punkt, tagging = folder / "tokenizers/punkt_tab/english", folder / "taggers/averaged_perceptron_tagger_eng"
    sentences = [[tuple(word.rsplit("/", 1)) for word in line.split()] for line in SENTENCES.strip().splitlines()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(folder)])  # NLTK writes only to where it reads from
        patch.setattr(random, "shuffle", lambda given: None)  # of sentences: the same tagger every time
        for place in (punkt, tagging):
            place.mkdir(parents=True, mode=0o700)
        trainer = PunktTrainer("A man sits. A dog runs at 5 p.m. near St. Mary. The end came.")
        save_punkt_params(trainer.get_params(), str(punkt))
        tagger = PerceptronTagger(load=False)
        tagger.train(sentences * 25, nr_iter=3)
        tagger.save_to_json(lang="eng", loc=str(tagging))
    _write_wordnet(folder / "corpora" / "wordnet")
    return folder


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let NLTK know this folder only, and nothing of what it has read from others; `forget` is for afterwards."""
    forget()
    monkeypatch.setattr(nltk.data, "path", [str(folder)])
    others = LazyCorpusLoader("omw-2.0", CorpusReader, r".*/wn-data-.*\.tab", encoding="utf8")
    wordnet = LazyCorpusLoader("wordnet", WordNetCorpusReader, others)
    monkeypatch.setattr(nltk.corpus, "wordnet", wordnet)


def forget() -> None:
    """Empty NLTK's caches of what was read, and close what its WordNet leaves open."""
    for file in vars(nltk.corpus.wordnet).get("_data_file_map", {}).values():
        file.close()
    nltk.tokenize._get_punkt_tokenizer.cache_clear()
    nltk.tag._get_tagger.cache_clear()


def _write_wordnet(folder: Path) -> None:
    folder.mkdir(parents=True)
    senses = []
    for number, (pos, words) in enumerate(WORDS.items()):
        letter = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}[pos]
        data, index = _HEADER, _HEADER
        for word in sorted(words.split()):
            offset = f"{len(data):08d}"
            frames = "01 + 01 00 " if pos == "verb" else ""
            data += f"{offset} {number:02d} {letter} 01 {word} 0 000 {frames}| a {word}  \n"
            index += f"{word} {letter} 1 0 1 0 {offset}  \n"
            senses.append(f"{word}%{number + 1}:{number:02d}:00:: {offset} 1 0\n")
        (folder / f"data.{pos}").write_text(data)
        (folder / f"index.{pos}").write_text(index)
        (folder / f"{pos}.exc").write_text(EXCEPTIONS[pos])
    (folder / "index.sense").write_text("".join(sorted(senses)))
    (folder / "cntlist.rev").write_text("")
    (folder / "lexnames").write_text("".join(f"{n:02d}\t{pos}.all\t{n + 1}\n" for n, pos in enumerate(WORDS)))
