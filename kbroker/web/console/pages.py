"""Static files of the console; no external resources are loaded."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from .answers import with_error_responses
from .sessions import Sessions

PLACE = "/console/"
KINDS = {
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
            Route("/", self._away),
            Route("/console", self._away),
            Route(PLACE, with_error_responses(self._index)),
            Route(PLACE + "{name}", self._file),
        ]

    async def _away(self, _: Request) -> Response:
        return RedirectResponse(PLACE)

    async def _index(self, request: Request) -> Response:
        async with self._sessions.viewer(request):
            return self._of("index.html")

    async def _file(self, request: Request) -> Response:
        return self._of(request.path_params["name"])

    def _of(self, name: str) -> Response:
        data = self._files.get(name)
        kind = KINDS.get(name.rpartition(".")[2])
        if data is None or kind is None:
            return Response(status_code=404)
        return Response(data, headers={"content-type": kind})
