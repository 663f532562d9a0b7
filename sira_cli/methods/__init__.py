"""The decoders: SIRA, and others to compare with it on the same model, prompt, picture and code path.

One file per decoder; `base` defines a method, `settings` declares its settings, `logits_only` has the hook of rules
over logits, `second_pass` runs a contrast stream with its own inputs, `steering` turns the outputs of MLPs, `sid_fork`
is SID's variant of the fork, `opera_search` and `opera_passes` are OPERA's search. Importing this package does not
import torch: a method imports it when it is used.
"""

from __future__ import annotations

import difflib

from sira_cli.errors import SettingsError
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.deco import Deco
from sira_cli.methods.dola import Dola
from sira_cli.methods.flb import Flb, SiraFlb
from sira_cli.methods.greedy import Greedy
from sira_cli.methods.greedy_apc import GreedyApc
from sira_cli.methods.icd import Icd
from sira_cli.methods.ict import Ict
from sira_cli.methods.m3id import M3id
from sira_cli.methods.maskcd import MaskCd
from sira_cli.methods.opera import Opera
from sira_cli.methods.pai import Pai
from sira_cli.methods.resdec import ResDec, SiraResDec
from sira_cli.methods.sid import Sid
from sira_cli.methods.sira import Sira
from sira_cli.methods.text_only import TextOnly
from sira_cli.methods.vaf import Vaf
from sira_cli.methods.vcd import Vcd
from sira_cli.methods.vista import Vista
from sira_cli.methods.vti import Vti

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Sira(),
        Greedy(),
        GreedyApc(),
        TextOnly(),
        Vcd(),
        Icd(),
        M3id(),
        Flb(),
        ResDec(),
        Pai(),
        Vaf(),
        Vista(),
        Sid(),
        Dola(),
        Deco(),
        Opera(),
        Ict(),
        MaskCd(),
        Vti(),
        SiraFlb(),
        SiraResDec(),
    )
}


def find(method: str | Method) -> Method:
    """Return the method of that name, with its defaults, or the given method."""
    if isinstance(method, Method):
        return method
    if not isinstance(method, str) or method not in METHODS:
        close = difflib.get_close_matches(str(method), METHODS, n=1, cutoff=0.5)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise SettingsError(f"no method named {method!r}{meant}; available: {', '.join(METHODS)}")
    return METHODS[method]


def require(method: Method, ability: Ability, what: str) -> None:
    """Check that a method can do something."""
    if ability not in method.abilities:
        able = [name for name, other in METHODS.items() if ability in other.abilities]
        raise SettingsError(f"{what} needs method {' or '.join(able)}, not {method.name}")
