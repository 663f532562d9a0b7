"""Pictures on the web: downloaded when their turn comes, within limits, and not from private addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import httpcore2
from PIL import Image

from sira_cli import interrupts
from sira_cli.errors import PictureError, PrivatePictureError
from sira_cli.pictures.names import as_text
from sira_cli.pictures.opening import picture_size
from sira_cli.pictures.picture import Source
from sira_cli.pictures.stores import without_password

LARGEST = 2**26  # bytes of a picture's file
REDIRECTS = 5
_LOOK = 0.1  # seconds between looks whether a result is still wanted
SECONDS = 60.0  # from looking up the name to the last byte, redirects included
_WAITS = {"connect": 10.0, "read": 20.0, "write": 10.0}  # seconds
_HEADERS = [(b"User-Agent", b"sira"), (b"Accept", b"image/*"), (b"Accept-Encoding", b"identity")]
# Global unicast addresses. All others are of this machine, of a site, or stand for one of version 4 in some way, also
# for a private one: NAT64, and `::127.0.0.1` and `fec0::1`, which are deprecated.
_UNICAST = ipaddress.ip_network("2000::/3")

T = TypeVar("T")


class _DownloadError(Exception):
    """A failed download."""


class _PrivateAddressError(_DownloadError):
    """A host has no public address."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} is at {address}, which is no public address")
        self.host = host


@dataclass(frozen=True, slots=True)
class WebSource(Source):
    """A URL, at a public address."""

    no_text_file = "{shown}: texts are not written to the web: give `output=` or `output_dir=`"

    @property
    def address(self) -> str:
        """The URL without a password."""
        return as_text(without_password(self.location))

    def name_in(self, folder: Path | None) -> str:
        """Return the URL without a password, wherever the record is."""
        return self.address

    def read(self) -> bytes:
        """Download it."""
        return self._checked(_in_time)

    def read_here(self) -> bytes:
        """Download in this thread, for callers that limit threads; otherwise as `read`.

        A name lookup cannot be stopped, so it may take longer.
        """
        return self._checked(_download)

    def _checked(self, get: Callable[[str], bytes]) -> bytes:
        try:
            data = get(self.location)
        except _PrivateAddressError as error:
            failed = f"{self.shown}: failed_to_download:"
            raise PrivatePictureError(f"{failed} {error}", f"{failed} {error.host} has no public address") from None
        except _DownloadError as error:
            raise PictureError(f"{self.shown}: failed_to_download: {error}") from None
        with self._decoding():
            picture_size(self.shown, data)
        return data

    def decoded(self, data: bytes) -> list[tuple[Image.Image, tuple[str, ...]]]:
        """Decode the picture; if it is cut off, the header alone may be valid."""
        with self._decoding():
            return Source.decoded(self, data)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except PictureError as error:
            raise PictureError(str(error).replace(f"{self.shown}: ", f"{self.shown}: failed_to_decode: ", 1)) from None


def is_web(location: str) -> bool:
    """Return whether a location is a URL of the web."""
    return re.match(r"https?://", location, re.IGNORECASE) is not None


