"""The example in the docs is what today's code makes of its results, and its results are what its command gives."""

import re

from reporting_helpers import EXAMPLE, resolve_settings

from spacecl.reporting.arms import read_comparisons
from spacecl.reporting.html import render
from spacecl.reporting.report import make_page
from spacecl.reporting.summary_table import explain_summary_table, make_summary_table
from spacecl.reporting.text import to_markdown
from spacecl.runs.config import identify_settings
from spacecl.runs.methods import METHOD_ORDER

REMEDY = "make docs/example-report anew, as its README.md says"


def remove_drawings(page):
    """A page without what another version of matplotlib draws elsewhere; the texts of the marks stay."""
    return re.sub(r"<svg.*?</svg>", lambda svg: "".join(re.findall("<title>.*?</title>", svg[0])), page, flags=re.DOTALL)


def test_the_page_and_the_table_are_those_of_the_results():
    comparisons, left_out = read_comparisons(EXAMPLE)
    assert left_out == []
    page = render(make_page(comparisons))
    assert remove_drawings((EXAMPLE / "report.html").read_text()) == remove_drawings(page), REMEDY
    (comparison,) = comparisons
    table, readme = make_summary_table(comparison), (EXAMPLE / "README.md").read_text()
    assert to_markdown(table.titles, table.rows, table.best) in readme, REMEDY
    assert explain_summary_table(comparison) in readme, REMEDY


def test_the_runs_have_the_settings_that_the_command_gives_today():
    assert "\n    spacecl compare permuted-digits --methods all --seeds 3\n" in (EXAMPLE / "README.md").read_text()
    (comparison,), _ = read_comparisons(EXAMPLE)
    assert [arm.method for arm in comparison.arms] == list(METHOD_ORDER)
    for arm in comparison.arms:
        assert [result["seed"] for result in arm.results] == [0, 1, 2]
        for result in arm.results:
            settings = {"benchmark": "permuted-digits", "method": arm.method, "seed": result["seed"]}
            now = resolve_settings(settings).to_json()
            assert identify_settings(result["config"]) == identify_settings(now), REMEDY
