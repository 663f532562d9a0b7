"""What the fork reads: its settings, the rules that find P_img per row (never the text between images), transformers.

Arguments of transformers are found by type and shape, and a self-check notices other changes.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from sira_cli.core import arguments, fork, selfcheck
from sira_cli.core.config import SiraConfig
from sira_cli.core.image_tokens import Between, ImageTokens
from sira_cli.core.masks import has_rows, valid_rows
from sira_cli.errors import ImageTokenError, SettingsError, UnsupportedModelError
from sira_cli.models.load import check_transformers


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
        (ImageTokens(), hf.Phi4MultimodalConfig(vision_config={"image_token_id": 9}), [[10], [10]]),
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


# --- what depends on names of transformers


class Renamed(nn.Module):
    def forward(self, rows, own_mask=None, store: DynamicCache | None = None):
        return rows


def test_renamed_arguments_are_found_and_replaced():
    module, hidden, other = Renamed(), torch.ones(1, 3, 4), torch.zeros(1, 2, 4)
    for args, kwargs in (((hidden,), {}), ((), {"rows": hidden})):
        assert arguments.hidden_of(module, args, kwargs) is hidden
        assert arguments.hidden_of(module, *arguments.with_hidden(module, args, kwargs, other)) is other
    assert arguments.hidden_of(module, (torch.ones(1, 3, dtype=torch.long),), {}) is None
    assert arguments.mask_name(module, {"own_mask": None, "store": None}) == "own_mask"
    with pytest.raises(UnsupportedModelError, match="Renamed was not called with one attention mask, but with none"):
        arguments.mask_name(module, {"store": None})
    cache = DynamicCache()
    cache.layers = ["first", "second"]
    assert arguments.cache_of((), {"store": cache, "n": 1}) is arguments.cache_of((cache,), {}) is cache
    changed = arguments.with_layer({"store": cache}, 1, "other")
    assert (changed["store"].layers, cache.layers) == (["first", "other"], ["first", "second"])
    assert arguments.cache_name(Renamed.forward) == "store"
    with pytest.raises(UnsupportedModelError, match="several caches"):
        arguments.cache_of((cache,), {"store": DynamicCache()})


def test_what_has_a_row_per_token():
    """A position on each of three axes `[3, B, q]` is none, also where there are as many texts as they have tokens."""
    shapes = {(4, 7, 8): True, (1, 7): True, (3, 4, 7): False, (3, 7, 7): False, (7,): False}
    assert {shape: has_rows(torch.zeros(shape), 4, 7) for shape in shapes} == shapes


def test_padding_does_not_see_itself_in_a_mask_of_four_dimensions():
    seen = torch.tensor([[False, False], [False, True]])[None, None]
    for mask in (seen, torch.where(seen, 0.0, -1e9)):
        assert valid_rows(mask, torch.zeros(1, 2)).tolist() == [[False, True]]


# --- the self-check: a transformers that the fork no longer follows is told in one sentence

failure, text_rows, call = selfcheck.failure, fork.text_rows, LlamaDecoderLayer.__call__
ADVICE = f"transformers {hf.__version__} changed what the fork needs: install "


@pytest.fixture
def forgotten(monkeypatch, tmp_path):
    monkeypatch.setenv("SIRA_HOME", str(tmp_path))
    failure.cache_clear()
    yield
    failure.cache_clear()


def test_this_transformers_passes_and_is_not_asked_again(forgotten, monkeypatch, tmp_path):
    state = torch.random.get_rng_state()
    check_transformers()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len([*(tmp_path / "cache" / "exact").iterdir()]) == 1
    monkeypatch.setattr(selfcheck, "failure", lambda: pytest.fail("asked again"))
    check_transformers()


def renamed(layer, hidden_states, position_embeddings=None, **kwargs):
    return call(layer, hidden_states, turns=position_embeddings, **kwargs)


@pytest.mark.parametrize(
    ("owner", "name", "changed", "reason"),
    [
        (fork, "text_rows", lambda image, valid: text_rows(torch.zeros_like(image), valid), ".*differ from the ref"),
        (LlamaDecoderLayer, "__call__", renamed, ""),  # positions under another name would stay unpacked
    ],
    ids=["a stream that sees the picture", "a renamed argument"],
)
def test_a_change_is_noticed(forgotten, monkeypatch, owner, name, changed, reason):
    monkeypatch.setattr(owner, name, changed)
    with pytest.raises(UnsupportedModelError, match=ADVICE + reason):
        check_transformers()


def test_a_cache_folder_that_cannot_be_written_is_no_error(forgotten, tmp_path):
    (tmp_path / "cache").touch()
    check_transformers()
