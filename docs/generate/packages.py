"""Draw the packages with the imports between them, and list every module with what it is for.

python docs/generate/packages.py writes the drawing into ARCHITECTURE.md and the list into docs/modules.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "spacecl"
DRAWING = ROOT / "ARCHITECTURE.md"
MODULES = ROOT / "docs" / "modules.md"
START, END = "<!-- packages: generated -->", "<!-- end of packages -->"


def draw_packages() -> str:
    """A Mermaid graph of the packages and root modules; arrows that follow from others are left out."""
    graph = grimp.build_graph("spacecl", include_external_packages=False)
    parts = sorted({name.split(".")[1] for name in graph.modules if "." in name} - {"__main__"})
    imports: dict[str, set[str]] = {part: set() for part in parts}
    for importer in graph.modules:
        if importer.count(".") and (part := importer.split(".")[1]) in imports:
            for imported in graph.find_modules_directly_imported_by(importer):
                if imported.count(".") and imported.split(".")[1] != part:
                    imports[part].add(imported.split(".")[1])
    small = {part for part in parts if not (SOURCE / part).is_dir() and len(imports[part]) < 3}
    arrows = [(a, b) for a in parts for b in sorted(imports[a] - _reachable(imports, imports[a])) if a not in small and b not in small]
    names = [f'    {part}["{part}{"/" if (SOURCE / part).is_dir() else ""}"]' for part in parts if part not in small]
    lines = ["```mermaid", "graph TD", *names, *(f"    {a} --> {b}" for a, b in arrows), "```"]
    everywhere = ", ".join(f"`{part}`" for part in sorted(small))
    return "\n".join([*lines, "", f"Below all of them, imported from everywhere and left out of the drawing: {everywhere}."])


def _reachable(imports: dict[str, set[str]], direct: set[str]) -> set[str]:
    """What some packages import, directly or through others."""
    reached: set[str] = set()
    queue = [target for part in direct for target in imports[part]]
    while queue:
        part = queue.pop()
        if part not in reached:
            reached.add(part)
            queue += imports[part]
    return reached


def list_modules() -> str:
    """Every module with the first sentence of its docstring, package by package."""
    lines = ["# Modules", "", "What each module is for: the first sentence of its docstring. Written by `make docs`."]
    folders = [SOURCE, *sorted(folder for folder in SOURCE.rglob("*") if (folder / "__init__.py").exists())]
    for folder in folders:
        name = folder.relative_to(SOURCE.parent).as_posix()
        lines += ["", f"## {name}/", "", first_sentence(folder / "__init__.py"), ""]
        files = sorted(file for file in folder.glob("*.py") if file.stem != "__init__")
        lines += [f"- [`{file.stem}`]({Path('..') / file.relative_to(ROOT)}): {first_sentence(file)}" for file in files]
    return "\n".join(lines) + "\n"


def first_sentence(file: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0]


def insert_drawing(page: str, drawing: str) -> str:
    before, rest = page.split(START)
    return f"{before}{START}\n\n{drawing}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    DRAWING.write_text(insert_drawing(DRAWING.read_text(), draw_packages()))
    MODULES.write_text(list_modules())
