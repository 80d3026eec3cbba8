"""Choose the pages of the site: a hook of MkDocs.

Every file keeps its path in the repository as the source of its page, so that relative links work in both. Pages are those of
the navigation and all files that they link to, in turn: Markdown, notebooks, code, and folders as lists of their files. Other
files, such as pictures and JSON, are copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
CODE = {".py": "python", ".toml": "toml", ".sh": "sh", ".j2": "jinja"}
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NO_HOST = "assets/absent/"


class Page(File):
    """A page whose source may be no Markdown."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by the pages of the navigation and all that they link to."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    queue = [*list_paths(config.nav), *(f"docs/{path}" for path in config.extra_css)]
    done: set[str] = set()
    while queue:
        path = queue.pop()
        source = ROOT / path
        if path in done or path.startswith("../") or not source.exists():
            continue  # MkDocs reports links to files that do not exist
        done.add(path)
        text = make_markdown(source)
        files.append(make_file(path, source, text, config))
        queue += [normpath(join(dirname(path), link)) for link in LINK.findall(FENCE.sub("", text or "")) if "://" not in link]
    return files


def list_paths(nav: Any) -> Iterator[str]:
    """Yield the paths of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from list_paths(entry)


def make_file(path: str, source: Path, text: str | None, config: MkDocsConfig) -> File:
    """Return the file of the site for a path of the repository, which is a page if there is a text."""
    if text is None:
        file = File.generated(config, path, abs_src_path=str(source))
        file.dest_uri = path.removeprefix("docs/")
    else:
        file = Page(path, src_dir=None, dest_dir=config.site_dir, use_directory_urls=False)
        file.generated_by, file.content_string = "docs/site/pages.py", text
        file.dest_uri = re.sub(r"(/README)?(\.md|\.ipynb)?$", "", path.removeprefix("docs/")).lower() + ".html"
    file.url = file.dest_uri
    return file


def make_markdown(source: Path) -> str | None:
    """Return the Markdown of a page, or None for a file that is copied."""
    if source.is_dir():
        names = sorted(entry.name for entry in source.iterdir() if entry.is_file())
        path = source.relative_to(ROOT)
        return f"# {path}/\n\n" + "".join(f"- [{name}]({path.name}/{name})\n" for name in names)
    if source.suffix == ".md":
        return source.read_text()
    if source.suffix == ".ipynb":
        return convert_notebook(json.loads(source.read_text()))
    if source.suffix in CODE:
        return make_code_page(source)
    return None


def make_code_page(source: Path) -> str:
    return f"---\nsearch:\n  exclude: true\n---\n\n# {source.name}\n\n`````{CODE[source.suffix]}\n{source.read_text()}\n`````\n"


def convert_notebook(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its texts, its code, and its outputs as they were when it was last executed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        is_shell = all(line.startswith("!") for line in source.splitlines())
        parts.append(f"```sh\n{source.replace('!', '', 1)}\n```" if is_shell else f"```python\n{source}\n```")
        parts += map(convert_output, cell["outputs"])
    return "\n\n".join(parts) + "\n"


def convert_output(output: dict[str, Any]) -> str:
    """Return an output of a cell as Markdown."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        text = "".join(data.get("text/plain", "a picture")).strip("<>")
        return f'<img class="output" alt="{text}" src="data:image/png;base64,{picture}">'
    text = "".join(output.get("text") or data["text/plain"])
    return f"```{{.text .output}}\n{text.rstrip()}\n```"


def on_post_build(config: MkDocsConfig) -> None:
    """Take the addresses of other hosts out of the theme's script, which would load what no page of the site uses."""
    for script in Path(config.site_dir, "assets", "javascripts").glob("bundle.*.js"):
        script.write_text(script.read_text().replace("https://unpkg.com/", NO_HOST))
