"""Detection rules: P_img per row, any number of spans, never the text between two images."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sira_cli.core.image_tokens import Between, ImageTokens
from sira_cli.errors import ImageTokenError, SettingsError

PAD, START, END = 100, 102, 103
CONFIG = SimpleNamespace(image_token_id=PAD)
TWO_IMAGES = torch.tensor([[1, START, PAD, PAD, END, 7, 8, START, PAD, END, 9], [PAD, 1, 2, 3, 4, 5, 6, 7, 8, PAD, 9]])


class Words:
    def get_vocab(self) -> dict[str, int]:
        return {"<image>": PAD, "<start>": START, "<end>": END}


def positions(rule: ImageTokens, ids: torch.Tensor, tokenizer=None) -> list[list[int]]:
    found = (rule.with_ids(tokenizer) if tokenizer else rule).resolve(CONFIG).find(ids)
    return [row.nonzero().flatten().tolist() for row in found]


@pytest.mark.parametrize(
    "rule", [ImageTokens(), ImageTokens(from_config=True), ImageTokens(ids=(PAD,)), ImageTokens(tokens=("<image>",))]
)
def test_by_config_id_and_text_each_row_apart(rule: ImageTokens):
    assert positions(rule, TWO_IMAGES, Words()) == [[2, 3, 8], [0, 9]]


def test_the_older_config_name_counts_too():
    found = ImageTokens().resolve(SimpleNamespace(image_token_index=9)).find(TWO_IMAGES)
    assert found.nonzero().tolist() == [[0, 10], [1, 10]]


@pytest.mark.parametrize(("inclusive", "expected"), [(False, [2, 3, 8]), (True, [1, 2, 3, 4, 7, 8, 9])])
@pytest.mark.parametrize("markers", [(START, END), ("<start>", "<end>")])
def test_between_markers_leaves_the_text_between_two_images(markers, inclusive, expected):
    rule = ImageTokens(between=Between(*markers, inclusive=inclusive))
    assert positions(rule, TWO_IMAGES[:1], Words()) == [expected]


def test_parts_of_a_rule_add_up():
    assert positions(ImageTokens(from_config=True, ids=(7,)), TWO_IMAGES) == [[2, 3, 5, 8], [0, 7, 9]]


def test_giving_ids_replaces_the_config():
    assert positions(ImageTokens(ids=(START,)), TWO_IMAGES[:1]) == [[1, 7]]


@pytest.mark.parametrize("ids", [[1, START, 5, 6], [1, START, 5, START, 6, END]])
def test_an_open_span_is_an_error_that_names_its_place(ids):
    rule = ImageTokens(between=Between(START, END)).resolve(CONFIG)
    with pytest.raises(ImageTokenError, match=r"row 0 .* position 1 is not closed"):
        rule.find(torch.tensor([ids]))


def test_a_row_without_image_is_an_error_that_names_it():
    ids = TWO_IMAGES.clone()
    ids[1] = 5
    with pytest.raises(ImageTokenError, match=r"no image token found in row 1 .*ids \[100\]"):
        ImageTokens().resolve(CONFIG).find(ids)


def test_lists_become_tuples_so_that_a_rule_can_be_hashed():
    assert hash(ImageTokens(ids=[1, 2])) == hash(ImageTokens(ids=(1, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageTokens(from_config=False), "no ids, tokens or between"),
        (lambda: ImageTokens(ids=(-1,)), r"token ids \(0 or more\)"),
        (lambda: ImageTokens(tokens="<image>"), "image_tokens.tokens must be a list; got '<image>'"),
        (lambda: ImageTokens(between=("a", "b")), "image_tokens.between must be a Between"),
        (lambda: Between("a", ""), "a marker is a token text or an id; got ''"),
        (lambda: Between(-4, 5), "a marker is a token text or an id; got -4"),
        (lambda: ImageTokens(tokens=("<image>",)).resolve(CONFIG), "needs a tokenizer"),
        (lambda: ImageTokens(tokens=("<img>",)).with_ids(Words()), "'<img>', which is not a token"),
    ],
)
def test_bad_rules(make, message):
    with pytest.raises(SettingsError, match=message):
        make()


def test_a_config_without_image_token_asks_for_a_rule():
    with pytest.raises(ImageTokenError, match="names no image token"):
        ImageTokens().resolve(SimpleNamespace())
