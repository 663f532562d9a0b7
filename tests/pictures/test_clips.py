"""Clips: which frames are taken and when they are shown, next to a decoder that reads everything from the beginning."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tarfile
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image, ImageSequence

from sira_cli import PictureError, SettingsError
from sira_cli.pictures import clip_files, clip_worker, opening, single
from sira_cli.pictures.clip import Sampling, evenly
from sira_cli.pictures.content import LargeFile
from sira_cli.pictures.find import find_pictures
from sira_cli.pictures.sources import as_picture
from tests.support.clips import all_frames, drawn, turned, write_animation, write_clip

CONTAINERS = {
    "a.mp4": {},
    "a.m4v": {"codec": "mpeg4"},
    "a.mov": {"codec": "mpeg4"},
    "a.mkv": {"codec": "libx265", "pixels": "yuv420p10le"},
    "a.webm": {"codec": "libvpx-vp9"},
    "a.avi": {"codec": "mpeg4"},
}


def opened(path, **sampling):
    return as_picture(path).open(Sampling(**sampling)).image


@pytest.mark.parametrize("name", CONTAINERS)
def test_frames_equal_those_of_reading_everything(tmp_path, name):
    path = write_clip(tmp_path / name, **CONTAINERS[name])
    clip, every = opened(path, frames=7), all_frames(path)
    assert clip.numbers == (0, 3, 6, 10, 13, 16, 19)
    assert clip.times == pytest.approx([number / 10 for number in clip.numbers], abs=1e-3)
    assert (clip.timeline.count, clip.timeline.fps, clip.timeline.seconds) == (20, 10, 2)
    for frame, number in zip(clip.frames, clip.numbers, strict=True):
        assert np.array_equal(np.asarray(frame), every[number])


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_animations(tmp_path, name):
    path = write_animation(tmp_path / name)
    clip = opened(path, frames=3)
    with Image.open(path) as image:
        every = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    assert (clip.numbers, clip.times, clip.timeline.fps) == ((0, 2, 5), (0, 0.4, 1.0), 5)
    assert all(np.array_equal(frame, every[number]) for frame, number in zip(clip.frames, clip.numbers, strict=True))


def test_frames_of_variable_rates_are_found_by_time(tmp_path):
    times = [0, 100, 200, 300, 400, 2400, 2500, 2600, 2700, 2800]  # the fifth stands still for two seconds
    path = write_clip(tmp_path / "a.mkv", frames=10, codec="ffv1", pixels="bgr0", gop=0, times=times)
    clip = opened(path, fps=1)
    wanted = [number / (9 / 2.8) for number in clip.numbers]  # at a constant rate, the mean one
    assert wanted == pytest.approx([0, 1, 2, 3], abs=0.21)
    shown = [max(number for number, time in enumerate(times) if time / 1000 <= each + 0.01) for each in wanted]
    assert shown == [0, 4, 4, 9]
    assert [int(np.asarray(frame)[-1, -1, 0]) for frame in clip.frames] == [drawn(n)[-1, -1, 0] for n in shown]
    assert clip.times == pytest.approx([times[number] / 1000 for number in shown])
    assert clip.timeline.fps == pytest.approx(9 / 2.8)


@pytest.mark.parametrize(("matrix", "turns"), [((0, 1, -1, 0), 3), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)])
def test_clips_of_phones_are_set_upright(tmp_path, matrix, turns):
    path = write_clip(tmp_path / "a.mp4", frames=3)
    stored = all_frames(path)[0]
    upright = np.asarray(opened(turned(path, matrix), frames=1).frames[0])
    assert np.array_equal(upright, np.rot90(stored, turns))


def test_oblong_pixels_become_square(tmp_path):
    clip = opened(write_clip(tmp_path / "a.mp4", frames=3, aspect=Fraction(4, 3)), frames=2)
    assert (clip.size, clip.timeline.width, clip.timeline.height) == ((128, 64), 128, 64)
    left = np.asarray(clip.frames[0])[4, :20, 0].astype(int)  # the red corner is as much wider
    assert left.min() > 150


def test_a_part_of_a_clip(tmp_path):
    path = write_clip(tmp_path / "a.mp4")
    clip, every = opened(path, start=0.5, end=1.2, frames=3), all_frames(path)
    assert (clip.timeline.count, clip.numbers, clip.times) == (7, (0, 3, 6), pytest.approx((0.5, 0.8, 1.1)))
    assert np.array_equal(np.asarray(clip.frames[2]), every[11])
    assert opened(path, fps=2, end=30.0).times == pytest.approx((0, 0.5, 1, 1.5))
    with pytest.raises(PictureError, match=r"a\.mp4: lasts 2\.0 s, so nothing is left from `start=` 2"):
        opened(path, start=2.0)
    with pytest.raises(PictureError, match="10,000 frames would be shown, expected at most 1,024"):
        opened(path, fps=5000.0)


def test_many_frames_are_shrunk_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(clip_files, "BOUND", 10 * 48 * 32)
    path = write_clip(tmp_path / "a.mp4")
    assert [opened(path, frames=number).size for number in (1, 2, 10)] == [(96, 64), (96, 64), (48, 32)]


def test_durations_and_counts_come_from_the_packets(tmp_path):
    path = write_clip(tmp_path / "a.webm", codec="libvpx-vp9", live="1")  # without any
    assert opened(path, frames=3).numbers == (0, 10, 19)
    whole = write_clip(tmp_path / "a.mp4", frames=40, size=(192, 128), movflags="faststart").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) - 800])
    found = as_picture(tmp_path / "cut.mp4").open(Sampling(frames=2))
    assert found.warnings[0].startswith("ends early: ")
    assert 1 < found.image.timeline.count < 40


def test_large_clips_stay_on_disk(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "a.mp4")
    picture, whole = as_picture(path), as_picture(path).open(Sampling(frames=3))
    monkeypatch.setattr(single, "LARGE", 100)
    found = picture.file_content()
    assert isinstance(found, LargeFile)
    assert len(found) == path.stat().st_size
    assert picture.digest(found) == hashlib.sha256(path.read_bytes()).hexdigest() == whole.sha256
    assert picture.opened(found, Sampling(frames=3)).image.tobytes() == whole.image.tobytes()
    os.utime(path, (1, 1))
    for use in (picture.digest, picture.opened):
        with pytest.raises(PictureError, match=r"a\.mp4: changed between two readings; run the command again"):
            use(found)


def test_clips_among_pictures_in_folders_and_shards(tmp_path, monkeypatch):
    Image.new("RGB", (64, 64)).save(tmp_path / "b.png")
    write_clip(tmp_path / "a.mp4", frames=3)
    (tmp_path / "c.wmv").touch()
    found = find_pictures([str(tmp_path)])
    assert [picture.relative for picture in found] == ["a.mp4", "b.png"]
    assert found.left_out == {".wmv": 1}
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        shard.add(tmp_path / "a.mp4", "1.mp4")
        shard.add(tmp_path / "b.png", "2.png")
    clip, picture = (each.open(Sampling(frames=2)) for each in find_pictures([str(tmp_path / "a.tar")]))
    assert (len(clip.stills), len(picture.stills)) == (2, 1)


def test_without_pyav_clips_are_named_with_the_remedy(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "a.mp4", frames=3)
    animation = write_animation(tmp_path / "b.gif")
    monkeypatch.setitem(sys.modules, "av", None)
    opening.endings.cache_clear()
    try:
        with pytest.raises(PictureError, match=r"a\.mp4: is a clip, which needs PyAV: pip install 'sira-cli\[video\]'"):
            opened(path)
        assert len(opened(animation).frames) == 6
        assert find_pictures([str(tmp_path)]).left_out == {".mp4": 1}
    finally:
        monkeypatch.undo()
        opening.endings.cache_clear()


def test_what_the_rule_returns_is_bounded():
    assert evenly(clip_files.Timeline(5, 25.0, 8, 8), None, None) == [0, 1, 2, 3, 4]
    assert evenly(clip_files.Timeline(100, 25.0, 8, 8), None, 2.0) == [0, 12, 25, 38, 50, 62, 75, 88]


# --- files of strangers


def damaged_files(path) -> dict[str, bytes]:
    """Files that are no clips, or broken ones."""
    whole, draws = path.read_bytes(), random.Random(1)
    atom = whole.index(b"mdat")
    files = {
        "playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "empty container": whole[:24],
        "ends in its middle": whole[: atom + 100],
        "matroska of nothing": b"\x1a\x45\xdf\xa3" + bytes(200),
        "avi of nothing": b"RIFF\xff\xff\xff\xffAVI " + bytes(200),
        "of a huge atom": b"\0\0\0\1ftypisom" + b"\xff" * 200,
        "playlist inside": whole[:24] + b"#EXTM3U\nhttp://127.0.0.1:9/x.ts\n" * 9,
    }
    for number in range(52):
        data = bytearray(whole)
        for _ in range(draws.choice((1, 4, 40, 400))):
            data[draws.randrange(8, len(data))] = draws.randrange(256)
        files[f"changed {number}"] = bytes(data[: draws.choice((len(data), len(data) - 500))])
    return files


def check_harmless(name: str, data: bytes) -> bool:
    """Whether the file was read; otherwise its error is one line about it."""
    try:
        found = as_picture(data).open(Sampling(frames=4))
    except PictureError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert message.startswith("the picture's bytes: "), name
        assert "\n" not in message
        return False
    assert all(len(frame.tobytes()) == 3 * frame.width * frame.height for frame in found.stills)
    return True


@pytest.mark.parametrize("name", ["playlist", "concat", "ends in its middle", "matroska of nothing", "of a huge atom"])
def test_files_that_are_no_clips_are_one_error_each(tmp_path, name):
    path = write_clip(tmp_path / "a.mp4", movflags="faststart")
    assert not check_harmless(name, damaged_files(path)[name])


@pytest.mark.slow
def test_sixty_damaged_files_fail_one_by_one(tmp_path):
    path = write_clip(tmp_path / "a.mp4", frames=40, movflags="faststart")
    read = [check_harmless(*file) for file in damaged_files(path).items()]
    assert len(read) == 60
    assert 5 < sum(read) < 52


def test_a_sound_is_no_clip(tmp_path):
    import av

    with av.open(str(tmp_path / "a.m4v"), "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    with pytest.raises(PictureError, match=r"a\.m4v: holds no video"):
        opened(tmp_path / "a.m4v")


def test_the_worker_opens_nothing_but_its_file(tmp_path):
    """A demuxer that follows a reference, or a decoder that is taken over, meets a process without further files."""
    code = """if True:
        import runpy, socket, sys
        runpy.run_path(sys.argv[1])["seal"]()
        for act in (lambda: open("/etc/hostname"), lambda: socket.socket()):
            try:
                act()
            except OSError as error:
                sys.stdout.write(f"{error.strerror}; ")
    """
    found = subprocess.run([sys.executable, "-c", code, clip_worker.__file__], capture_output=True, text=True)
    assert found.stdout == "Too many open files; Too many open files; "


def test_a_clip_that_takes_too_long_or_too_much_is_an_error(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "a.mp4", frames=3)
    usual = clip_files._LIMITS
    for changed, expected in (({"longest": 0.01}, "takes too long"), ({"memory": 2**20}, "could not read it")):
        monkeypatch.setattr(clip_files, "_LIMITS", clip_files.ProcessLimits(**{**vars(usual), **changed}))
        with pytest.raises(PictureError, match=rf"a\.mp4: .*{expected}"):
            opened(path)


def test_settings_of_clips_that_exclude_each_other():
    from sira_cli.models.loading import presets

    preset = presets.find("demo")
    for settings, expected in (
        ({"frames": 3, "fps": 1.0}, "give one of them"),
        ({"start": 3.0, "end": 2.0}, "before it starts"),
        ({"frames": 0}, "clip.frames"),
    ):
        with pytest.raises(SettingsError, match=expected):
            preset.with_settings(**settings)
    assert "clip" not in preset.decisive()
    assert json.loads(json.dumps(preset.with_settings(frames=3).decisive()))["clip"] == {"frames": 3}
