"""Trials of schemas (`trial.py`) before their first use, and the results."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import OrderedDict
from dataclasses import dataclass

from sira_cli.confined import ProcessLimits, run_confined
from sira_cli.errors import SiraError
from sira_cli.models.schemas import trial

LIMITS = ProcessLimits(memory=2**30, seconds=2, longest=20)
DEAREST = 1  # second of processor time
REMEMBERED = 256  # trials
_NO_TRIAL = "schemas are tried in a process of its own, which could not be started"
_TOO_DEAR = " in reasonable time and memory: make its patterns, numbers and nesting simpler"


@dataclass(frozen=True)
class Tried:
    """The result of a trial.

    Attributes:
        reason: the end of the message for a schema that cannot be followed; empty: it can.
        seconds: processor time, including the start.
    """

    reason: str
    seconds: float


_known: OrderedDict[str, Tried] = OrderedDict()


def known(grammar: str) -> Tried | None:
    """Return the result of an earlier trial; None: there was none."""
    return _known.get(grammar)


def forget() -> None:
    """Forget all trials."""
    _known.clear()


def tried(grammar: str) -> Tried:
    """Test a schema, unless its result is known.

    Args:
        grammar: made from the schema, for the engine.

    Raises:
        SiraError: the process cannot be started.
    """
    found = _known.get(grammar)
    if found is None:
        found = _known[grammar] = _try(grammar)
        while len(_known) > REMEMBERED:
            _known.popitem(last=False)
    return found


def _try(grammar: str) -> Tried:
    try:
        ended = run_confined(trial.__file__, limits=LIMITS, stdin=grammar.encode())
    except subprocess.TimeoutExpired:
        return Tried(_TOO_DEAR, math.inf)
    except OSError as error:
        raise SiraError(f"{_NO_TRIAL}: {error.strerror}") from error
    said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if said.startswith(("ImportError", "ModuleNotFoundError")):
        raise SiraError(f"{_NO_TRIAL}: {said}")
    found = {} if ended.returncode else json.loads(ended.stdout)
    seconds, reason = found.get("seconds", math.inf), found.get("reason", "")
    if seconds > DEAREST:
        return Tried(_TOO_DEAR, seconds)
    if "NoExt" in reason:
        return Tried(": no value fits a part of it", seconds)
    return Tried(f": {engine_reason(reason)}" if reason else "", seconds)


def engine_reason(message: str) -> str:
    """Return the engine's reason, without its trace."""
    reason = re.split(r"<non-verbose/>|\n +\d+ \|", message)[0].rpartition("failed to compile JSON schema: ")[2]
    reason = re.sub(r"\.? *(Enable|Use) '\w+' option[^.]*\.?", "", reason)  # which nobody can set here
    return re.sub(r"\s+", " ", reason).strip()
