"""Sections: which figures, tables and notes the page has for which results."""

from statistics import fmean

from reporting_helpers import example_result, read_comparison, results_of, train_in, write_result

from spacecl.reporting.arms import read_comparisons
from spacecl.reporting.drawing import draw_panel
from spacecl.reporting.figures import Panel, Series
from spacecl.reporting.report import make_page
from spacecl.reporting.sections import compose
from spacecl.reporting.summary_table import make_summary_table
from spacecl.reporting.text import to_markdown

TIED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 40), nn.Linear(40, 40)
        self.three, self.head = nn.Linear(40, 30), nn.Linear(30, 10)
    def forward(self, x):
        x = torch.relu(self.one(x))
        x = torch.relu(x + self.two(x))
        return self.head(torch.relu(self.three(x)))
"""


def compose_by_name(folder):
    return {section.name: section for section in compose(read_comparison(folder))}


def test_tied_layers_share_a_panel_and_another_network_gets_its_own(tmp_path):
    (tmp_path / "net.py").write_text(TIED)
    model = f"{tmp_path / 'net.py'}:Net"
    train_in(tmp_path / "runs", {}, {"model": model, "options": {"variance": 0.8}})
    sections = compose_by_name(tmp_path / "runs")
    panels = sections["filters"].figures[0].panels
    assert {panel.title for panel in panels} == {"hidden1", "hidden2", "one + 1 tied", "three"}
    assert {panel.title: panel.levels for panel in panels}["three"] == [(30, "all 30")]
    for name in ("core", "spectrum"):
        first, second = ([panel.title for panel in figure.panels] for figure in sections[name].figures)
        assert sorted([first, second]) == [["hidden1", "hidden2"], ["one + 1 tied", "three"]]


def test_arms_have_colours_of_their_own_and_deviations_are_drawn(report):
    sections = compose_by_name(report)
    for figure in sections["accuracy"].figures:
        (panel,) = figure.panels
        assert figure.spread_note == "Shaded bands: ± one standard deviation over seeds."
        assert [series.look for series in panel.series] == [1, 2, 3, 4, 0]
        assert all(len(series.spread) == 5 for series in panel.series)
    assert "fill-opacity" in draw_panel(panel)
    assert "fill-opacity" not in draw_panel(Panel("", "", "", [Series("a", [1, 2], [1, 2], "ab")]))


def test_a_frontier_has_one_curve_for_each_family(tmp_path):
    for size in (0.8, 0.9):
        write_result(tmp_path / f"space{size}", example_result("space", size=size))
    for prune in (0.8, 0.5):
        write_result(tmp_path / f"packnet{prune}", example_result("packnet", prune=prune))
    (panel,) = compose_by_name(tmp_path)["table"].figures[0].panels
    assert [(series.label, len(series.x), series.kind) for series in panel.series] == [
        ("PackNet", 2, "line"),
        ("SPACE", 2, "line"),
    ]
    assert len({series.look for series in panel.series}) == 2


def test_references_are_levels_of_the_frontier_and_others_have_error_bars(report):
    table = compose_by_name(report)["table"]
    for figure in table.figures:
        (panel,) = figure.panels
        assert [series.label for series in panel.series] == ["EWC", "HAT", "PackNet", "SPACE"]
        assert [text for _, text in panel.levels] == ["STL"]
        assert "logarithmic" in panel.xlabel
        assert all(series.spread[0] > 0 for series in panel.series)
        assert figure.spread_note == "Bars: ± one standard deviation over seeds."


def test_a_heat_map_shows_every_entry_of_the_matrix(report):
    (figure,) = compose_by_name(report)["matrix"].figures
    assert [panel.title for panel in figure.panels] == ["STL", "EWC", "HAT", "PackNet", "SPACE"]
    matrices = [result["score_matrix"] for result in results_of(report, "ewc")]
    (series,) = figure.panels[1].series
    assert len(series.x) == 15, "no cells above the diagonal"
    for x, y, text in zip(series.x, series.y, series.texts):
        assert text == f"{100 * fmean(matrix[y - 1][x - 1] for matrix in matrices):.0f}"
    values = [(shade, text) for panel in figure.panels for s in panel.series for shade, text in zip(s.shades, s.texts)]
    assert float(min(values)[1]) < float(max(values)[1])


def write_seeds(folder, method, accuracies, **options):
    for seed, accuracy in enumerate(accuracies):
        result = example_result(method, **options)
        result |= {"seed": seed, "average_score": accuracy, "average_accuracy": accuracy}
        result["config"]["seed"] = seed
        write_result(folder / f"{method}{seed}", result)


def find_bold(folder):
    table = compose_by_name(folder)["table"].tables[0]
    column = table.titles.index("accuracy, %")
    return {row[0] for place, row in enumerate(table.rows) if (place, column) in table.best}


def test_the_best_means_are_bold_with_those_within_the_deviation_but_no_references(tmp_path):
    write_seeds(tmp_path, "stl", [0.99, 0.99, 0.99])
    write_seeds(tmp_path, "packnet", [0.95, 0.96, 0.97])
    write_seeds(tmp_path, "space", [0.94, 0.97, 0.965])
    write_seeds(tmp_path, "hat", [0.94, 0.95, 0.96])  # always one point below: its deviation says nothing
    assert find_bold(tmp_path) == {"PackNet", "SPACE"}
    (comparison,), _ = read_comparisons(tmp_path)
    assert "| **96.00 ± 1.00** |" in to_markdown((table := make_summary_table(comparison)).titles, table.rows, table.best)
    (tmp_path / "space2" / "result.json").unlink()
    assert find_bold(tmp_path) == {"PackNet"}, "two seeds are not enough"
    (tmp_path / "hat2" / "result.json").unlink()
    assert find_bold(tmp_path) == set(), "nothing to be better than"


def test_a_comparison_opens_with_what_came_out(report, tmp_path):
    lead = make_page([read_comparison(report)]).chapters[0].lead
    assert lead.startswith("Of 4 methods, PackNet has the highest accuracy, 97.")
    assert "and SPACE the smallest network, 0.3" in lead
    assert "A network for each task has 97." in lead
    write_result(tmp_path / "one", example_result("space"))
    lead = make_page([read_comparison(tmp_path)]).chapters[0].lead
    assert lead.startswith("SPACE has accuracy 9")
    assert lead.endswith("of the network and forgets nothing.")


def test_a_busy_machine_is_reported_with_the_latency_measured_on_it(tmp_path):
    result = example_result("space")
    write_result(tmp_path / "quiet", result)
    assert not any("Other processes" in note for note in compose_by_name(tmp_path)["energy"].notes)
    for task in result["tasks"]:
        task["costs"]["network"]["measured"]["others"] = 1.7
    write_result(tmp_path / "busy", result | {"config": result["config"] | {"limit": 100}})
    (note,) = [note for note in compose_by_name(tmp_path)["energy"].notes if "Other processes" in note]
    assert note.startswith("Other processes kept up to 1.7 cores busy while the latency of SPACE: limit 100 was measured")


def test_values_that_a_result_does_not_have_are_dashes_and_its_figures_are_left_out(tmp_path):
    new, old = example_result("space", size=0.9), example_result("space", size=0.8)
    for task in old["tasks"]:
        task["spectrum"] = None
        for cost in task["costs"].values():
            cost |= {"traffic": None, "peak_memory": None, "energy_modelled": None}
            del cost["measured"]
    write_result(tmp_path / "new", new)
    write_result(tmp_path / "old", old)
    sections = compose_by_name(tmp_path)
    table = sections["table"].tables[0]
    energy = {row[0]: row[table.titles.index("energy / STL (modelled)")] for row in table.rows}
    assert energy["SPACE: size 0.8"] == "–"  # noqa: RUF001
    assert energy["SPACE: size 0.9"] != "–"  # noqa: RUF001
    exact = {row[0]: dict(zip(table.exact.titles, row)) for row in table.exact.rows}
    assert exact["SPACE: size 0.8"]["energy / STL (modelled), mean"] == ""
    assert "training time, standard deviation" not in table.exact.titles
    assert [series.label for series in sections["energy"].figures[0].panels[0].series] == ["SPACE: size 0.9"]
    assert "The results of SPACE: size 0.8 do not have energy" in sections["energy"].notes[-1]
    costs = {row[0]: row for row in sections["energy"].tables[0].rows}["SPACE: size 0.8"]
    titles = sections["energy"].tables[0].titles
    assert {title for title, cell in zip(titles, costs) if cell != "–"} == {"method", "parameters", "multiply-adds"}  # noqa: RUF001
    assert len(sections["core"].figures) == len(sections["spectrum"].figures) == 1
    for task in old["tasks"]:
        task["used"] = None
    write_result(tmp_path / "alone" / "old", old)
    sections = compose_by_name(tmp_path / "alone")
    assert not sections["energy"].figures
    assert not sections["filters"].figures
    assert "core" not in sections
