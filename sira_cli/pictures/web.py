"""Pictures on the web: downloaded when their turn comes, within limits, and not from private addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx2

from sira_cli import interrupts
from sira_cli.errors import PictureError, PrivatePictureError
from sira_cli.pictures.names import as_text, without_password
from sira_cli.pictures.picture import Source

LARGEST = 2**26  # bytes of a picture's file
_REDIRECTS = 5
SECONDS = 60.0  # from looking up the name to the last byte, redirects included
_WAITS = {"connect": 10.0, "read": 20.0, "write": 10.0, "pool": None}  # seconds
_HEADERS = {"User-Agent": "sira", "Accept": "image/*", "Accept-Encoding": "identity"}
# Global unicast addresses. All others are of this machine, of a site, or stand for one of version 4 in some way, also
# for a private one: NAT64, and `::127.0.0.1` and `fec0::1`, which are deprecated.
_UNICAST = ipaddress.ip_network("2000::/3")


class _DownloadError(Exception):
    """A failed download: the reason, and the host if its address is not public."""


@dataclass(frozen=True, slots=True)
class WebSource(Source):
    """A URL, at a public address."""

    no_text_file = "{label}: texts are not written to the web: give `output=` or `output_dir=`"

    @property
    def address(self) -> str:
        """The URL without a password."""
        return as_text(without_password(self.location))

    def read(self) -> bytes:
        """Download it."""
        interrupts.check()
        failed = f"{self.label}: failed_to_download:"
        end = time.monotonic() + SECONDS
        timeout = httpx2.Timeout(**_WAITS)
        try:  # no proxy: it would look up names itself. Leaving the block ends a download that goes on in its thread
            with httpx2.Client(headers=_HEADERS, timeout=timeout, trust_env=False) as client:
                return interrupts.in_time(lambda: _download(client, self.location, end), SECONDS, interrupts.check)
        except TimeoutError:
            raise PictureError(f"{failed} takes longer than {SECONDS:.0f} s") from None
        except _DownloadError as error:
            reason, *host = error.args
            if host:
                raise PrivatePictureError(f"{failed} {reason}", f"{failed} {host[0]} has no public address") from None
            raise PictureError(f"{failed} {reason}") from None


def is_web(location: str) -> bool:
    """Return whether a location is a URL of the web."""
    return re.match(r"https?://", location, re.IGNORECASE) is not None


def is_public(address: str) -> bool:
    """Return whether an IP address is one that anybody on the internet may reach."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour or ip.teredo or ip not in _UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


def _download(client: httpx2.Client, url: str, end: float) -> bytes:
    """Return the bytes at a URL, redirects followed."""
    for _ in range(_REDIRECTS + 1):
        if not is_web(url):
            raise _DownloadError(f"redirected to {url[:100]!r}, expected http or https")
        try:
            answer = _fetch(client, url, end)
        except httpx2.TransportError as error:  # also a time limit
            plain = re.sub(r"^\[Errno -?\d+\] ", "", str(error))  # "Connection refused" is enough
            raise _DownloadError(plain or type(error).__name__) from None
        except (httpx2.InvalidURL, ValueError) as error:
            raise _DownloadError(f"is not a URL: {error}") from None
        if isinstance(answer, bytes):
            return answer
        url = answer
    raise _DownloadError(f"redirected more than {_REDIRECTS} times")


def _fetch(client: httpx2.Client, url: str, end: float) -> bytes | str:
    """Return the content at a URL, or the URL that it redirects to.

    The connection goes to the address that was checked: a second look-up of the name might give another one.
    """
    if not urlsplit(url).hostname:
        raise ValueError("it names no host")
    place = httpx2.URL(without_password(url))
    host = place.raw_host.decode()

    def check(*_: object) -> None:  # called at each step of a request: nobody waits for it
        if time.monotonic() > end:
            raise TimeoutError

    extensions = {"sni_hostname": host, "trace": check}
    addresses = _public_addresses(host)
    for address in addresses:
        url_of_address = place.copy_with(host=address)
        headers = {"Host": place.netloc.decode()}
        try:
            with client.stream("GET", url_of_address, headers=headers, extensions=extensions) as response:
                return _content(response, url)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if address == addresses[-1]:
                raise
    raise AssertionError


def _public_addresses(host: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _DownloadError(f"{host}: {getattr(error, 'strerror', None) or error}") from None
    addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    public = [address for address in addresses if is_public(address)]
    if public:
        return public
    raise _DownloadError(f"{host} is at {addresses[0]}, which is no public address", host)


def _content(response: httpx2.Response, url: str) -> bytes | str:
    if response.has_redirect_location:
        return urljoin(url, response.headers["location"])
    if response.status_code != 200:
        raise _DownloadError(f"the server answers {response.status_code}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise _DownloadError("the server sends a compressed file that was not asked for")
    data = bytearray()
    for piece in response.iter_raw():
        data += piece
        if len(data) > LARGEST:
            raise _DownloadError(f"is larger than {LARGEST / 2**20:.0f} MiB")
    return bytes(data)
