"""The server of the page: the collection and its pictures by number, for clients with the token; changes as JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.view.answers import PageAnswers
from sira_cli.view.collection import Collection, GoneError
from sira_cli.view.compared import OtherCaptions
from sira_cli.view.edits import DECISIONS, MOST, Edits, StaleEditError
from sira_cli.view.export import exported, in_pieces
from sira_cli.view.index import FILTERS, SORTS
from sira_cli.view.live import Live
from sira_cli.view.thumbnails import LARGE, SMALL, Thumbnails
from sira_cli.web import base_style, modules
from sira_cli.web.http import SAFE_HEADERS, bearer_key, is_key, page_policy, read_body, says_json

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
LARGEST_BODY = 2**20  # bytes
MOST_COMPARED = 200  # items in one request
HEADERS = {"Content-Security-Policy": page_policy({"img-src": "'self' data:"}), **SAFE_HEADERS}
Body = TypeVar("Body", bound=BaseModel)
FORBIDDEN = "Open the address that sira view printed: it contains the key to this page.\n"


class Change(BaseModel):
    """A change to a picture, sent by a window.

    Attributes:
        seen: the version that it shows.
        shown: the text that it shows; None: any.
        text, decision: the new values; None: unchanged.
        undo: undo the last change instead.
        redo: repeat the change that was undone last.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    seen: int = Field(ge=0)
    shown: str | None = None
    text: str | None = Field(default=None, max_length=MOST)
    decision: str | None = None
    undo: bool = False
    redo: bool = False


class Numbers(BaseModel):
    """Items whose texts are to be compared."""

    model_config = ConfigDict(extra="forbid", strict=True)

    numbers: list[int] = Field(max_length=MOST_COMPARED)


