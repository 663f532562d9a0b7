"""Records as an argument file for ExifTool, which writes them into XMP sidecars: `exiftool -@ ARGS`.

    XMP-dc:Description                    the text, where no field of the picture or of a sidecar describes it
    XMP-photoshop:CaptionWriter           program, model and doubtful words of that text
    XMP-iptcCore:AltTextAccessibility     an alternative text, if they have no other
    XMP-dc:Subject, XMP-digiKam:TagsList  keywords, after those that the picture and its sidecars have

All of this is decided when ExifTool runs. The sidecar is `photo.jpg.xmp` or `photo.xmp`, whichever exists, else the
first. Pictures are never written to. Programs such as digiKam and Immich take a field from the sidecar if it is there,
and from the picture otherwise. So the keywords of the picture also go into the sidecar, which would hide them else.

The conditions are Perl, as ExifTool takes it. `-q -q` silences warnings about fields that pictures lack; errors are
shown. Tested with ExifTool 12.57.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sira_cli.look import claims

# Fields in which people describe a picture: those of XMP (in all languages), EXIF, IPTC, PNG and JPEG, of ACDSee, of
# Windows. Then those that name the author of a description, and alternative texts.
DESCRIPTIONS = (
    *("Description*", "ImageDescription*", "UserComment*", "Caption-Abstract", "Comment", "XMP-acdsee:Caption"),
    *("XPTitle", "XPSubject", "XPComment"),
)
WRITERS = ("CaptionWriter", "Writer-Editor")
ALTERNATIVES = ("AltTextAccessibility*",)
_TEXT, _WRITER = "XMP-dc:Description", "XMP-photoshop:CaptionWriter"
_ALTERNATIVE = "XMP-iptcCore:AltTextAccessibility"
_LONG, _SHORT = "%d%f.%e.xmp", "%d%f.xmp"
_COMMON = ("-q", "-q", "-overwrite_original", "-charset", "filename=utf8")
_SIDECAR = ("-srcfile", _LONG, "-srcfile", _SHORT)  # the one that exists, else the first
_IS_SIDECAR = '$FileType eq "XMP"'  # after `-srcfile @`: not the picture, as there is no sidecar
_PICTURE = "$OriginalDirectory/$OriginalFileName"
_NAMES = {"PICTURE": f'"{_PICTURE}"', "SIDECARS": f'"{_PICTURE}.xmp", "{_PICTURE}" =~ s/[.][^.]*$$/.xmp/r'}
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
my @files = grep { $self->Exists($_) } "$picture.xmp", $picture =~ s/[.][^.]*$/.xmp/r, $picture;
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
_UNNAMABLE = re.compile(r"\|\s*$|[\r\n].*[$@]|[$@].*[\r\n]", re.DOTALL)  # a pipe; what ExifTool reads otherwise


def is_namable(picture: Path) -> bool:
    """Return whether an argument file can name a picture."""
    return not _UNNAMABLE.search(str(picture))


def arguments(
    picture: Path, record: Mapping[str, Any], before: Mapping[str, Any] | None = None, *, replace: bool = False
) -> list[str]:
    """Return the lines that write a record into the sidecar of its picture."""
    text, alternative, keywords = _content(record)
    commands: list[Sequence[str]] = []
    if before is not None:
        old, older, _ = _content(before)
        own = [_set(f"{_TEXT}-x-default-", old), _set(f"{_WRITER}-", _writer(before)), _set(f"{_ALTERNATIVE}-", older)]
        commands.append([*_SIDECAR, "-srcfile", "@", "-if", _IS_SIDECAR, *own])
    if text:
        described = [_set(_TEXT, text)]
        written = [*described, *([_set(_WRITER, _writer(record))] if before is None else [])]
        if replace:
            # In all languages. A program that prefers the EXIF of the picture prefers the field of XMP for it to that.
            commands += _where(None, [f"-{_TEXT}=", *written, _set("XMP-tiff:ImageDescription", text)])
        else:
            commands += _where((*DESCRIPTIONS, *WRITERS), written)
            commands += _where(DESCRIPTIONS, described)
    if alternative:
        commands += _where(None if replace else ALTERNATIVES, [_set(_ALTERNATIVE, alternative)])
    if keywords:
        perl = {field: _one_line(_LIST.replace("LIST", made).replace("FIELD", field)) for field, made in _LISTS.items()}
        lists = [f"-{field}<${{sira;{made}}}" for field, made in perl.items()]
        words = "sira=" + "\t".join(keywords)
        commands.append([*_SIDECAR, "-sep", r"#[CSTR]\t", "-userParam", words, "-tagsFromFile", "@", *lists])
    name = _argument(os.path.abspath(picture))  # noqa: PTH100 (links stay links)
    return [line for command in commands for line in (*_COMMON, *command, name, "-execute")]


def _content(record: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return text, alternative text and keywords of a record: of values that follow a schema, what they name so."""
    data, text, alternative = record.get("data"), str(record["text"]), ""
    words: Iterable[Any] = ()
    if isinstance(data, Mapping):
        text = next((str(data[name]) for name in ("caption", "description", "scene") if data.get(name)), "")
        alternative = str(data.get("alt") or "")
        named = [*(data.get("labels") or ()), *(data.get("objects") or ())]
        words = [*(data.get("tags") or ()), *(each.get("name") for each in named if isinstance(each, Mapping))]
    elif isinstance(data, list):
        text, words = "", data
    plain = (" ".join(word.split()) for word in words if isinstance(word, str))
    return text.strip(), alternative.strip(), [*dict.fromkeys(word for word in plain if word)]


