"""Errors tell apart what is wrong: a setting, a data file, a picture, a model; each has its exit code."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

import sira_cli
from sira_cli import SettingsError, SiraError, errors
from sira_cli.errors import LongPromptError, PrivatePictureError
from sira_cli.eval.chair import UnknownImageError
from sira_cli.methods import find
from sira_cli.models.presets import resolve
from sira_cli.run.task import Caption
from sira_cli.serve.protocol import RequestError


def test_all_errors_are_public_and_of_one_family():
    defined = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert {cls.__name__ for cls in defined} <= {*sira_cli.__all__}
    assert all(issubclass(cls, SiraError | Warning) for cls in defined)


def test_exit_codes(sira, tmp_path):
    bad, picture = tmp_path / "bad.jsonl", tmp_path / "bad.png"
    bad.write_text("[1]\n")
    picture.write_text("no picture")
    for command, expected in (
        (("eval", "pope", bad, "--images", tmp_path), 2),  # a data file
        (("caption", picture, "-p", "demo", "-o", bad), 2),  # records that are none
        (("report", bad, "-o", tmp_path / "page.html"), 1),  # a trace
        (("caption", tmp_path / "none.png", "-p", "demo"), 1),  # nothing to do
        (("caption", picture, "-p", "demo"), 3),  # a picture
        (("caption", picture, "-m", tmp_path / "no-model"), 1),  # a model
    ):
        code, out, err = sira(*command)
        assert (code, out, err.startswith("sira: "), "Traceback" in err) == (expected, "", True, False), err


@pytest.mark.parametrize(
    "error",
    [
        *(SettingsError("said"), PrivatePictureError("said", "shown"), LongPromptError("said", tokens=7)),
        *(UnknownImageError([7], "here"), RequestError("said", 404, param="n", code="wrong")),
    ],
)
def test_errors_reach_other_processes_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.args, vars(again)) == (type(error), str(error), error.args, vars(error))


def test_the_library_names_parameters_and_the_command_line_options(sira):
    with pytest.raises(SettingsError, match="leave out `num_beams=`"):
        Caption.of(resolve("demo").with_settings(num_beams=2), find("sira"), words=True)
    picture = Path(__file__).parents[1] / "examples/scene-2900000.png"
    code, _, err = sira("caption", picture, "-p", "demo", "--words", "--set", "num_beams=2")
    assert (code, err) == (2, "sira: --words follows one text: leave out --set num_beams\n")


@pytest.mark.parametrize(
    ("prefix", "marker", "origin", "command"),
    [
        ("pipx/venvs/sira-cli", "pipx_metadata.json", {}, "pipx install --force 'sira-cli[data]'"),
        ("uv/tools/sira-cli", "uv-receipt.toml", {}, "uv tool install 'sira-cli[data]'"),
        ("uv/archive-v0/x", "", {}, "uvx --from 'sira-cli[data]' sira"),
        ("venv", "", {"url": "file:///my%20code", "dir_info": {"editable": True}}, "pip install -e '/my code[data]'"),
        ("venv", "", {"url": "file:///my%20code"}, "pip install 'sira-cli[data]'"),
        ("venv", "", None, "pip install 'sira-cli[data]'"),
    ],
)
def test_an_extra_is_installed_where_the_program_is(monkeypatch, tmp_path, prefix, marker, origin, command):
    (tmp_path / prefix).mkdir(parents=True)
    if marker:
        (tmp_path / prefix / marker).touch()
    installed = Mock(**{"read_text.return_value": origin if origin is None else json.dumps(origin)})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    monkeypatch.setattr(metadata, "distribution", lambda name: installed)
    monkeypatch.setattr(errors, "which", lambda name: None)
    assert errors.install("data") == command


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_looking_for_pip_leaves_setuptools_as_it_is():
    """vLLM imports it after us: a search for the module pip tells it to leave distutils alone."""
    code = "from sira_cli import errors; errors.install('json'); import setuptools"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
