"""The records of a run in other forms, with texts that somebody has corrected.

An argument file for ExifTool (`exiftool -@ ARGS`) writes records into XMP sidecars, `photo.jpg.xmp` or `photo.xmp`,
never into pictures. What a sidecar gets is decided when ExifTool runs, by conditions in Perl: a text where no field of
the picture or of a sidecar describes it, keywords after those that both have. Programs such as digiKam and Immich take
a field from the sidecar if it is there, so the picture's keywords go into it too, which would hide them else. `-q -q`
silences warnings about fields that pictures lack; errors are shown. Tested with ExifTool 12.57.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import IO, Any

from sira_cli.analysis.corrections import corrected, read_corrections, versions
from sira_cli.analysis.record_file import Record, RecordFile, picture_name
from sira_cli.errors import SettingsError, install
from sira_cli.files import replacing
from sira_cli.look.claims import unsupported
from sira_cli.pictures.find import MEDIA
from sira_cli.pictures.neighbours import Neighbours
from sira_cli.pictures.opening import endings
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.records import is_failure
from sira_cli.pictures.sources import FileSource, recorded
from sira_cli.run.output import Sidecars
from sira_cli.run.records import OPTIONAL, Result, as_line

ROWS = 10_000  # in a Parquet row group
# What becomes of a record: it is written, or left out for a reason.
WRITTEN, WITHOUT_TEXT, KEPT = "written", "records without a text", "texts whose files exist"
NO_SIDECAR = "texts about pictures that are several, not in a file here, or have names that ExifTool cannot read"
DESCRIBED = "further texts about pictures that have one"

# Fields in which people describe a picture: those of XMP (in all languages), EXIF, IPTC, PNG and JPEG, of ACDSee, of
# Windows. Then those that name the author of a description, and alternative texts.
_DESCRIPTIONS = (
    *("Description*", "ImageDescription*", "UserComment*", "Caption-Abstract", "Comment", "XMP-acdsee:Caption"),
    *("XPTitle", "XPSubject", "XPComment"),
)
_WRITERS = ("CaptionWriter", "Writer-Editor")
_ALTERNATIVES = ("AltTextAccessibility*",)
_TEXT, _WRITER = "XMP-dc:Description", "XMP-photoshop:CaptionWriter"
_ALTERNATIVE = "XMP-iptcCore:AltTextAccessibility"
_LONG, _SHORT = "%d%f.%e.xmp", "%d%f.xmp"
_COMMON = ("-q", "-q", "-overwrite_original", "-charset", "filename=utf8")
_IS_SIDECAR = '$FileType eq "XMP"'  # after `-srcfile @`: not the picture, as there is no sidecar
_PICTURE = "$OriginalDirectory/$OriginalFileName"
_NO_SIDECAR = "not grep { $self->Exists($_) } SIDECARS"
_NOTHING = r"""
not grep {
    my $info = ImageInfo($_, {CharsetFileName => "utf8"}, FIELDS);
    grep { !/^(Error|Warning)/ and $info->{$_} =~ /\S/ } keys %$info
} PICTURE, SIDECARS
"""
# The list that a sidecar shall have; undefined if it has it. $_ holds the new keywords, with tabs between them.
_LIST = r"""
my $picture = $$self{FILENAME};
my @files = grep { $self->Exists($_) } SIDECARS, $picture;
my $in = sub {
    my ($file, $field) = @_;
    my $info = ImageInfo($file, {ListSep => "\t", CharsetFileName => "utf8"}, $field);
    map { split $field eq "XPKeywords" ? qr/;\s*/ : qr/\t/, $info->{$_} } grep { !/^(Error|Warning)/ } sort keys %$info
};
my $all = sub { map { my $field = $_; map { $in->($_, $field) } @files } @_ };
my @new = split /\t/;
my @plain = ($all->("XMP-dc:Subject", "IPTC:Keywords", "XPKeywords"), @new);
LIST
my %seen;
$_ = join "\t", grep { length and !$seen{$_}++ } @list;
undef $_ if @files > 1 and $_ eq join "\t", $in->($files[0], "FIELD")
"""
_LISTS = {
    "XMP-dc:Subject": "my @list = @plain;",
    # Paths, here with `/`, there with `|`. Without any, the plain keywords are the tags.
    "XMP-digiKam:TagsList": r"""
