"""Pictures in WebDataset shards: which there are, what they are called, what is wrong with a shard."""

from __future__ import annotations

import gzip
import itertools
import pickle
import tarfile
from pathlib import Path

import pytest

from sira_cli.errors import PictureError, SettingsError
from sira_cli.pictures.find import Shard, find_pictures
from sira_cli.pictures.webdataset import TarShard
from tests.support.shards import EXAMPLES, claiming, drawn, write_tar


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Three shards of two pictures, in shards/ below the current folder."""
    (tmp_path / "shards").mkdir()
    for number in range(3):
        write_tar(tmp_path / f"shards/cc-{number:05}.tar", drawn(2, 2 * number))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shards"


def names(*paths: str, **options) -> list[str]:
    return [picture.name_in(None) for picture in find_pictures(paths, **options)]


def errors(path: Path) -> list[str]:
    """What is said about the pictures of a shard that cannot be read."""
    found = []
    for picture in find_pictures([path.name]):
        try:
            picture.read()
        except PictureError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "path", ["shards/cc-{00000..00002}.tar", "shards/cc-*.tar", "shards", "shards/cc-0000{0..2}.tar"]
)
def test_each_key_is_a_picture(folder, path):
    pictures = find_pictures([path])
    assert [picture.name_in(None) for picture in pictures] == [
        f"shards/cc-{number // 2:05}.tar/{number:06}.png" for number in range(6)
    ]
    assert [picture.read() for picture in pictures] == [
        EXAMPLES[number % len(EXAMPLES)].read_bytes() for number in range(6)
    ]
    assert [picture.member_key for picture in pictures] == [f"{number:06}" for number in range(6)]


def test_a_picture_is_what_the_tar_file_has(folder):
    """Against the standard library, with members of every kind, and names of every length."""
    picture, long = EXAMPLES[0].read_bytes(), "x" * 200
    with tarfile.open(folder / "odd.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(EXAMPLES[1], "./sub/a.PNG")
        archive.add(EXAMPLES[1].parent, "sub", recursive=False)
        archive.add(EXAMPLES[2], f"{long}.webp")
        archive.add(EXAMPLES[0], "é.jpeg")
        archive.add(EXAMPLES[0], "._hidden.png")
        archive.add(EXAMPLES[0], "d.e.gif")
    found = find_pictures(["shards/odd.tar"])
    assert [picture.member for picture in found] == ["./sub/a.PNG", f"{long}.webp", "é.jpeg"]
    with tarfile.open(folder / "odd.tar") as archive:
        for each in found:
            assert archive.extractfile(each.member).read() == each.read()
    assert found[2].read() == picture


def test_names_survive_that_the_folder_moves(folder, tmp_path):
    before = [(picture.name_in(tmp_path / "out"), picture.read()) for picture in find_pictures(["shards"])]
    (tmp_path / "elsewhere").mkdir()
    folder.rename(tmp_path / "elsewhere/shards")
    moved = [
        (picture.name_in(tmp_path / "elsewhere/out"), picture.read()) for picture in find_pictures(["elsewhere/shards"])
    ]
    assert before == moved
    assert before[0][0] == "../shards/cc-00000.tar/000000.png"


def test_a_store_gives_the_same(folder):
    """pyarrow's local filesystem stands for a store."""
    for path in (folder.as_uri(), f"{folder.as_uri()}/cc-{{00000..00002}}.tar", f"{folder.as_uri()}/cc-*.tar"):
        there, here = find_pictures([path]), find_pictures([str(folder)])
        assert [picture.read() for picture in there] == [picture.read() for picture in here]
        assert [picture.member for picture in there] == [picture.member for picture in here]


def test_only_the_headers_and_the_picture_are_read(tmp_path, monkeypatch):
    """A shard of 20 GB, with holes: neither listing nor reading may take more than the picture."""
    path = tmp_path / "huge.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(20):
            header = tarfile.TarInfo(f"{number}.bin")
            header.size = 2**30
            archive.addfile(header)
            archive.fileobj.seek(2**30, 1)
            archive.offset += 2**30
        archive.add(EXAMPLES[0], "last.png")
    assert path.stat().st_size > 20 * 2**30
    (picture,) = find_pictures([str(path)])
    assert picture.read() == EXAMPLES[0].read_bytes()


def test_parts_take_whole_shards(folder):
    parts = [names("shards", shard=Shard(index, 2)) for index in (1, 2)]
    assert sorted(parts[0] + parts[1]) == names("shards")
    assert not {name.split("/")[1] for name in parts[0]} & {name.split("/")[1] for name in parts[1]}


def test_a_limit_ends_the_search(folder):
    (folder / "cc-00001.tar").write_bytes(b"no tar file")
    assert names("shards", limit=2) == names("shards/cc-00000.tar")


def test_pictures_beside_shards_come_without_them(folder):
    """As in earlier versions: who keeps an archive of a folder in the folder captions its pictures."""
    (folder / "a.png").write_bytes(EXAMPLES[0].read_bytes())
    assert names("shards") == ["shards/a.png"]


def test_a_truncated_shard_gives_what_is_whole(folder, monkeypatch):
    monkeypatch.chdir(folder)
    path = folder / "cc-00000.tar"
    whole = path.read_bytes()
    (_, second) = find_pictures([path.name])
    path.write_bytes(whole[: second.places[0].offset + 1000])
    assert errors(path) == [
        "cc-00000.tar/000001.png: is cut off, because the shard ends in the middle of it",
        "cc-00000.tar: cannot be read after 000001: unexpected end of data",
    ]
    assert len(find_pictures([path.name])) == 3  # the first is whole