def _writer(record: Mapping[str, Any]) -> str:
    """Return who wrote a text, and what is doubtful in it."""
    task = str(record["schema"]).removeprefix("sira.").partition("/")[0]
    by = {"check": "checked by "}.get(task, "") + f"sira, {record.get('model', '')}".rstrip(", ")
    if not record.get("verify"):
        return by
    return f"{by}; unsure: {', '.join(str(one['thing']) for one in claims.unsupported(record)) or 'nothing'}"


def _where(fields: Sequence[str] | None, values: Sequence[str]) -> list[Sequence[str]]:
    """Return commands that write values where the picture and its sidecars have nothing in some fields.

    The first makes a sidecar, the other one writes into one that exists.
    """
    listed = ", ".join(f'"{field}"' for field in fields or ())
    nothing = [] if fields is None else [_condition(_NOTHING.replace("FIELDS", listed))]
    missing, existing = (" and ".join([first, *nothing]) for first in (_condition(_NO_SIDECAR), _IS_SIDECAR))
    return [
        ["-srcfile", "@", "-if", missing, *values, "--all", "-o", _LONG],  # --all: copies nothing
        [*_SIDECAR, "-srcfile", "@", "-if", existing, *values],
    ]


def _condition(perl: str) -> str:
    """Return Perl for `-if`, in which a dollar sign begins the name of a field, and two are one."""
    code = _one_line(perl).replace("$self", "SELF").replace("$", "$$").replace("SELF", "$self")
    for word, names in _NAMES.items():
        code = code.replace(word, names)
    return code


def _one_line(perl: str) -> str:
    return " ".join(perl.split())


def _set(field: str, text: str) -> str:
    """Return an argument that sets a field. With line breaks it is a pattern, in which they are `$/`."""
    if len(lines := text.splitlines()) < 2:
        return f"-{field}={text}"
    return f"-{field}<" + "$/".join(line.replace("$", "$$") for line in lines)


def _argument(path: str) -> str:
    """Return a path as a line: with line breaks as in C."""
    if not re.search(r"[\r\n]", path):
        return path
    return "#[CSTR]" + path.replace("\\", r"\\").replace('"', r"\"").replace("\r", r"\r").replace("\n", r"\n")
