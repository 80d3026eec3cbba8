"""Pages that are made from the code are what the code says now: `make docs` writes them."""

import importlib.util
import re
import runpy

import pytest
from helpers import ROOT
from zoo.stand_ins import import_torchvision

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


def read_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GENERATE.parent / page).read_text(), re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*the network is right on.*")
def test_the_code_in_the_page_about_models_runs():
    namespace: dict[str, object] = {}
    for block in read_blocks("models.md"):
        if not block.startswith("# needs"):  # another package: see below
            exec(compile(block, "models.md", "exec"), namespace)
    assert "SmallViT" in namespace


@pytest.mark.parametrize("page", ["models.md", "data.md"])
@pytest.mark.filterwarnings("ignore:.*the network is right on.*")
def test_the_code_that_needs_another_package_runs(page):
    """Each of these examples stands by itself."""
    block, *others = [block for block in read_blocks(page) if block.startswith("# needs")]
    assert not others, "one for each page"
    package = block.splitlines()[0].removeprefix("# needs: ")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # transformers imports it if it can
    exec(compile(block, page, "exec"), {})
