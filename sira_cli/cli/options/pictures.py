"""From options to pictures: those that paths and lists name, or questions about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sira_cli.cli.options.common import GroupOptions, PathOptions, SelectionOptions
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.pictures.left_out import Pictures
    from sira_cli.pictures.picture import Picture


def chosen_questions(
    file: Path, paths: Sequence[str], selection: GroupOptions, asking: Callable[[str], str]
) -> list[Picture]:
    """Return the questions of --questions, each with its picture.

    Args:
        file: the option's value.
        paths: the folder of the pictures, or nothing.
        selection: --shard and --limit.
        asking: returns what the model is asked for a question.

    Raises:
        SettingsError: several folders are named, or incompatible options.
        DataError: the file cannot be read.
        PictureError: none of the pictures exists.
    """
    if selection.together:
        raise SettingsError("--questions says itself which pictures are shown together: leave out --together")
    if len(paths) > 1 or selection.files_from is not None:
        raise SettingsError("--questions names the pictures: give only their folder, or nothing")
    from sira_cli.data.questions import question_pictures
    from sira_cli.pictures.find import Shard, check_any_exists

    pictures = question_pictures(
        file,
        asking,
        images=paths[0] if paths else None,
        shard=None if selection.shard is None else Shard.parse(selection.shard),
        limit=selection.limit,
        allow_private=selection.allow_private,
    )
    check_any_exists(pictures)
    return pictures


def chosen_pictures(paths: Sequence[str], selection: SelectionOptions, *, repeats: bool = False) -> Pictures:
    """Return the pictures that the command line names; missing ones are reported before a model is loaded.

    Args:
        paths, selection: the command line.
        repeats: keep a picture as often as it is named.

    Raises:
        SettingsError: no path is named, or an option has a wrong value.
        PictureError: none of them exists.
    """
    if not paths and selection.files_from is None:
        raise SettingsError("Missing argument 'PATH': a picture, a folder, a glob, or --files-from FILE")
    from sira_cli.pictures.find import Shard, check_any_exists, find_pictures

    pictures = find_pictures(
        [*paths, *listed_paths(paths, selection)],
        recursive=selection.recursive,
        shard=None if selection.shard is None else Shard.parse(selection.shard),
        limit=selection.limit,
        image_column=selection.image_column,
        id_column=selection.id_column,
        allow_private=selection.allow_private,
        repeats=repeats,
    )
    check_any_exists(pictures)
    return pictures


def chosen_groups(paths: Sequence[str], selection: GroupOptions) -> list[Picture]:
    """Return the pictures that the command line names; with --together, all of them as one.

    Raises:
        SettingsError, PictureError: as for `chosen_pictures`.
        DataError: --files-from has rows, and one names no pictures.
    """
    if selection.files_from is not None and selection.files_from.endswith(".jsonl"):
        return _listed_groups(Path(selection.files_from), paths, selection)
    if not selection.together:
        return chosen_pictures(paths, selection)
    for name, value in (("--shard", selection.shard), ("--limit", selection.limit)):
        if value is not None:
            raise SettingsError(
                f"{name} chooses among pictures, but --together shows all of them at once: leave it out"
            )
    from sira_cli.pictures.left_out import Pictures
    from sira_cli.pictures.together import Together

    pictures = chosen_pictures(paths, selection, repeats=True)
    if group := next((picture for picture in pictures if picture.is_group), None):
        raise SettingsError(f"{group.shown} is several pictures that are shown together already: leave out --together")
    return Pictures([Together.of(pictures)], pictures.left_out)


def _listed_groups(file: Path, paths: Sequence[str], selection: GroupOptions) -> list[Picture]:
    if paths or selection.together:
        raise SettingsError(f"--files-from {file} says itself which pictures are shown together: give nothing else")
    from sira_cli.data.groups import listed_groups
    from sira_cli.pictures.find import Shard, check_any_exists

    pictures = listed_groups(
        file,
        shard=None if selection.shard is None else Shard.parse(selection.shard),
        limit=selection.limit,
        allow_private=selection.allow_private,
    )
    check_any_exists(pictures)
    return pictures


def listed_paths(paths: Sequence[str], selection: PathOptions) -> list[str]:
    """Return the paths that --files-from adds to those of the command line.

    Raises:
        SettingsError: the list cannot be read, or names nothing.
        DataError: the file is not a list.
    """
    from sira_cli.pictures.lists import read_list
    from sira_cli.pictures.single import STDIN

    listed: list[str] = []
    if selection.files_from == STDIN:
        if STDIN in paths:
            raise SettingsError("stdin cannot be both a picture (-) and a list of pictures (--files-from -)")
        listed = read_list(sys.stdin.buffer, "stdin")
    elif selection.files_from is not None:
        try:
            with Path(selection.files_from).open("rb") as file:
                listed = read_list(file, f"--files-from {selection.files_from}")
        except OSError as error:
            raise SettingsError(f"--files-from {selection.files_from}: cannot be read: {error.strerror}") from error
    if selection.files_from is not None and not paths and not listed:
        raise SettingsError(f"--files-from {selection.files_from}: names no pictures")
    return listed
