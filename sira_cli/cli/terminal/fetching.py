"""The folder of a command's pictures, which may be on the web."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sira_cli.cli.terminal.console import show_stages
from sira_cli.models.presets import cache
from sira_cli.pictures.checks import check_images
from sira_cli.pictures.fetching import ImageFolder, check_web_folder, folder_name
from sira_cli.pictures.web import is_web
from sira_cli.run.fetching import fetch_missing


def images_folder(images: str | None, usual: Path | None = None) -> ImageFolder:
    """Return the folder of a command's pictures; the `usual` one, or the cache, has those at a URL once fetched."""
    if images is None or not is_web(images):
        return ImageFolder(Path(images or usual or ""))
    check_web_folder(images)
    return ImageFolder(usual or cache() / "pictures" / folder_name(images), images)


def check_or_fetch(images: ImageFolder, names: Sequence[str]) -> None:
    """Check that the folder of a command's pictures holds any of them; those at a URL are fetched first."""
    show_stages(fetch_missing(images, names))
    check_images(images.path, names)
