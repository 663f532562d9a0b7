"""The server of the page: the collection and its pictures by number, to who has the token; changes as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from sira_cli.errors import PictureError, SettingsError, SiraError
from sira_cli.view.answers import Answers
from sira_cli.view.collection import Collection
from sira_cli.view.compared import Compared
from sira_cli.view.edits import DECISIONS, MOST, Edits, StaleEditError
from sira_cli.view.export import exported
from sira_cli.view.thumbnails import LARGE, SMALL, Thumbnails
from sira_cli.web import base_style, element_module
from sira_cli.web.http import SAFE_HEADERS, bearer_key, is_key, page_policy, read_body, says_json

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
LARGEST_BODY = 2**20  # bytes
MOST_COMPARED = 200  # items in one request
HEADERS = {"Content-Security-Policy": page_policy({"img-src": "'self' data:"}), **SAFE_HEADERS}
Body = TypeVar("Body", bound=BaseModel)
FORBIDDEN = "Open the address that sira view printed: it holds the key to this page.\n"


class Change(BaseModel):
    """What a window wants to be changed about a picture.

    Attributes:
        seen: the version that it shows.
        text, decision: the new ones; None: as they are.
        undo: take the last change back instead.
        redo: make the change again that was taken back last.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    seen: int = Field(ge=0)
    text: str | None = Field(default=None, max_length=MOST)
    decision: str | None = None
    undo: bool = False
    redo: bool = False


class Numbers(BaseModel):
    """Items whose texts are to be compared."""

    model_config = ConfigDict(extra="forbid", strict=True)

    numbers: list[int] = Field(max_length=MOST_COMPARED)


class Viewer:
    """A collection behind HTTP.

    Attributes:
        app: what an ASGI server runs.
    """

    def __init__(
        self,
        captions: Collection,
        edits: Edits,
        *,
        token: str,
        compared: Compared | None = None,
        hosts: list[str] | None = None,
    ) -> None:
        """Make a server.

        Args:
            captions: what is shown.
            edits: where changes go.
            token: what clients must bring: in the first address, later in a cookie, or as `Authorization: Bearer`.
            compared: another collection, to show what differs.
            hosts: names that clients may call the server by; None: any.
        """
        self._captions, self._edits, self._token = captions, edits, token
        self._answers = Answers(captions, edits, compared)
        self._pictures = Thumbnails(captions.items)
        self._files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES}
        self._files |= {"base.css": base_style().encode(), "element.js": element_module().encode()}
        self.app = FastAPI(title="sira view", docs_url=None, redoc_url=None, openapi_url=None)
        self.app.middleware("http")(self._guard)
        if hosts is not None:
            self.app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
        pages: dict[str, Callable[..., Any]] = {
            "/": self._page,
            "/page/{name}": self._file,
            "/api/items": self._index,
            "/api/items/{number}": self._item,
            "/thumb/{number}": self._thumb,
            "/picture/{number}": self._picture,
            "/export": self._export,
        }
        for path, answer in pages.items():
            self.app.add_api_route(path, answer, methods=["GET"], response_model=None)
        self.app.add_api_route("/api/items/{number}", self._change, methods=["POST"], response_model=None)
        self.app.add_api_route("/api/differences", self._differences, methods=["POST"], response_model=None)
        self.app.add_exception_handler(HTTPException, self._refused)
        self.app.add_exception_handler(SiraError, self._failed)

    async def _guard(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer those who have the token; others, and pages of other sites, are refused."""
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
            raise HTTPException(404, f"there is no file {name!r}")
        return Response(self._files[name], media_type=TYPES[Path(name).suffix])

    def _index(self) -> Response:
        return JSONResponse(self._answers.index())

    def _item(self, number: str) -> Response:
        known = self._known(number)
        self._edits.refresh()
        return JSONResponse(self._answers.whole(known))

    def _thumb(self, number: str) -> Response:
        return self._jpeg(self._known(number), SMALL)

    def _picture(self, number: str) -> Response:
        return self._jpeg(self._known(number), LARGE)

    def _jpeg(self, number: int, side: int) -> Response:
        try:
            data = self._pictures.jpeg(number, side)
        except PictureError:
            return Response(status_code=204)  # an image that cannot be shown; the page says so
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    def _export(self) -> Response:
        self._edits.refresh()
        name = f"{self._captions.edits_file.name.removesuffix('.edits.jsonl')}.mended.jsonl"
        plain = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in name)
        headers = {"Content-Disposition": f'attachment; filename="{plain}"'}
        lines = exported(self._captions, self._edits)
        return StreamingResponse(lines, media_type="application/jsonl", headers=headers)

    async def _change(self, request: Request, number: str) -> Response:
        change = await _read(request, Change)
        return await asyncio.to_thread(self._changed, self._known(number), change)

    def _changed(self, number: int, change: Change) -> Response:
        item = self._captions.items[number]
        if change.decision not in (None, *DECISIONS):
            raise HTTPException(422, f"decision: expected one of {DECISIONS}")
        try:
            if change.undo:
                self._edits.undo(item, seen=change.seen)
            elif change.redo:
                self._edits.redo(item, seen=change.seen)
            else:
                self._edits.change(item, seen=change.seen, text=change.text, decision=change.decision)
        except StaleEditError as error:
            return JSONResponse({"error": str(error), "now": self._answers.whole(number)}, 409)
        return JSONResponse(self._answers.whole(number))

    async def _differences(self, request: Request) -> Response:
        wanted = await _read(request, Numbers)
        numbers = [self._known(str(number)) for number in wanted.numbers]
        return JSONResponse(await asyncio.to_thread(self._answers.differences, numbers))

    def _known(self, number: str) -> int:
        """Return the number of an item that there is.

        Raises:
            HTTPException: there is none.
        """
        if not (number.isascii() and number.isdecimal() and len(number) < 12) or int(number) >= len(self._captions):
            raise HTTPException(404, "there is no picture of this number")
        return int(number)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 422 if isinstance(error, SettingsError) else 500)


async def _read(request: Request, kind: type[Body]) -> Body:
    """Return a request's body.

    Raises:
        HTTPException: it is too large, or not what is expected.
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
