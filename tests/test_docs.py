"""Pages that are made from the code are what the code says now: `make docs` writes them."""

import re
import runpy

from helpers import ROOT

GENERATE = ROOT / "docs" / "generate"


def test_the_page_of_options_is_what_the_declarations_say():
    script = runpy.run_path(str(GENERATE / "options.py"))
    assert script["PAGE"].read_text() == script["make_page"](), "run `make docs`"


def test_every_option_has_a_help_text():
    from spacecl import Recipe
    from spacecl.methods import METHODS
    from spacecl.options import describe_options
    from spacecl.runs.config import Config

    for kind in (Config, Recipe, *METHODS.values()):
        assert all(option.help for option in describe_options(kind)), kind
        assert all(f"{option.name} : {option.values}" in kind.__doc__ for option in describe_options(kind)), kind


def test_the_drawing_of_the_packages_and_the_list_of_modules_are_current():
    script = runpy.run_path(str(GENERATE / "packages.py"))
    page = script["DRAWING"].read_text()
    assert page == script["insert_drawing"](page, script["draw_packages"]()), "run `make docs`"
    assert script["MODULES"].read_text() == script["list_modules"](), "run `make docs`"
    assert "learner --> methods" in page


def test_the_code_in_the_page_about_models_runs():
    """Without the part that needs the extra zoo: tests/zoo runs all of it."""
    blocks = re.findall(r"```python\n(.*?)```", (GENERATE.parent / "models.md").read_text(), re.DOTALL)
    namespace: dict[str, object] = {}
    for block in blocks:
        if not block.startswith("# needs"):
            exec(compile(block, "models.md", "exec"), namespace)
    assert "learner" in namespace
