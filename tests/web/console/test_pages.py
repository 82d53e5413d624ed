"""Static files of the console: imports of its modules, and the size of its first page."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from .consoles import console

STATIC = files("kbroker.web.console").joinpath("static")
MODULES = {each.name: each.read_text() for each in STATIC.iterdir() if each.name.endswith(".js")}
IMPORT = re.compile(r'import (?:\{([^}]*)\} from )?"([^"]+)";')
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
# Maximum number of bytes of the files that the first page needs.
FIRST_PAGE_BYTES = 60_000


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imported_names_are_exported_and_used(name: str) -> None:
    text = MODULES[name]
    for names, source in IMPORT.findall(text):
        assert source.startswith("./"), source
        exported = set(EXPORT.findall(MODULES[source.removeprefix("./")]))
        for each in filter(None, (part.strip() for part in names.split(","))):
            assert each in exported, (each, source)
            assert len(re.findall(rf"\b{each}\b", text)) > 1, f"{each} is not used"


def test_modules_loaded_on_demand_have_a_default_export() -> None:
    loaded = re.findall(r'import\("\./([\w.]+)"\)\)?(\.\w+)?', "".join(MODULES.values()))
    assert len(loaded) > 10
    for name, part in loaded:
        assert part not in ("", ".default") or "export default" in MODULES[name], name


def test_first_page_loads_few_bytes() -> None:
    needed, found = ["app.js", "overview.js"], {"index.html", "console.css", "icon.svg"}
    while needed:
        name = needed.pop()
        if name not in found:
            found.add(name)
            needed += [each.removeprefix("./") for _, each in IMPORT.findall(MODULES[name])]
    size = sum(len(STATIC.joinpath(name).read_bytes()) for name in found)
    assert size < FIRST_PAGE_BYTES, found


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/console/overview", "/console/"),
        ("/console/topics", "/console/#/topics"),
        ("/console/topics/a.b/messages?from=live", "/console/#/topics/a.b/messages?from=live"),
        ("/console/groups/a%20b", "/console/#/groups/a%20b"),
    ],
)
async def test_path_of_a_page_redirects_to_its_fragment(path: str, location: str) -> None:
    async with console() as client:
        response = await client.http.ask(path)
        assert response.status == 307
        assert response.headers["location"] == location
        assert (await client.http.ask("/console/absent")).status == 404
