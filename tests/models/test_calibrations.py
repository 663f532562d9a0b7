"""Calibrations: found by the model, refused with the command to run, and part of what decides a text."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from sira_cli.errors import DataError, SettingsError
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from sira_cli.models import presets
from sira_cli.models.presets import calibrated
from sira_cli.run.task import Caption

REVISION = "folder-0123456789ab"


@dataclass(frozen=True)
class Needy(Calibrated):
    """A method for these tests that needs a calibration."""

    name = "needy"


def made(kind="needy", revision=REVISION, value=1.0):
    origin = Origin(kind, "/models/tiny", revision, {"pictures": 3}, "0.3.0")
    return Calibration(origin, {"directions": torch.full((2, 3), value)})


def keep(calibration):
    path = presets.calibration_path("needy", calibration.origin.model, calibration.origin.revision)
    calibration.write(path)
    return path


def test_a_file_holds_tensors_and_what_they_were_made_from(tmp_path):
    made().write(tmp_path / "new folder" / "a.safetensors")
    again = Calibration.read(tmp_path / "new folder" / "a.safetensors")
    assert again.origin == made().origin
    assert torch.equal(again.tensors["directions"], torch.ones(2, 3))


def test_it_is_found_by_the_revision_wherever_the_folder_of_the_model_lies_now():
    path = keep(made())
    assert calibrated(Needy(), "/elsewhere/renamed", REVISION) == Needy(calibration=str(path))


def test_the_users_own_comes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "SHIPPED_CALIBRATIONS", tmp_path / "shipped")
    made(value=2.0).write(tmp_path / "shipped" / "needy" / "tiny@0123456789ab.safetensors")
    shipped = calibrated(Needy(), "tiny", REVISION)
    assert shipped.calibration == str(tmp_path / "shipped" / "needy" / "tiny@0123456789ab.safetensors")
    assert calibrated(Needy(), "tiny", REVISION) == shipped
    path = keep(made())
    assert calibrated(Needy(), "tiny", REVISION).calibration == str(path)


def test_without_one_the_command_is_named():
    with pytest.raises(SettingsError, match=r"needs a calibration of tiny.*`sira calibrate needy -m tiny -h`"):
        calibrated(Needy(), "tiny", REVISION)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"revision": "folder-ffffffffffff"}, r"made for /models/tiny \(folder-ffffffffffff\), not for tiny"),
        ({"kind": "ict"}, "a calibration for ict, not for needy"),
    ],
)
def test_that_of_another_model_or_method_is_refused(tmp_path, other, message):
    made(**other).write(tmp_path / "other.safetensors")
    with pytest.raises(SettingsError, match=message):
        calibrated(Needy(calibration=str(tmp_path / "other.safetensors")), "tiny", REVISION)


@pytest.mark.parametrize("content", [None, b"", b"no tensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_what_is_no_calibration_is_named(tmp_path, content):
    path = tmp_path / "a.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.safetensors"):
        Calibration.read(path)


def test_keys_follow_the_content_of_the_file_and_not_its_place(tmp_path):
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        made(value=value).write(tmp_path / f"{name}.safetensors")

    def key(name):
        method = Needy(calibration=str(tmp_path / f"{name}.safetensors"))
        return Caption(presets.find("demo"), method, "").at(REVISION).key("p.jpg", "", "What?")

    assert key("a") == key("b") != key("c")


def test_a_method_without_one_says_what_it_needs():
    with pytest.raises(SettingsError, match="set `calibration=` to a file made by `sira calibrate needy`"):
        Needy().read()