my @list = $all->("XMP-digiKam:TagsList", "XMP-microsoft:LastKeywordXMP");
push @list, map { tr{|/}{/|}r } $all->("XMP-lr:HierarchicalSubject", "XMP-mediapro:CatalogSets");
my %last = map { (m{([^/]*)$})[0] => 1 } @list;
push @list, grep { !$last{$_} } map { tr{/}{|}r } grep({ m{/} } @list) ? @new : @plain;
""",
}
_UNNAMABLE = re.compile(r"\|\s*$|[\r\n]")  # a pipe; what is no line of the file


@dataclass(frozen=True)
class _Names:
    """The names of a picture's sidecar: `photo.jpg.xmp`, and `photo.xmp` if no other file can have that."""

    short: bool

    def sources(self) -> tuple[str, ...]:
        """Return arguments for the sidecar that exists, else the first."""
        long = ("-srcfile", _LONG)
        return (*long, "-srcfile", _SHORT) if self.short else long

    def perl(self, picture: str) -> str:
        """Return a list in Perl; `picture` is a variable there."""
        long = f'"{picture}.xmp"'
        return f'{long}, "{picture}" =~ s/[.][^.]*$/.xmp/r' if self.short else long

    def condition(self, perl: str) -> str:
        """Return Perl for `-if`, in which a dollar sign begins the name of a field, and two are one."""
        code = _one_line(perl).replace("$self", "SELF").replace("$", "$$").replace("SELF", "$self")
        sidecars = self.perl("PICTURE_NAME").replace("$", "$$").replace("PICTURE_NAME", _PICTURE)
        return code.replace("SIDECARS", sidecars).replace("PICTURE", f'"{_PICTURE}"')

    def where(self, fields: Sequence[str] | None, values: Sequence[str]) -> list[Sequence[str]]:
        """Return commands that write values where the picture and its sidecars have nothing in some fields.

        The first makes a sidecar, the other one writes into one that exists.
        """
        listed = ", ".join(f'"{field}"' for field in fields or ())
        nothing = [] if fields is None else [self.condition(_NOTHING.replace("FIELDS", listed))]
        missing = " and ".join([self.condition(_NO_SIDECAR), *nothing])
        existing = " and ".join([_IS_SIDECAR, *nothing])
        return [
            ["-srcfile", "@", "-if", missing, *values, "--all", "-o", _LONG],  # --all: copies nothing
            [*self.sources(), "-srcfile", "@", "-if", existing, *values],
        ]


