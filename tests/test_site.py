"""The documentation site: complete, without dead links, and without requests to other hosts."""

import ast
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from helpers import ROOT

import spacecl
from spacecl import errors

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "audio": "src", "video": "src", "object": "data"}
LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "prefetch", "manifest"}
# Addresses that stand in the theme's scripts as text: of licenses, and of an interface that needs a repository's address.
NAMED_IN_SCRIPTS = {"clipboardjs.com", "lunrjs.com", "tartarus.org", "bit.ly", "api.github.com", "gitlab.com", "www.w3.org"}


def test_the_reference_has_every_public_name():
    names = re.findall(r"^::: spacecl\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(spacecl.__all__)


def test_the_page_of_errors_has_every_class_of_errors():
    classes = [
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Warning | errors.SpaceError) and kind.__module__ == errors.__name__
    ]
    headings = re.findall(r"^## (\w+)$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert headings == classes


def test_every_message_on_the_page_of_errors_is_a_message_of_the_program():
    texts = list(read_strings(ROOT / "src"))
    rows = [line.split(" | ") for line in (DOCS / "errors.md").read_text().splitlines() if line.startswith("| ")]
    messages = [text for row in rows if row[0] != "| message" for text in row[0].removeprefix("| ").split(" / ")]
    assert len(messages) > 30
    unknown = []
    for message in messages:
        parts = re.split(r"\b[A-Z]{2,}\b", message)  # what differs is in capitals
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in parts), re.DOTALL)
        unknown += [] if any(map(pattern.search, texts)) else [message]
    assert unknown == []


def read_strings(folder: Path) -> Iterator[str]:
    """Yield the texts in Python files, those with values in them as well."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)


def test_the_page_of_commands_is_what_the_declarations_say():
    script = runpy.run_path(str(DOCS / "generate" / "commands.py"))
    assert script["PAGE"].read_text() == script["make_page"](), "run `make docs`"


def test_the_pictures_are_what_their_script_draws():
    script = runpy.run_path(str(DOCS / "generate" / "pictures.py"))
    pictures = script["make_pictures"]()
    assert {file.name for file in script["FOLDER"].iterdir()} == set(pictures)
    assert [name for name, text in pictures.items() if (script["FOLDER"] / name).read_text() != text] == [], "run `make docs`"


def test_the_citation_names_the_version_of_the_package():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {spacecl.__version__}\n" in text


def test_the_notebooks_have_been_executed():
    assert len(NOTEBOOKS) == 6
    for file in NOTEBOOKS:
        cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in cells), file.name
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), file.name


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_prints_what_it_has(file, monkeypatch):
    """Apart from numbers, which other processors round differently, and names of files in temporary folders."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    execute = runpy.run_path(str(DOCS / "site" / "notebooks.py"))["execute"]
    before = json.loads(file.read_text())["cells"]
    assert [list_outputs(cell) for cell in execute(file).cells] == [list_outputs(cell) for cell in before]


def list_outputs(cell) -> list[str]:
    """The outputs of a cell without their numbers."""
    texts = ["".join(output.get("text", "")) for output in cell.get("outputs", [])]
    return [re.sub(r"[\d.,\s─━│┃-]+", " ", text) for text in texts]


# -- the built site ----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page loads, what it links to, and the names of its places."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        self.classes |= set(values.get("class", "").split())
        if tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        if tag in ("image", "use"):
            self.loads += [values[name] for name in ("href", "xlink:href") if name in values]
        self.loads += re.findall(r"url\(([^)]*)\)", values.get("style", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {file: Page(file.read_text()) for file in site.rglob("*.html")}


@pytest.mark.slow
def test_no_link_within_the_site_is_dead(site, pages):
    dead = []
    for file, page in pages.items():
        if file.name == "404.html":  # its links begin at the root of the host
            continue
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].places if target in pages else {unquote(parts.fragment)}
            has_place = not parts.fragment or target.suffix == ".svg" or unquote(parts.fragment) in known
            if not target.is_file() or not has_place:
                dead.append(f"{file.relative_to(site)}: {address}")
    assert dead == []


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site, pages):
    foreign = [
        f"{file.relative_to(site)}: {address[:100]}"
        for file, page in pages.items()
        for address in page.loads
        if urlsplit(address).netloc or urlsplit(address).scheme not in ("", "data")
    ]
    for file in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        addresses = re.findall(r"(?:url\(|@import\s*|<image[^>]*href=)[\"']?((?:https?:)?//[^)\"']+)", file.read_text())
        foreign += [f"{file.relative_to(site)}: {address}" for address in addresses]
    scripts = [file for file in site.rglob("*.js") if "lunr" not in file.parts]  # for searching in other languages
    assert any("bundle" in file.name for file in scripts)
    for file in scripts:
        hosts = set(re.findall(r"https?://([\w.-]+)", file.read_text())) - NAMED_IN_SCRIPTS
        foreign += [f"{file.relative_to(site)}: {host}" for host in hosts]
    assert foreign == []
    assert not any("mermaid" in page.classes for page in pages.values())  # the theme would load what draws them


@pytest.mark.slow
def test_the_reference_is_filled_from_the_docstrings(site, pages):
    file = site / "reference.html"
    assert {f"spacecl.{name}" for name in spacecl.__all__} <= pages[file].places
    text = file.read_text()
    assert "share of the information in the full network" in text  # the help text of an option of SPACE
    assert "spacecl.Learner.learn" in pages[file].places
