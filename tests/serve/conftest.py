"""A server with the bundled model, on a real port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pytest
import uvicorn

from sira_cli.models.end_tokens import EndTokens
from sira_cli.models.loading import load
from sira_cli.models.lvlm import Lvlm
from sira_cli.serve.app import Server


@pytest.fixture(scope="session")
def lvlm() -> Lvlm:
    return load("demo", max_new_tokens=24)


@pytest.fixture
def endless(lvlm: Lvlm, monkeypatch: pytest.MonkeyPatch) -> Lvlm:
    """The model, under which no text ends by itself; so do those that are made of it while the test runs."""
    monkeypatch.setattr(lvlm.model, "generation_config", lvlm.model.generation_config)  # to be put back
    monkeypatch.setattr(EndTokens, "of", lambda model, tokenizer: EndTokens((), lvlm.ends.padding))
    return lvlm.under(lvlm.decoder)


@contextmanager
def running(lvlm: Lvlm, **settings: object) -> Iterator[str]:
    """Serve in a thread; yields the address."""
    server = uvicorn.Server(uvicorn.Config(Server(lvlm, **settings).app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def address(lvlm: Lvlm) -> Iterator[str]:
    with running(lvlm) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
