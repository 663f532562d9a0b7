"""WebDataset shards for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from sira_cli.pictures.picture import Picture

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))


def content(picture: Picture) -> bytes:
    """The file of a picture."""
    ((_, data),) = picture.files()
    return data


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar file with these members."""
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def drawn(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Members of drawn scenes: per key a picture, its text and what a JSON file says about it."""
    members = []
    for number in range(first, first + count):
        members += [
            (f"{number:06}.json", b'{"tags": ["dog", "tree"], "number": %d}' % number),
            (f"{number:06}.png", EXAMPLES[number % len(EXAMPLES)].read_bytes()),
            (f"{number:06}.txt", b"scene %d\n" % number),
        ]
    return members
