"""The drawn world that moves: what its questions say is in its frames, and both benchmarks read its files."""

from __future__ import annotations

import numpy as np

from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.eval import eventhallusion, videohallucer
from sira_cli.eval.card import Asking
from sira_cli.pictures.sources import as_picture
from tools.moving import FRAMES, WORDS, export, make_film

FILMS = [film for seed in VALIDATION_SEEDS[:40] if (film := make_film(seed)) is not None]


def test_frames_differ_where_and_when_something_happens():
    for film in FILMS[:2]:
        frames = [np.asarray(render(film.at(number))[0]).astype(int) for number in range(FRAMES)]
        changes = [number for number in range(1, FRAMES) if (frames[number] != frames[number - 1]).any()]
        assert changes == [event.frame for event in film.events]
        for event in film.events:
            x0, y0, x1, y1 = film.scene.things[event.index].box
            before, after = frames[event.frame - 1], frames[event.frame]
            assert (before[y0:y1, x0:x1] != after[y0:y1, x0:x1]).any()
            away = (before != after).any(axis=2)
            away[y0:y1, :] = False  # it moves on its own level
            assert not away.any()
    seen = {event.kind: [] for film in FILMS for event in film.events}
    assert seen.keys() == WORDS.keys()
    for film in FILMS:
        for event in film.events:
            seen[event.kind].append([film.at(number).things[event.index].strength for number in (0, FRAMES - 1)])
    assert all(each == [0, 1] for each in seen["enters"])
    assert all(each == [1, 0] for each in seen["leaves"])


def test_both_benchmarks_read_the_files(tmp_path):
    film = FILMS[0]
    export([film], tmp_path)
    for module, asks in ((eventhallusion, 4), (videohallucer, 4)):
        name = module.CARD.name
        benchmark = module.CARD.read(tmp_path / name, Asking())
        assert len(benchmark.questions) == asks
        answers = {each.text: each.expected for each in benchmark.questions}
        assert sorted(answers.values()) == ["no", "no", "yes", "yes"]
        busy = [film.name(event) for event in film.events]
        about = f"Does the {busy[0]} {WORDS[film.events[0].kind]} "
        assert {said for text, said in answers.items() if text.startswith(about)} == {"yes"}
        assert {said for text, said in answers.items() if text.startswith(f"Does the {busy[1]} ")} == {"no"}
        clips = tmp_path / name / module.CARD.pictures
        assert as_picture(clips / benchmark.questions[0].picture).open().facts["seconds"] == FRAMES / 4
