"""Errors tell apart what is wrong: a setting, a data file, a picture, a model; each has its exit code."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

import sira_cli
from sira_cli import SettingsError, SiraError, errors
from sira_cli.errors import LongPromptError, PrivatePictureError
from sira_cli.eval.chair import UnknownImageError
from sira_cli.methods import find
from sira_cli.models.presets import resolve
from sira_cli.run.task import Caption
from sira_cli.serve.protocol import RequestError

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def test_all_errors_are_public_and_of_one_family():
    defined = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert {cls.__name__ for cls in defined} <= {*sira_cli.__all__}
    assert all(issubclass(cls, SiraError | Warning) for cls in defined)


def test_the_tree_of_errors_is_that_of_the_classes():
    """In the docstring of the module, by indentation."""
    parents: list[str] = []
    told = set()
    for indentation, name in re.findall(r"^    ((?:  )*)(?:· )?(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(indentation) // 2
        if depth:
            assert parents[depth - 1] in [cls.__name__ for cls in getattr(errors, name).__bases__]
            told.add(name)
        parents[depth:] = [name]
    assert told == {name for name in sira_cli.__all__ if name.endswith(("Error", "Warning"))} - {"SiraError"}


def test_exit_codes(sira, tmp_path):
    bad, picture = tmp_path / "bad.jsonl", tmp_path / "bad.png"
    bad.write_text("[1]\n")
    picture.write_text("no picture")
    good = Path(__file__).parents[1] / "examples/scene-2900000.png"
    for command, expected in (
        (("eval", "pope", bad, "--images", tmp_path), 2),  # a data file
        (("caption", picture, "-p", "demo", "-o", bad), 2),  # records that are none
        (("report", bad, "-o", tmp_path / "page.html"), 2),  # a trace
        (("caption", tmp_path / "none.png", "-p", "demo"), 2),  # wrong paths: of a picture, of no picture, of a model
        (("caption", picture, "-p", "demo"), 2),
        (("caption", good, "-m", tmp_path / "no-model"), 2),
        (("caption", picture, good, "-p", "demo", "-o", tmp_path / "new.jsonl"), 3),  # one of two pictures
        (("caption", good, "-m", "owner/model", "--offline"), 1),  # a model that is not here
    ):
        code, out, err = sira(*command)
        assert code == expected, err
        assert out == "", err
        assert err.startswith("sira: "), err
        assert "Traceback" not in err, err


@pytest.mark.parametrize(
    "error",
    [
        *(SettingsError("said"), PrivatePictureError("said", "shown"), LongPromptError("said", tokens=7)),
        *(UnknownImageError([7], "here"), RequestError("said", 404, param="n", code="wrong")),
    ],
)
def test_errors_reach_other_processes_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


def test_the_library_names_parameters_and_the_command_line_options(sira):
    with pytest.raises(SettingsError, match="leave out `num_beams=`"):
        Caption.of(resolve("demo").with_settings(num_beams=2), find("sira"), words=True)
    picture = Path(__file__).parents[1] / "examples/scene-2900000.png"
    code, _, err = sira("caption", picture, "-p", "demo", "--words", "--set", "num_beams=2")
    assert (code, err) == (2, "sira: --words follows one text: leave out --set num_beams\n")


@pytest.mark.parametrize(
    ("prefix", "marker", "pip", "command"),
    [
        ("pipx/venvs/sira-cli", "pipx_metadata.json", True, "pipx inject sira-cli 'a[b]>=1' 'c>=2'"),
        ("uv/tools/sira-cli", "uv-receipt.toml", True, "uv pip install --python '{prefix}' 'a[b]>=1' 'c>=2'"),
        ("uv/archive-v0/x", "", True, "uvx --with 'a[b]>=1' --with 'c>=2' --from . sira"),
        ("venv", "", True, "pip install 'a[b]>=1' 'c>=2'"),
        ("venv", "", False, "uv pip install 'a[b]>=1' 'c>=2'"),
    ],
)
def test_an_extra_is_installed_where_the_program_is(monkeypatch, tmp_path, prefix, marker, pip, command):
    (tmp_path / prefix).mkdir(parents=True)
    if marker:
        (tmp_path / prefix / marker).touch()

    def distribution(name):
        if name == "pip" and not pip:
            raise metadata.PackageNotFoundError
        return Mock(requires=["torch>=2.7", "a[b]>=1; extra == 'x'", "c>=2; extra == 'x'", "d>=3; extra == 'y'"])

    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(errors, "which", lambda name: "/bin/uv")
    assert errors.install("x") == command.format(prefix=tmp_path / prefix)


def test_an_extra_of_a_folder_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", Mock(side_effect=metadata.PackageNotFoundError))
    monkeypatch.setattr(errors, "which", lambda name: None)
    assert errors.install("json") == f"pip install '{Path(__file__).parents[1]}[json]'"


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "dev"])
def test_the_packages_of_an_extra_are_those_of_pyproject(extra):
    assert set(errors.requirements(extra)) == set(map(Requirement, EXTRAS[extra]))


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_looking_for_pip_leaves_setuptools_as_it_is():
    """vLLM imports it after us: a search for the module pip tells it to leave distutils alone."""
    code = "from sira_cli import errors; errors.install('json'); import setuptools"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
