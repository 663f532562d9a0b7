"""Pictures on the web: downloaded when their turn comes, within limits, and not from private addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import urljoin, urlsplit

import httpcore2
import httpx2
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
    """A failed download; `host`: whose address is not public."""

    host = ""


@dataclass(frozen=True, slots=True)
class WebSource(Source):
    """A URL, at a public address."""

    no_text_file = "{shown}: texts are not written to the web: give `output=` or `output_dir=`"

    @property
    def address(self) -> str:
        """The URL without a password."""
        return as_text(without_password(self.location))

    def read(self) -> bytes:
        """Download it."""
        interrupts.check()
        try:
            data = in_time(lambda: _download(self.location), SECONDS + _LOOK, interrupts.check)
        except (_DownloadError, TimeoutError) as error:
            message = f"{self.shown}: failed_to_download: {error if isinstance(error, _DownloadError) else _too_slow()}"
            if host := getattr(error, "host", ""):
                public = f"{self.shown}: failed_to_download: {host} has no public address"
                raise PrivatePictureError(message, public) from None
            raise PictureError(message) from None
        try:
            picture_size(self.shown, data)
        except PictureError as error:
            self._fail(error)
        return data

    def decoded(self, data: bytes) -> list[tuple[Image.Image, tuple[str, ...]]]:
        """Decode the picture; if it is cut off, the header alone may be valid."""
        try:
            return Source.decoded(self, data)
        except PictureError as error:
            self._fail(error)

    def _fail(self, error: PictureError) -> NoReturn:
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
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise _DownloadError(f"{host}: {getattr(error, 'strerror', None) or error}") from None
        addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
        public = [address for address in addresses if is_public(address)]
        if not public:
            private = _DownloadError(f"{host} is at {addresses[0]}, which is no public address")
            private.host = host
            raise private
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
            except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol, OSError) as error:
                plain = re.sub(r"^\[Errno -?\d+\] ", "", str(error))  # "Connection refused" is enough
                raise _DownloadError(plain or type(error).__name__) from None
            except (httpx2.InvalidURL, ValueError) as error:
                raise _DownloadError(f"is not a URL: {error}") from None
            if isinstance(found, bytes):
                return found
            url = found
    raise _DownloadError(f"redirected more than {REDIRECTS} times")


def _fetch(connections: httpcore2.ConnectionPool, url: str) -> bytes | str:
    """Return the content at a URL, or the URL that it redirects to."""
    if not urlsplit(url).hostname:
        raise ValueError("it names no host")
    parts = httpx2.URL(url)  # in ASCII; a password is not part of the request
    target = httpcore2.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=parts.raw_path)
    host = (b"Host", parts.netloc)
    with connections.stream("GET", target, headers=[host, *_HEADERS], extensions={"timeout": _WAITS}) as response:
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
