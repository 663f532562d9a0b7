"""Settings that must be equal in all answers of a method, so that its figures describe one method."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sira_cli.run.records import CONFIGURATION, LATER, hash_of

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


@dataclass(frozen=True)
class EvalSettings:
    """Settings that decide a text and are not in every record of sira. A file of answers has one value of each.

    Attributes:
        settings: a hash over all other settings of preset and method, except the length, which differs between parts.
    """

    beta: float | None
    top_p: float
    num_beams: int
    quantization: str | None
    dtype: str
    settings: str

    @classmethod
    def of(cls, lvlm: Lvlm) -> EvalSettings:
        """Read them from a loaded model."""
        decisive = lvlm.decoder.decisive(lvlm.preset.decisive())
        generation = dict(decisive["generation"])
        del generation["max_new_tokens"]
        own_beta = getattr(lvlm.decoder, "beta", None)
        return cls(
            beta=lvlm.sira.beta if "beta" in lvlm.decoder.deciding else own_beta,
            top_p=lvlm.preset.generation.top_p,
            num_beams=lvlm.preset.generation.num_beams,
            quantization=lvlm.quantization,
            dtype=lvlm.dtype,
            settings=hash_of(**{**decisive, "generation": generation})[:16],
        )


# Not every record has these, and the hash covers them.
_COVERED = ("method_settings", *LATER)
# Fields that are equal in all records of a method, in all parts.
SAME = (
    *(name for name in CONFIGURATION if name not in ("prompt", "schema", "max_new_tokens", *_COVERED)),
    *(each.name for each in fields(EvalSettings)),
)


def label(name: str, settings: Mapping[str, Any]) -> str:
    """Return a method's name in tables: with a temperature above 0, greedy decoding is sampling."""
    temperature, top_p, beams = (_number(settings.get(key)) for key in ("temperature", "top_p", "num_beams"))
    if temperature:
        how = [f"T={temperature:g}", f"top-p={top_p:g}" if 0 < top_p < 1 else ""]
        name = re.sub(r"^greedy(?=$|\+)", "sampling", name)
    else:
        how = [""]
    return ", ".join(filter(None, [name, *how, f"{beams:g} beams" if beams > 1 else ""]))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0


def settings_in(record: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are equal in all records of a method, from one record; None for missing ones."""
    other = {name: record[name] for name in _COVERED if record.get(name)}
    return {name: record.get(name) for name in SAME} | other