class Export:
    """The newest record of each picture or caption in a file, in order. The texts stay on disk."""

    def __init__(self, path: Path, corrections: Path | None = None, *, best: bool = False) -> None:
        """Read the records, and what the page of `sira report` saved.

        Args:
            path: the records.
            corrections: the file that the page saved.
            best: leave out all captions of a picture but the best supported one, by the rule of `sira_cli.look.best`.

        Raises:
            DataError: a file cannot be read, holds no corrections, or, for `best`, a caption without a second look.
        """
        self.path = path
        self._file = RecordFile(path)
        self._best = best
        self._starts = self._file.best() if best else self._file.newest()
        self._keys: set[str] = set()
        self.corrections = {} if corrections is None else read_corrections(corrections)
        self.missed: dict[str, str] = {}  # reasons why a correction did not arrive, by the name of its picture
        missing = dict(self.corrections)
        for _, record, _ in self:
            self._keys.update(record)
            missing.pop(record["key"], None)
        for correction in missing.values():
            self.missed[correction.name] = f"no record of {path} has its key"

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[Picture, Record, list[Record]]]:
        """Yield each picture, its record, and, of one with a correction, the records that it was before."""
        for start in self._starts:
            record = self._file[start]
            if self._best:
                record["file_name"] = picture_name(record)
            before: list[Record] = []
            correction = self.corrections.get(record["key"])
            if correction is not None:
                before = versions(record, correction)
                if correction.text != record["text"]:
                    record = corrected(record, correction.text)
            yield recorded(record["file_name"], self.path.parent), record, before

    def write_table(self, path: Path) -> None:
        """Write all records to a .csv or .parquet file, one row each; nested fields are JSON.

        The name of the picture comes first. A .csv is in UTF-8 with a byte order mark, as Excel needs it.
        """
        is_parquet = path.suffix.lower() == ".parquet"
        if is_parquet and importlib.util.find_spec("pyarrow") is None:
            raise SettingsError(f"{path}: Parquet needs pyarrow: {install('data')}, or write .csv")
        types = {"file_name": ""}  # of columns; empty: text
        if "id" in self._keys:
            types["id"] = ""
        for field in fields(Result):
            if field.name in self._keys or field.name not in OPTIONAL:
                types[field.name] = str(field.type).removesuffix(" | None")
        write = _write_parquet if is_parquet else _write_csv
        with replacing(path) as file:
            write((_flat(record) for _, record, _ in self), types, file)

    def write_records(self, path: Path) -> None:
        """Write all records as lines; names of pictures are relative to the file's folder."""
        folder = path.parent.resolve()
        moved = folder != self.path.parent.resolve()
        with replacing(path) as file:
            for picture, record, _ in self:
                if moved:
                    name = picture.name_in(folder)
                    images = picture.images(name)
                    record["file_name"] = name
                    if images:
                        record["images"] = images
                file.write(as_line(record))

    def write_sidecars(self, extension: str, output_dir: Path | None, *, overwrite: bool) -> Counter[str]:
        """Write text files as a run does, and count them. One that holds the text before a correction is replaced."""
        counts = Counter({WRITTEN: 0})
        with_text = [picture for picture, record, _ in self if _has_text(record)]
        files = Sidecars(with_text, extension=extension, output_dir=output_dir, overwrite=overwrite)
        for picture, record, before in self:
            if not _has_text(record):
                counts[WITHOUT_TEXT] += 1
                self._miss(record, "the corrected text is empty: no text file is written")
                continue
            if files.keeps(picture):
                words = files.text(picture).split()
                differs = words != record["text"].split()
                if not differs or words not in [version["text"].split() for version in before]:
                    counts[KEPT] += 1
                    if differs:
                        self._miss(record, f"{files.place(picture)} holds a text of another: `overwrite=` replaces it")
                    continue
            files.replace(picture, record["text"])
            counts[WRITTEN] += 1
        return counts

    def write_arguments(self, path: Path, *, replace: bool) -> Counter[str]:
        """Write an argument file for ExifTool, and count the texts in it."""
        counts = Counter({WRITTEN: 0})
        neighbours = Neighbours(MEDIA | endings())
        described: set[str] = set()
        with replacing(path) as file:
            for picture, record, before in self:
                wrong = _no_arguments(picture, record)
                if not wrong and picture.identity in described:
                    wrong = DESCRIBED
                if wrong:
                    counts[wrong] += 1
                    self._miss(record, f"left out: {wrong}")
                    continue
                described.add(picture.identity)
                short = neighbours.is_alone(picture.location)
                lines = arguments(Path(picture.location), record, before, replace=replace, short=short)
                file.writelines(os.fsencode(line) + b"\n" for line in lines)
                counts[WRITTEN] += 1
        return counts

    def _miss(self, record: Record, reason: str) -> None:
        """Note that the correction of a record, if it has one, did not arrive."""
        if record["key"] in self.corrections:
            self.missed.setdefault(record["file_name"], reason)


def _has_text(record: Record) -> bool:
    return not is_failure(record) and bool(record["text"].strip())


def _can_have_a_sidecar(picture: Picture) -> bool:
    is_file = isinstance(picture.sources[0], FileSource) and len(picture.sources) == 1
    return is_file and bool(picture.is_here()) and not _UNNAMABLE.search(picture.location)


def _no_arguments(picture: Picture, record: Record) -> str:
    """Return why there are no arguments for ExifTool about a record; usually nothing."""
    if not _has_text(record):
        return WITHOUT_TEXT
    return "" if _can_have_a_sidecar(picture) else NO_SIDECAR


def _flat(record: Record) -> Record:
    """Return a record with its lists and mappings, and the value of a schema, as JSON."""
    row = {}
    for name, value in record.items():
        nested = name == "data" or isinstance(value, list | dict)
        row[name] = json.dumps(value, ensure_ascii=False) if nested else value
    return row


def _write_csv(records: Iterator[Record], types: Mapping[str, str], file: IO[bytes]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")  # without the mark Excel takes another encoding
    writer = csv.writer(text)
    writer.writerow(types)
    writer.writerows([record.get(name, "") for name in types] for record in records)
    text.detach()


def _write_parquet(records: Iterator[Record], types: Mapping[str, str], file: IO[bytes]) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds.get(kind, pyarrow.string())) for name, kind in types.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        while rows := list(islice(records, ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))


