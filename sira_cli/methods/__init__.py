"""The decoders that one compares with SIRA, on the same model, prompt, picture and code path.

Nothing here imports torch: what needs it is imported when a method is used.
"""

from __future__ import annotations

from sira_cli.errors import SettingsError
from sira_cli.methods.base import Method
from sira_cli.methods.dola import Dola
from sira_cli.methods.greedy import Greedy
from sira_cli.methods.greedy_apc import GreedyApc
from sira_cli.methods.icd import Icd
from sira_cli.methods.m3id import M3id
from sira_cli.methods.sid import Sid
from sira_cli.methods.sira import Sira
from sira_cli.methods.text_only import TextOnly
from sira_cli.methods.vcd import Vcd

METHODS: dict[str, Method] = {
    method.name: method for method in (Sira(), Greedy(), GreedyApc(), TextOnly(), Vcd(), Icd(), M3id(), Sid(), Dola())
}
COMPILED = ("sira", "greedy")  # those whose decoding steps can be compiled
TWO_STREAMS = ("sira", "greedy")  # those under which both streams of the fork can be looked at


def find(name: str) -> Method:
    """The method of that name, with its defaults.

    Raises:
        SettingsError: there is none.
    """
    if name not in METHODS:
        raise SettingsError(f"no method named {name!r}; available: {', '.join(METHODS)}")
    return METHODS[name]


def check_two_streams(method: str, what: str) -> None:
    """Whether `what` can be done under `method`.

    Raises:
        SettingsError: the method has no CF stream of SIRA's.
    """
    if method not in TWO_STREAMS:
        raise SettingsError(f"{what} needs method {' or '.join(TWO_STREAMS)}, not {method}")


def check_compile(method: str, num_beams: int, what: str = "") -> None:
    """Whether decoding steps can be compiled, with `what` besides.

    Raises:
        SettingsError: they cannot.
    """
    if method not in COMPILED:
        raise SettingsError(f"compiled steps need method {' or '.join(COMPILED)}, not {method}: leave out compile")
    if num_beams > 1:
        raise SettingsError("compiled steps follow one text a picture: leave out compile, or the beams")
    if what:
        raise SettingsError(f"{what} cannot look into compiled steps: leave out compile")
