"""Sections: which figures, tables and notes the page has for which results."""

from reporting_helpers import example_result, read_comparison, train_in, write_result

from spacecl.reporting.drawing import draw_panel
from spacecl.reporting.figures import Panel, Series
from spacecl.reporting.sections import compose

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
    for name in ("accuracy", "forgetting"):
        (panel,) = sections[name].figures[0].panels
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
        ("SPACE", 2, "line"),
        ("PackNet", 2, "line"),
    ]
    assert len({series.look for series in panel.series}) == 2


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
    assert costs[1] != "–"  # noqa: RUF001
    assert set(costs[3:]) == {"–"}  # noqa: RUF001
    assert len(sections["core"].figures) == len(sections["spectrum"].figures) == 1
    for task in old["tasks"]:
        task["used"] = None
    write_result(tmp_path / "alone" / "old", old)
    sections = compose_by_name(tmp_path / "alone")
    assert not sections["energy"].figures
    assert not sections["filters"].figures
    assert "core" not in sections
