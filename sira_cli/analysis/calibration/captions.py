"""A model's own captions, without SIRA: measuring on them needs no labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sira_cli import methods
from sira_cli.data.records.record import hash_of
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.recording import RecordingModel


def plain(lvlm: Lvlm) -> Lvlm:
    """Return the same model under greedy decoding, at temperature 0 and without beams."""
    preset = lvlm.preset.with_values(temperature=0.0, num_beams=1, on_loop=None)
    return lvlm.under(methods.find("greedy"), preset)


def caption_tokens(lvlm: RecordingModel, inputs: Any) -> list[list[int]]:
    """Decode B captions: the ids of each, with the end token, without padding."""
    return [lvlm.ends.until_end(row) for row in lvlm.generate(inputs).tolist()]


def hash_of_pictures(hashes: Sequence[str]) -> str:
    """Return a hash over the hashes of pictures, whatever their order."""
    return str(hash_of(pictures=sorted(hashes)))
