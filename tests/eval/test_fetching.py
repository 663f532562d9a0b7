"""Pictures at a URL, from a real server on this machine: fetched once, kept, and asked about."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from safetensors.torch import load_file

from sira_cli.errors import DataError
from sira_cli.models import presets
from sira_cli.pictures import web
from sira_cli.pictures.fetching import Estimate, Fetched, fetch, fetch_all, folder_name, not_here
from tests.support.eval.writing import SCENES, values
from tests.support.web import WebServer, answering, reply


@pytest.fixture
def broken() -> set[str]:
    """Names that the server does not have."""
    return set()


@pytest.fixture
def server(scenes, broken, monkeypatch) -> Iterator[WebServer]:
    """A server with the scenes' pictures in val2014/, at an address that counts as public."""

    def answer(path: str) -> list[bytes]:
        name = unquote(path.removeprefix("/val2014/"))
        if name in broken or not (scenes / "images" / name).is_file():
            return reply(404)
        return reply(200, (scenes / "images" / name).read_bytes())

    monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
    with answering(answer) as server:
        yield server


@pytest.fixture
def url(server) -> str:
    return f"{server.address}/val2014"


def kept(url: str) -> Path:
    return presets.cache() / "pictures" / folder_name(url)


def test_pictures_at_a_url_are_asked_about(pope, scenes, server, url):
    """The figures are those of the folder; another benchmark's run, or a second one, fetches nothing again."""
    code, found, err = pope(images=url)
    assert code == 0, err
    folder = kept(url)
    assert values(found) == values(pope()[1])
    for path in folder.iterdir():
        assert path.read_bytes() == (scenes / "images" / path.name).read_bytes()
    asked = Counter(server.asked)
    assert (len(asked), {*asked.values()}) == (SCENES, {1})
    assert pope(images=f"{url}/")[0] == 0
    assert Counter(server.asked) == asked
    next(folder.iterdir()).unlink()
    assert pope(images=url)[0] == 0
    assert len(server.asked) == SCENES + 1


def test_the_number_and_the_size_are_said_before(pope, url, scenes, monkeypatch):
    monkeypatch.setattr("sira_cli.pictures.fetching.SAMPLE", 1)
    sizes = [path.stat().st_size for path in (scenes / "images").iterdir()]
    _, _, err = pope(images=url)
    (told,) = (line for line in err.splitlines() if "fetching" in line)
    assert f"fetching {SCENES} pictures from {url} to " in told
    megabytes = int(told.partition("about ")[2].split()[0])
    assert min(sizes) * SCENES / 1e6 - 1 <= megabytes <= max(sizes) * SCENES / 1e6 + 1


def test_the_first_pictures_tell_the_size_of_all(url, scenes, tmp_path, monkeypatch):
    monkeypatch.setattr("sira_cli.pictures.fetching.SAMPLE", 1)
    paths = sorted((scenes / "images").iterdir())
    events = list(fetch_all(url, [path.name for path in paths], tmp_path))
    (estimate,) = (event for event in events if isinstance(event, Estimate))
    assert estimate == Estimate(SCENES, paths[0].stat().st_size * SCENES, 1)
    assert {event.name for event in events if isinstance(event, Fetched)} == {path.name for path in paths}
    assert list(fetch_all(url, [], tmp_path)) == []


def test_one_that_fails_is_tried_again_and_named(pope, url, server, broken, scenes):
    missing = sorted(path.name for path in (scenes / "images").iterdir())[0]
    broken.add(missing)
    code, found, err = pope(images=url)
    assert code == 3
    assert f"1 of {SCENES} pictures could not be fetched, such as {url}/{missing}: failed_to_download: " in err
    assert server.asked.count(f"GET /val2014/{missing}") == 2
    assert {failure["picture"] for failure in found["failures"]} == {missing}


def test_where_no_picture_is_nothing_is_asked(pope, server, loaded):
    code, _, err = pope(images=f"{server.address}/elsewhere")
    assert (code, loaded.total()) == (1, 0)
    assert f"the server answers 404, nor any of the other {SCENES - 1} that are not in " in err
    assert err.endswith(": is --images right?\n")


