"""Static files of the console; no external resources are loaded."""

from __future__ import annotations

from importlib.resources import files
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from .answers import with_error_responses
from .sessions import Sessions

ROOT_PATH = "/console/"
# First parts of the paths of pages, which the fragment of the URL contains.
PAGE_NAMES = frozenset(
    [
        "activity",
        "brokers",
        "cluster",
        "explain",
        "groups",
        "schemas",
        "security",
        "storage",
        "tests",
        "topics",
    ]
)
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Pages:
    """Static files of one node; only authenticated viewers get the index page."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        directory = files(__package__).joinpath("static")
        self._files = {each.name: each.read_bytes() for each in directory.iterdir()}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self._redirect),
            Route("/console", self._redirect),
            Route(ROOT_PATH, with_error_responses(self._index)),
            Route(ROOT_PATH + "{name:path}", self._file),
        ]

    async def _redirect(self, _: Request) -> Response:
        return RedirectResponse(ROOT_PATH)

    async def _index(self, request: Request) -> Response:
        async with self._sessions.viewer(request):
            return self._static_file("index.html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "overview":
            return await self._redirect(request)
        if name.split("/")[0] in PAGE_NAMES:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{ROOT_PATH}#/{quote(name)}{query}")
        return self._static_file(name)

    def _static_file(self, name: str) -> Response:
        data = self._files.get(name)
        content_type = CONTENT_TYPES.get(name.rpartition(".")[2])
        if data is None or content_type is None:
            return Response(status_code=404)
        return Response(data, headers={"content-type": content_type})
