"""The fork's settings: K, alpha and beta, and the rules that find P_img, per row and never the text between images."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sira_cli.core.config import SiraConfig
from sira_cli.core.image_tokens import Between, ImageTokens
from sira_cli.errors import ImageTokenError, SettingsError


@pytest.mark.parametrize(
    ("config", "layers", "k"),
    [
        (SiraConfig(), 28, 14),  # the paper: K = 14 of 28 on Qwen2.5-VL-7B
        (SiraConfig(), 32, 16),  # and 16 of 32 on LLaVA-1.5-7B
        (SiraConfig(k=27), 28, 27),
        (SiraConfig(k_fraction=0.25), 30, 7),
        (SiraConfig(k_fraction=0.01), 30, 1),
        (SiraConfig(), 5, 2),
    ],
)
def test_layers_after_the_fork(config: SiraConfig, layers: int, k: int):
    assert config.layers_after_fork(layers) == k


PAD, START, END = 100, 102, 103
CONFIG = SimpleNamespace(image_token_id=PAD)
VOCABULARY = SimpleNamespace(get_vocab=lambda: {"<image>": PAD, "<start>": START, "<end>": END})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SiraConfig(k=0), "k must be a whole number of layers, at least 1; got 0"),
        (lambda: SiraConfig(k=2.0), "got 2.0"),
        (lambda: SiraConfig(k=True), "got True"),
        (lambda: SiraConfig(k=3, k_fraction=0.5), "k or k_fraction, not both"),
        (lambda: SiraConfig(k_fraction=1.0), "k_fraction must be between 0 and 1, ends excluded; got 1.0"),
        (lambda: SiraConfig(k=28).layers_after_fork(28), r"L = 28 decoder layers, so k must be 1..27 "),
        (lambda: SiraConfig(alpha=-0.1), "alpha must be 0 or more; got -0.1"),
        (lambda: SiraConfig(alpha=float("nan")), "alpha must be a number 0 or more; got nan"),
        (lambda: SiraConfig(alpha=10**400), "alpha must be a number 0 or more"),
        (lambda: SiraConfig(alpha="0.5"), "got '0.5'"),
        (lambda: SiraConfig(beta=1.1), "beta must be between 0 and 1; got 1.1"),
        (lambda: SiraConfig(beta=0), "beta must be above 0; leave it out"),
        (lambda: SiraConfig(image_tokens=5), "image_tokens must be an ImageTokens rule; got 5"),
        (lambda: ImageTokens(from_config=False), "no ids, tokens or between"),
        (lambda: ImageTokens(ids=(-1,)), r"token ids \(0 or more\)"),
        (lambda: ImageTokens(tokens="<image>"), "image_tokens.tokens must be a list; got '<image>'"),
        (lambda: ImageTokens(between=("a", "b")), "image_tokens.between must be a Between"),
        (lambda: Between("a", ""), "a marker is a token text or an id; got ''"),
        (lambda: Between(-4, 5), "a marker is a token text or an id; got -4"),
        (lambda: ImageTokens(tokens=("<image>",)).resolve(CONFIG), "needs a tokenizer"),
        (lambda: ImageTokens(tokens=("<img>",)).with_ids(VOCABULARY), "'<img>', which is not a token"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(SettingsError, match=message):
        make()


# --- where the image is

TWO_IMAGES = torch.tensor([[1, START, PAD, PAD, END, 7, 8, START, PAD, END, 9], [PAD, 1, 2, 3, 4, 5, 6, 7, 8, PAD, 9]])
WHOLE = [[2, 3, 8], [0, 9]]


@pytest.mark.parametrize(
    ("rule", "config", "expected"),
    [
        *((rule, CONFIG, WHOLE) for rule in (ImageTokens(), ImageTokens(ids=[PAD]), ImageTokens(tokens=("<image>",)))),
        (ImageTokens(), SimpleNamespace(image_token_index=9), [[10], [10]]),  # the older name
        (ImageTokens(from_config=True, ids=(7,)), CONFIG, [[2, 3, 5, 8], [0, 7, 9]]),
        (ImageTokens(ids=(START,)), CONFIG, [[1, 7]]),  # given ids replace the config's
        (ImageTokens(between=Between(START, END)), CONFIG, [[2, 3, 8]]),
        (ImageTokens(between=Between("<start>", "<end>", inclusive=True)), CONFIG, [[1, 2, 3, 4, 7, 8, 9]]),
    ],
)
def test_each_rule_finds_the_tokens_of_each_row(rule: ImageTokens, config, expected):
    found = rule.with_ids(VOCABULARY).resolve(config).find(TWO_IMAGES[: len(expected)])
    assert [row.nonzero().flatten().tolist() for row in found] == expected
    assert isinstance(hash(rule), int)  # also if it was given a list


@pytest.mark.parametrize(
    ("rule", "ids", "message"),
    [
        (ImageTokens(between=Between(START, END)), [[1, START, 5, 6]], r"row 0 .* position 1 is not closed"),
        (ImageTokens(between=Between(START, END)), [[1, START, 5, START, END]], r"row 0 .* position 1 is not closed"),
        (ImageTokens(), [[PAD, 5], [5, 5]], r"no image token found in row 1 .*ids \[100\]"),
    ],
)
def test_an_open_span_and_a_row_without_an_image_are_named(rule: ImageTokens, ids: list, message: str):
    with pytest.raises(ImageTokenError, match=message):
        rule.resolve(CONFIG).find(torch.tensor(ids))


def test_a_config_without_image_token_asks_for_a_rule():
    with pytest.raises(ImageTokenError, match="names no image token"):
        ImageTokens().resolve(SimpleNamespace())