def is_public(address: str) -> bool:
    """Return whether an IP address is one that anybody on the internet may reach."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour is not None or ip.teredo is not None or ip not in _UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


class _PublicBackend(httpcore2.SyncBackend):
    """Opens connections to public addresses only, whose every step ends at the deadline of the download.

    A name is looked up once, and the connection goes to the address that was checked: a second look-up, which might
    give another address, does not take place.
    """

    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore2.NetworkStream:
        """Connect to a host, if its address is public."""
        addresses = list(dict.fromkeys(str(found[4][0]) for found in _resolved(host, port)))
        public = [address for address in addresses if is_public(address)]
        if not public:
            raise _PrivateAddressError(host, addresses[0])
        for address in public:
            try:
                stream = super().connect_tcp(address, port, _left(self._end, timeout), *args, **options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if address == public[-1]:
                    raise
            else:
                return _StreamWithDeadline(stream, self._end)
        raise AssertionError


class _StreamWithDeadline(httpcore2.NetworkStream):
    """A connection of a download. Limits per read are not enough: a server may send a byte now and then for ever."""

    def __init__(self, stream: httpcore2.NetworkStream, end: float) -> None:
        self._stream, self._end = stream, end
        self.close, self.get_extra_info = stream.close, stream.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the bytes received."""
        return self._stream.read(max_bytes, _left(self._end, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes."""
        self._stream.write(buffer, _left(self._end, timeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Return the connection after starting encryption."""
        stream = self._stream.start_tls(ssl_context, server_hostname, _left(self._end, timeout))
        return _StreamWithDeadline(stream, self._end)


def _left(end: float, timeout: float | None = None) -> float:
    """Return the seconds left for the next step of a download."""
    left = end - time.monotonic()
    if left <= 0:
        raise _too_slow()
    return left if timeout is None else min(left, timeout)


def _too_slow() -> _DownloadError:
    return _DownloadError(f"takes longer than {SECONDS:.0f} s")


def _resolved(host: str, port: int) -> Iterable[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _DownloadError(f"{host}: {getattr(error, 'strerror', None) or error}") from None


def _in_time(url: str) -> bytes:
    """Return the bytes at a URL."""
    interrupts.check()
    try:
        return in_time(lambda: _download(url), SECONDS + _LOOK, interrupts.check)
    except TimeoutError:
        raise _too_slow() from None


def in_time(work: Callable[[], T], seconds: float, look: Callable[[], None]) -> T:
    """Run a function in its own thread, and return its result; the caller can stop waiting, the thread goes on.

    A look-up of a name cannot be stopped. `look` is called now and then, and raises an error to stop waiting.
    """
    end, found = time.monotonic() + seconds, Future[T]()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="sira-request", daemon=True).start()
    while not wait([found], min(_LOOK, seconds)).done:
        look()
        if time.monotonic() > end:
            raise TimeoutError
    return found.result()


def _download(url: str) -> bytes:
    """Return the bytes at a URL, redirects followed. No proxy is used: it would look up names itself."""
    end = time.monotonic() + SECONDS
    with httpcore2.ConnectionPool(network_backend=_PublicBackend(end)) as connections:
        for _ in range(REDIRECTS + 1):
            if not is_web(url):
                raise _DownloadError(f"redirected to {url[:100]!r}, expected http or https")
            try:
                found = _fetch(connections, url)
            except httpcore2.TimeoutException:
                _left(end)  # raises if the download as a whole is too slow
                raise _DownloadError("the server does not answer in time") from None
            except httpcore2.UnsupportedProtocol as error:
                raise _DownloadError(str(error)) from None
            except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
                plain = re.sub(r"^\[Errno -?\d+\] ", "", str(error))  # "Connection refused" is enough
                raise _DownloadError(plain or type(error).__name__) from None
            except ValueError as error:
                raise _DownloadError(f"is not a URL: {error}") from None
            if isinstance(found, bytes):
                return found
            url = found
    raise _DownloadError(f"redirected more than {REDIRECTS} times")


def _fetch(connections: httpcore2.ConnectionPool, url: str) -> bytes | str:
    """Return the content at a URL, or the URL that it redirects to."""
    with connections.stream("GET", _encoded(url), headers=_HEADERS, extensions={"timeout": _WAITS}) as response:
        headers = {name.lower(): value for name, value in response.headers}
        if response.status in (301, 302, 303, 307, 308) and b"location" in headers:
            return urljoin(url, headers[b"location"].decode("utf-8", "replace"))
        if response.status != 200:
            raise _DownloadError(f"the server answers {response.status}")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _DownloadError("the server sends a compressed file that was not asked for")
        data = bytearray()
        for piece in response.iter_stream():
            data += piece
            if len(data) > LARGEST:
                raise _DownloadError(f"is larger than {LARGEST / 2**20:.0f} MiB")
        return bytes(data)


def _encoded(url: str) -> str:
    """Return a URL in ASCII, without a password and a fragment."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("it names no host")
    host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    netloc = host if parts.port is None else f"{host}:{parts.port}"
    path, query = (quote(part, safe="/%:=&?~+!$,;'@()*[]") for part in (parts.path or "/", parts.query))
    return urlunsplit((parts.scheme.lower(), netloc, path, query, ""))
