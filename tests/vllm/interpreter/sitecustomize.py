"""Python imports this before all else: vLLM finds a "cpu" among Triton's backends, so the interpreter runs there."""

from __future__ import annotations

from triton.backends import backends


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> None:
        raise RuntimeError("nothing is compiled by Triton")


class _Backend:
    driver = _Driver
    compiler = None


backends["cpu"] = _Backend