def arguments(
    picture: Path, record: Record, before: Sequence[Record] = (), *, replace: bool = False, short: bool = True
) -> list[str]:
    """Return the lines that write a record into the sidecar of its picture.

    Args:
        picture: the file.
        record: what is written.
        before: what a correction replaces: the record that it was, and that of earlier corrections.
        replace: also replace descriptions by others.
        short: whether the sidecar may be `photo.xmp`, without the picture's ending.
    """
    sidecar = _Names(short)
    text, alternative, keywords = _content(record)
    commands: list[Sequence[str]] = []
    by_hand = bool(before) and "draft" in record  # else its text is the model's again
    former: list[str] = []
    for version in before:
        old, older, _ = _content(version)
        former.append(_set(f"{_TEXT}-x-default-", old))
        former.append(_set(f"{_ALTERNATIVE}-", older))
        if by_hand:
            former.append(_set(f"{_WRITER}-", _writer(version)))
    if former:
        commands.append([*sidecar.sources(), "-srcfile", "@", "-if", _IS_SIDECAR, *former])
    if text:
        described = [_set(_TEXT, text)]
        written = described if by_hand else [*described, _set(_WRITER, _writer(record))]
        if replace:
            # In all languages. A program that prefers the EXIF of the picture prefers the field of XMP for it to that.
            commands += sidecar.where(None, [f"-{_TEXT}=", *written, _set("XMP-tiff:ImageDescription", text)])
        else:
            commands += sidecar.where((*_DESCRIPTIONS, *_WRITERS), written)
            commands += sidecar.where(_DESCRIPTIONS, described)
    if alternative:
        commands += sidecar.where(None if replace else _ALTERNATIVES, [_set(_ALTERNATIVE, alternative)])
    if keywords:
        names = sidecar.perl("$picture")
        lists = []
        for field, made in _LISTS.items():
            perl = _LIST.replace("SIDECARS", names).replace("LIST", made).replace("FIELD", field)
            lists.append(f"-{field}<${{sira;{_one_line(perl)}}}")
        words = "sira=" + "\t".join(keywords)
        commands.append([*sidecar.sources(), "-sep", r"#[CSTR]\t", "-userParam", words, "-tagsFromFile", "@", *lists])
    name = os.path.abspath(picture)  # noqa: PTH100 (links stay links)
    lines: list[str] = []
    for command in commands:
        lines += (*_COMMON, *command, name, "-execute")
    return lines


def _content(record: Record) -> tuple[str, str, list[str]]:
    """Return text, alternative text and keywords of a record: of values that follow a schema, what they name so."""
    data = record.get("data")
    text = str(record["text"])
    alternative = ""
    words: list[Any] = []
    if isinstance(data, Mapping):
        text = str(data.get("caption") or data.get("description") or data.get("scene") or "")
        alternative = str(data.get("alt") or "")
        words += data.get("tags") or ()
        for named in (*(data.get("labels") or ()), *(data.get("objects") or ())):
            if isinstance(named, Mapping):
                words.append(named.get("name"))
    elif isinstance(data, list):
        text = ""
        words = data
    keywords: dict[str, None] = {}
    for word in words:
        if isinstance(word, str) and word.strip():
            keywords[" ".join(word.split())] = None
    return text.strip(), alternative.strip(), list(keywords)


def _writer(record: Record) -> str:
    """Return who wrote a text, and what is doubtful in it."""
    checked = str(record["schema"]).startswith("sira.check/")
    by = f"sira, {record.get('model', '')}".rstrip(", ")
    if checked:
        by = f"checked by {by}"
    if not record.get("verify"):
        return by
    unsure = ", ".join(str(claim["thing"]) for claim in unsupported(record))
    return f"{by}; unsure: {unsure or 'nothing'}"


def _one_line(perl: str) -> str:
    return " ".join(perl.split())


def _set(field: str, text: str) -> str:
    """Return an argument that sets a field. With line breaks it is a pattern, in which they are `$/`."""
    lines = text.splitlines()
    if len(lines) < 2:
        return f"-{field}={text}"
    return f"-{field}<" + "$/".join(line.replace("$", "$$") for line in lines)
