"""The rooms of the package and their one-way doors, read from the import statements."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sira_cli"
# From the ground floor up: a room imports rooms below it, and nothing above.
ROOMS = (
    *("core", "language", "pictures", "methods", "models", "look", "run", "vllm"),
    *("eval", "analysis", "demo", "serve", "cli"),
)
BESIDE = ("_version", "errors", "files", "interrupts")  # modules beside the rooms, which any room may import
TERMINAL = {"typer", "rich", "click"}
# Lines of Python in each room. Raise one on purpose only, with the reason in the commit: a feature enters with one that
# leaves, and what shrinks keeps its room small.
LINES = {
    "core": 2_760,
    "language": 220,
    "pictures": 2_330,
    "methods": 2_935,
    "look": 1_360,
    "models": 3_575,
    "vllm": 1_110,
    "run": 2_820,
    "eval": 2_950,
    "analysis": 4_330,
    "demo": 980,
    "serve": 1_450,
    "cli": 3_630,
}
# Lines of Python in the package, the tests and the tools. A feature enters with the lines that leave.
WHOLE = {"sira_cli": 30_930, "tests": 20_000, "tools": 2_650}
# What one must know to change a decoder, and the lines of these rooms together.
DECODER = ("core", "methods", "language", "models", "pictures", "run")
DECODER_LINES = 14_620


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is its `__init__`."""
    names = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in sorted(names.items())}


def imported(module: str) -> Iterator[str]:
    """What a module imports, wherever the statement stands: also inside functions, and for type hints only."""
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules() else node.module


def room(module: str) -> int:
    """The floor of a module: -1 beside the rooms, else the number of its room."""
    parts = module.split(".")
    if parts[1:] == ["__main__"]:
        return len(ROOMS)  # calls the command line
    if len(parts) == 1 or parts[1] in BESIDE:
        return -1
    return ROOMS.index(parts[1])


def arrows(module: str) -> set[str]:
    """What a module imports of the package, without the public names of `sira_cli` itself."""
    return {name for name in imported(module) if name.split(".")[0] == "sira_cli" and name != "sira_cli"}


INSIDE = [name for name in modules() if name != "sira_cli"]


def test_every_folder_is_a_room():
    assert {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")} == {*ROOMS}
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*BESIDE, "__init__", "__main__"}


def test_a_room_imports_nothing_above():
    """What lies beside the rooms is below them all."""
    assert [(module, up) for module in INSIDE for up in arrows(module) if room(up) > room(module)] == []


def test_nothing_imports_the_public_names_from_inside():
    """`sira_cli/__init__.py` looks down on all rooms, so an import of it would be a way up."""
    found = [(module, name) for module in INSIDE for name in imported(module) if name == "sira_cli"]
    assert found == []


def test_only_the_command_line_knows_the_terminal():
    found = {module.split(".")[1] for module in INSIDE for name in imported(module) if name.split(".")[0] in TERMINAL}
    assert found <= {"cli"}


def test_there_are_no_circles():
    """Also not within a room: modules can be put in an order in which each imports earlier ones only."""
    waiting = {module: {target for target in arrows(module) if target in modules()} for module in INSIDE}
    while ready := [module for module, targets in waiting.items() if not targets & waiting.keys()]:
        for module in ready:
            del waiting[module]
    assert not waiting, f"these import each other: {sorted(waiting)}"


def test_the_core_has_no_files_and_no_tokenizers():
    allowed = {"torch", "transformers", "sira_cli", "__future__", "collections", "contextlib", "copy", "dataclasses"}
    allowed |= {"functools", "inspect", "math", "operator", "sys", "threading", "typing", "warnings", "weakref"}
    core = [module for module in INSIDE if module.startswith("sira_cli.core.")]
    assert {name.split(".")[0] for module in core for name in imported(module)} <= allowed


def lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_keeps_to_its_lines(name):
    assert lines(PACKAGE / name) <= LINES[name], f"{name}: shorten it, or raise its budget on purpose"


@pytest.mark.parametrize("folder", WHOLE)
def test_the_whole_keeps_to_its_lines(folder):
    assert lines(PACKAGE.parent / folder) <= WHOLE[folder]


def test_what_one_must_know_to_change_a_decoder_keeps_to_its_lines():
    assert sum(lines(PACKAGE / name) for name in DECODER) <= DECODER_LINES