class Selection(BaseModel):
    """The captions to show, and their order.

    Attributes:
        words: all must be in the text or the name, ignoring case.
        filter, sort: of `index.FILTERS` and `index.SORTS`.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    words: str = Field(default="", max_length=1000)
    filter: str = "all"
    sort: str = "file"


class Viewer:
    """An HTTP server for a collection.

    Attributes:
        app: the ASGI application.
        live: the shown captions, as they are on disk now.
    """

    def __init__(
        self,
        captions: Collection,
        edits: Edits,
        *,
        token: str,
        compared: OtherCaptions | None = None,
        hosts: list[str] | None = None,
    ) -> None:
        """Make a server.

        Args:
            captions: the shown captions.
            edits: where changes go.
            token: key that clients must send: in the first address, later in a cookie, or as `Authorization: Bearer`.
            compared: another collection, to show differences.
            hosts: accepted names in `Host`; None: any.
        """
        self._captions, self._edits, self._token = captions, edits, token
        self.live = Live(captions, edits, compared)
        self._answers = PageAnswers(self.live)
        self._pictures = Thumbnails(captions)
        self._files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES}
        self._files |= {name: text.encode() for name, text in {"base.css": base_style(), **modules()}.items()}
        quiet: dict[str, Any] = dict.fromkeys(("docs_url", "redoc_url", "openapi_url"))
        self.app = FastAPI(title="sira view", lifespan=lambda app: self._living(), **quiet)
        self.app.middleware("http")(self._guard)
        if hosts is not None:
            self.app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
        pages: dict[str, Callable[..., Any]] = {
            "/": self._page,
            "/page/{name}": self._file,
            "/api/now": self._now,
            "/api/items/{number}": self._item,
            "/thumb/{number}": self._thumb,
            "/picture/{number}": self._picture,
            "/export": self._export,
        }
        for path, answer in pages.items():
            self.app.add_api_route(path, answer, methods=["GET"], response_model=None)
        posted: dict[str, Callable[..., Any]] = {
            "/api/items/{number}": self._change,
            "/api/items": self._briefs,
            "/api/shown": self._shown,
            "/api/differences": self._differences,
        }
        for path, answer in posted.items():
            self.app.add_api_route(path, answer, methods=["POST"], response_model=None)
        self.app.add_exception_handler(HTTPException, self._refused)
        self.app.add_exception_handler(SiraError, self._failed)

    @asynccontextmanager
    async def _living(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self.live.start)
        yield
        self.live.close()

    async def _guard(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer clients with the token; refuse others, and pages of other sites."""
        given = request.query_params.get("token", "")
        cookie = f"sira-view-{request.url.port or 80}"  # browsers do not tell ports apart
        if request.url.path == "/" and self._is_token(given):
            response: Response = RedirectResponse("./", 303)
            response.set_cookie(cookie, self._token, httponly=True, samesite="lax")
        elif not self._is_token(request.cookies.get(cookie, "")) and not self._is_token(bearer_key(request.headers)):
            response = PlainTextResponse(FORBIDDEN, 403)
        elif request.method != "GET" and request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            response = PlainTextResponse("Changes are made from the page only.\n", 403)
        else:
            response = await answer(request)
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _is_token(self, given: str) -> bool:
        return is_key(given, self._token)

    async def _page(self) -> Response:
        return Response(self._files["index.html"], media_type=TYPES[".html"])

    async def _file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404, f"no file {name!r}")
        return Response(self._files[name], media_type=TYPES[Path(name).suffix])

    def _now(self) -> Response:
        self.live.look()
        return JSONResponse(self._answers.now())

    async def _shown(self, request: Request) -> Response:
        query = await _read(request, Selection)
        for name, known in (("filter", FILTERS), ("sort", SORTS)):
            if getattr(query, name) not in known:
                raise HTTPException(422, f"{name}: expected one of {', '.join(known)}")
        find = self._captions.index.shown
        found = await asyncio.to_thread(find, query.words.lower().split(), query.filter, query.sort)
        if sys.byteorder == "big":
            found.byteswap()
        return Response(found.tobytes(), media_type="application/octet-stream")

    async def _briefs(self, request: Request) -> Response:
        wanted = await _read(request, Numbers)
        numbers = [self._known(str(number)) for number in wanted.numbers]
        return JSONResponse(await asyncio.to_thread(self._answers.briefs, numbers))

    def _item(self, number: str) -> Response:
        return JSONResponse(self._answers.whole(self._known(number)))

    def _thumb(self, number: str) -> Response:
        return self._jpeg(self._known(number), SMALL)

    def _picture(self, number: str) -> Response:
        return self._jpeg(self._known(number), LARGE)

    def _jpeg(self, number: int, side: int) -> Response:
        try:
            data = self._pictures.jpeg(number, side)
        except PictureError:
            self._captions.index.change("broken", [(True, number)])
            return Response(status_code=204)  # an image that cannot be shown; the page says so
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    def _export(self) -> Response:
        self._check_ready()
        self.live.update()
        name = f"{self._captions.edits_file.name.removesuffix('.edits.jsonl')}.mended.jsonl"
        plain = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in name)
        headers = {"Content-Disposition": f'attachment; filename="{plain}"'}
        lines = in_pieces(exported(self._captions, self._edits))
        return StreamingResponse(lines, media_type="application/jsonl", headers=headers)

    async def _change(self, request: Request, number: str) -> Response:
        change = await _read(request, Change)
        return await asyncio.to_thread(self._changed, self._known(number), change)

    def _check_ready(self) -> None:
        """Check that the captions were read."""
        if not self.live.ready:
            done = f"{self._captions.done:.0%}"
            raise HTTPException(503, f"the captions are still being read ({done} of them): try again in a moment")

    def _changed(self, number: int, change: Change) -> Response:
        if change.decision not in (None, *DECISIONS):
            raise HTTPException(422, f"decision: expected one of {DECISIONS}")
        self._check_ready()
        self.live.prepare_change()
        item = self._captions.item(number)
        if (change.text is not None or change.decision == "accepted") and item.picture.is_missing():
            gone = f"{item.name}: the picture is missing: put it back, or reject its caption; nothing was changed"
            raise HTTPException(410, gone)
        try:
            if change.shown is not None and change.shown != self._edits.state(item).text:
                raise StaleEditError(item, self._edits.state(item))
            if change.undo:
                self._edits.undo(item, seen=change.seen)
            elif change.redo:
                self._edits.redo(item, seen=change.seen)
            else:
                self._edits.change(item, seen=change.seen, text=change.text, decision=change.decision)
        except StaleEditError as error:
            return JSONResponse({"error": str(error), "now": self._answers.whole(number)}, 409)
        self.live.note_change()
        return JSONResponse(self._answers.whole(number))

    async def _differences(self, request: Request) -> Response:
        wanted = await _read(request, Numbers)
        numbers = [self._known(str(number)) for number in wanted.numbers]
        return JSONResponse(await asyncio.to_thread(self._answers.differences, numbers))

    def _known(self, number: str) -> int:
        """Return the number of an existing item."""
        if (
            not (number.isascii() and number.isdecimal() and len(number) < 12)
            or self._captions.index.row(int(number)) is None
        ):
            raise HTTPException(404, "no picture has this number")
        return int(number)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = 422 if isinstance(error, SettingsError) else 410 if isinstance(error, GoneError) else 500
        return JSONResponse({"error": str(error)}, status)


async def _read(request: Request, kind: type[Body]) -> Body:
    """Return a request's body.

    Raises:
        HTTPException: the body is too large, or malformed.
    """
    if not says_json(request.headers):
        raise HTTPException(415, "expected a body of type application/json")
    data = await read_body(request.stream(), LARGEST_BODY)
    if data is None:
        raise HTTPException(413, f"the body has more than {LARGEST_BODY:,} bytes")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise HTTPException(422, f"the body is not as expected: {error.errors()[0]['msg']}") from None
