"""A server with the bundled model, on a real port."""

from __future__ import annotations

from collections.abc import Iterator

import ollama
import openai
import pytest

from sira_cli.models.vocabulary import EndTokens
from sira_cli.run.lvlm import Lvlm, load
from tests.serve.helpers import client_of, running


@pytest.fixture(scope="session")
def lvlm() -> Lvlm:
    return load("demo", max_new_tokens=24)


@pytest.fixture
def endless(lvlm: Lvlm, monkeypatch: pytest.MonkeyPatch) -> Lvlm:
    """The model, under which no text ends by itself; so do those that are made of it while the test runs."""
    monkeypatch.setattr(lvlm.model, "generation_config", lvlm.model.generation_config)  # to be put back
    monkeypatch.setattr(EndTokens, "of", lambda model, tokenizer: EndTokens((), lvlm.ends.padding))
    return lvlm.under(lvlm.decoder)


@pytest.fixture(scope="session")
def address(lvlm: Lvlm) -> Iterator[str]:
    with running(lvlm) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[openai.OpenAI]:
    with client_of(address) as client:
        yield client


@pytest.fixture(scope="session")
def friend(address: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=address) as friend:
        yield friend