def test_what_is_no_tar_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "page.tar").write_text("<html>" * 1000)
    (message,) = errors(folder / "page.tar")
    assert message.startswith("page.tar: is not a tar file: ")
    assert message.endswith("compressed ones are not read: unpack them with gunzip")
    (folder / "cc.tar.gz").write_bytes(gzip.compress((folder / "cc-00000.tar").read_bytes()))
    assert errors(folder / "cc.tar.gz")[0].endswith("compressed ones are not read: unpack them with gunzip")
    assert [picture.is_missing() for picture in find_pictures(["none.tar"])] == [True]


def test_a_key_with_two_pictures(folder, monkeypatch):
    monkeypatch.chdir(folder)
    picture = EXAMPLES[0].read_bytes()
    write_tar(folder / "two.tar", [("a.jpg", picture), ("a.png", b"x"), ("b.png", picture), ("b.depth.png", b"y")])
    assert errors(folder / "two.tar") == [
        "two.tar/a: has 2 pictures (jpg, png), expected one: choose with `image_column=`, such as jpg"
    ]
    assert [picture.read() for picture in find_pictures(["two.tar"], image_column="png")] == [b"x", picture]
    assert [picture.read() for picture in find_pictures(["two.tar"], image_column=".depth.png")] == [b"y"]
    write_tar(folder / "apart.tar", [("a.jpg", picture), ("b.png", picture), ("a.png", picture)])
    assert errors(folder / "apart.tar")[0].startswith("apart.tar/a: has 2 pictures (jpg, png), expected one: choose")
    write_tar(folder / "same.tar", [("a.jpg", picture), ("a.JPG", picture)])
    assert errors(folder / "same.tar") == ["same.tar/a: has 2 pictures (jpg, jpg), expected one"]
    write_tar(folder / "dots.tar", [("a.jpg", picture), ("img.1.jpg", picture), ("img.2.jpg", picture)])
    (message,) = errors(folder / "dots.tar")
    assert message.startswith(
        "dots.tar/img: has 2 pictures (1.jpg, 2.jpg), expected one of jpg, jpeg, png, webp, heic: choose"
    )


def test_members_of_a_key_may_be_apart(folder):
    """As `tar cf` puts the files of a folder, in no order."""
    names = ["./3.txt", "./2.png", "./1.left.png", "./3.png", "./1.txt", "./2.txt", "./1.right.png"]
    write_tar(folder / "apart.tar", [(name, name.encode()) for name in names])
    found = find_pictures([str(folder / "apart.tar")], image_column="png")
    assert [(picture.read(), dict(picture.columns(()))["txt"]) for picture in found] == [
        (b"./3.png", "./3.txt"),
        (b"./2.png", "./2.txt"),
    ]
    (both,) = find_pictures([str(folder / "apart.tar")], image_column="left.png,right.png")
    assert [data for _, data in both.files(both.read())] == [b"./1.left.png", b"./1.right.png"]


def test_tables_about_shards_are_no_pictures(folder):
    """Img2dataset writes one beside each shard."""
    (folder / "cc-00000.parquet").write_bytes(b"urls")
    assert len(names("shards")) == 6


def test_every_picture_once(folder):
    assert names("shards", "./shards/", "./shards/cc-00000.tar") == names("shards")


def test_a_shard_that_is_not_there_is_an_error_of_its_own(folder):
    *found, missing = find_pictures(["shards/cc-{00000..00003}.tar"])
    assert len(found) == 6
    assert missing.is_missing()
    with pytest.raises(PictureError, match=r"^shards/cc-00003\.tar: no such file$"):
        missing.read()


def test_a_shard_without_pictures(folder):
    write_tar(folder / "empty.tar", [])
    write_tar(folder / "texts.tar", [("a.txt", b"text")])
    with pytest.raises(SettingsError, match=r"^shards/empty\.tar and 1 more: no pictures inside$"):
        find_pictures(["shards/empty.tar", "shards/texts.tar"])
    assert names("shards/empty.tar", "shards/cc-00000.tar") == names("shards/cc-00000.tar")


def test_a_picture_in_a_shard_travels_and_has_no_place_beside_it(folder):
    (picture, *_) = find_pictures(["shards"])
    assert pickle.loads(pickle.dumps(picture)) == picture
    assert picture.depends_on_folder
    assert picture.address == f"{folder}/cc-00000.tar/000000.png"
    assert picture.mirrored(".txt") == Path("cc-00000.tar/000000.txt")
    with pytest.raises(SettingsError, match=r"texts are not written into cc-00000\.tar: give `output_dir=`"):
        picture.text_file(".txt")


def test_an_empty_range_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"cc-\{3\.\.0\}\.tar: the range \{3\.\.0\} is empty: expected the smaller"):
        find_pictures([str(tmp_path / "cc-{3..0}.tar")])


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("size", [-512, -2000, 2**62, 2**80])
def test_a_size_that_no_file_has(folder, kind, size):
    """tarfile would go back to the same header for ever, or raise errors of its own kind."""
    whole = (folder / "cc-00000.tar").read_bytes().rstrip(b"\0")
    whole += bytes(-len(whole) % 512)
    for start, left in ((whole, 2), (b"", 0)):
        (folder / "odd.tar").write_bytes(start + claiming("000009.png", size, kind) + whole + bytes(1024))
        pictures = list(itertools.islice(TarShard("shards/odd.tar", "odd.tar").pictures(), 9))
        assert [picture.read() for picture in pictures[:left]] == [each.read_bytes() for each in EXAMPLES[:left]]
        assert len(pictures) > left
        for picture in pictures[left:]:
            with pytest.raises(PictureError, match=r"odd\.tar(: |/000009\.png: )"):
                picture.read()