def test_what_is_refused_is_refused_before_any_is_fetched(pope, server, url, tmp_path):
    """A method that does not exist, and a folder with the report of another benchmark."""
    (tmp_path / "report.json").write_text('{"benchmark": "chair"}')
    for wrong, said in ((("--method", "nosuch"), "nosuch"), (("-o", tmp_path), "holds the report of chair")):
        code, _, err = pope(*wrong, images=url)
        assert (code, server.asked) == (2, [])
        assert said in err


def test_in_a_folder_of_benchmarks_they_are_kept_there(sira, scenes, server, url, loaded, tmp_path):
    """Pictures that are in images/ are not fetched, such as AMBER's, which are elsewhere."""
    folder = tmp_path / "benchmarks"
    (folder / "images").mkdir(parents=True)
    for name in ("pope", "coco"):
        (folder / name).symlink_to(scenes / name)
    present, *others = sorted(path.name for path in (scenes / "images").iterdir())
    (folder / "images" / present).symlink_to(scenes / "images" / present)
    run = ("eval", "chair,pope", folder, "-p", "demo", "-b", 16, "--max-new-tokens", 4, "--images", url, "-q")
    assert sira(*run)[0] == 0
    assert sorted(path.name for path in (folder / "images").iterdir()) == [present, *others]
    assert sorted(server.asked) == [f"GET /val2014/{name}" for name in others]


def test_a_shard_fetches_its_own_pictures(pope, url, server, tmp_path):
    for index in (1, 2):
        assert pope("-o", tmp_path / "out", "--shard", f"{index}/2", images=url)[0] == 0
        assert len({*server.asked}) == len(server.asked)
        assert index == 2 or 0 < len(server.asked) < SCENES
    assert len(server.asked) == SCENES


@pytest.mark.parametrize(
    "name", ["../a.png", "a/../../b.png", "/etc/passwd", "..\\a.png", "C:a.png", "\\a.png", "", "."]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="is not the name of a picture below a folder"):
        not_here(["a.png", name], tmp_path)


@pytest.mark.parametrize("given", ["http://127.0.0.1/a?b=1", "http://host/a#b", "https:///a", "http://[x/a"])
def test_a_url_that_is_no_folder_is_refused(pope, given):
    code, _, err = pope(images=given)
    assert code == 2
    assert "expected the URL of a folder" in err
    assert err.count("\n") == 1


def test_names_are_quoted_and_what_is_no_picture_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
    with answering(lambda path: reply(200, b"<html>not found</html>")) as server:
        (found,) = fetch(server.address, ["sub/é ?#%.png"], tmp_path)
    assert server.asked == ["GET /sub/%C3%A9%20%3F%23%25.png"]
    assert found.size == 0, found.error
    assert "is not a picture" in found.error or "no picture" in found.error, found.error
    assert list(tmp_path.iterdir()) == []


def test_a_private_address_is_refused(tmp_path):
    with answering(lambda path: reply(200)) as server:
        (found,) = fetch(server.address, ["a.png"], tmp_path)
    assert "no public address" in found.error
    assert server.asked == []


def test_urls_have_folders_of_their_own():
    names = [
        folder_name(url) for url in ("http://a.org/b/", "http://me:x@a.org/b", "http://a.org/c", "https://a.org/b")
    ]
    assert (names[0], len({*names})) == (names[1], 3)
    assert names[0].startswith("a.org_b-")


@pytest.mark.parametrize("command", ["sweep", "calibrate"])
def test_other_commands_that_ask_questions_fetch_their_pictures(command, scenes, url, server, sira, tmp_path):
    """The figures and the calibration are those of the folder."""
    asked = sorted((scenes / "pope").glob("*.json"))[:1]
    outputs = []
    for number, images in enumerate((url, scenes / "images")):
        place = tmp_path / f"{number}.safetensors"
        given = [*asked, "--k", "4", "--alpha", "0.5", "--json"]
        if command == "calibrate":
            given = ["ict", "--questions", *asked, "-o", place]
        code, out, err = sira(command, *given, "--images", images, "-p", "demo", "--limit", 4)
        assert code == 0, err
        outputs.append(load_file(place) if command == "calibrate" else json.loads(out)["rows"])
    if command == "calibrate":
        outputs = [{name: tensor.tolist() for name, tensor in tensors.items()} for tensors in outputs]
    assert outputs[0] == outputs[1]
    assert {path.name for path in kept(url).iterdir()} == {path.rpartition("/")[2] for path in server.asked}
    assert len(server.asked) >= 1
