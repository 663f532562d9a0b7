"""Names of outputs that no file can have are refused before anything is decoded."""

from __future__ import annotations

import pytest

from sira_cli.errors import SettingsError
from sira_cli.pictures.sources import located
from sira_cli.run.sidecars import Sidecars


@pytest.mark.parametrize("name", ["x" * 251 + ".png", "x" * 300 + "/a.png"])
def test_a_text_file_whose_name_would_be_too_long_is_refused_before_the_run(tmp_path, name):
    """The system itself says which are."""
    picture = located(f"http://example.org/{name}", name)
    Sidecars([picture], output_dir=tmp_path, extension="." + "t" * 3) if "/" not in name else None
    with pytest.raises(SettingsError, match="the name of its text file would be too long"):
        Sidecars([picture], output_dir=tmp_path, extension="." + "t" * 4)
    place = tmp_path / picture.mirrored("." + "t" * 4)
    with pytest.raises(OSError, match="File name too long"):
        place.parent.mkdir(exist_ok=True) if "/" in name else place.touch()
