"""The report: labels and tables from results alone, figures as files, and the page in a real browser."""

import csv
import json
import re
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spacecl import ConfigError
from spacecl.cli import main as cli
from spacecl.reporting import arms as summary
from spacecl.reporting import sections as report
from spacecl.reporting.figures import Figure, Panel, Series, inline, save
from spacecl.reporting.html import Section, page
from spacecl.runs import run
from spacecl.runs.measure_run import measure_run
from spacecl.runs.resolve import merge_settings, resolve

SETTINGS = [
    {"method": "stl"},
    {"method": "ewc"},
    {"method": "hat"},
    {"method": "packnet"},
    {"method": "space"},
]
SHORT = {"benchmark": "permuted-digits", "tasks": 3, "train": {"epochs": 2, "retrain_epochs": 1}, "device": "cpu"}


def quiet(text):
    pass


def runs_in(folder, settings, seeds=(0,)):
    for number, more in enumerate(settings):
        for seed in seeds:
            chosen = resolve(merge_settings(SHORT, more, {"seed": seed}))
            run.run(chosen, folder / f"run{number}-{seed}", print_line=quiet)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Runs of five methods with two seeds; of each only its result is left, and from these the report is made."""
    folder = tmp_path_factory.mktemp("report")
    runs_in(folder, SETTINGS, (0, 1))
    for path in folder.glob("run*"):
        measure_run(path)
        for other in path.iterdir():
            if other.name != "result.json":
                shutil.rmtree(other) if other.is_dir() else other.unlink()
    assert cli.main(["report", str(folder)]) == 0
    return folder


def results(folder, method):
    found = [json.loads(file.read_text()) for file in sorted(folder.rglob("result.json"))]
    return [result for result in found if result["method"] == method]


# -- what is said -----------------------------------------------------------------------------------------------------


def arms_of(*settings, **more):
    """Arms of runs with some settings."""
    found = {}
    for number, entry in enumerate(settings):
        chosen = resolve(merge_settings(SHORT, entry)).to_json()
        found[f"folder{number}"] = {"config": chosen, "method": chosen["method"], "size": number, "tasks": [{}], **more}
        found[f"folder{number}"].setdefault("seed", chosen["seed"])
    return summary._arms(found)


def labels(*settings):
    return {arm.label for arm in arms_of(*settings)[0]}


def test_arms_are_called_by_what_tells_them_apart():
    assert labels({"method": "ewc"}, {"method": "space"}) == {"EWC", "SPACE"}
    assert labels({"options": {"projection": False}}, {}) == {"SPACE (without projection)", "SPACE"}
    assert labels({"options": {"variance": 0.9}}, {"options": {"variance": 0.8}}, {"method": "stl"}) == {
        "SPACE: variance 0.9",
        "SPACE: variance 0.8",
        "STL",
    }
    paper = dict(summary.PUBLISHED)
    assert labels({"options": paper}, {"options": paper | {"selection": "pivoted"}}) == {
        "SPACE.paper",
        "SPACE.paper (selection pivoted)",
    }
    assert labels({"options": paper | {"variance": 0.9}}, {"options": paper | {"activations": "post", "variance": 0.8}}) == {
        "SPACE.paper: variance 0.9",
        "SPACE.paper (activations post): variance 0.8",
    }
    assert labels({"method": "ewc", "limit": 30}, {"method": "hat"}) == {"EWC: limit 30", "HAT: limit none"}
    nested = {"options": {"task_variance": {"a": {"hidden1": 0.9, "*": 0.8}}}}
    assert 'SPACE: task_variance {"a"={"hidden1"=0.9, "*"=0.8}}' in labels(nested, {})


def test_the_same_run_twice_counts_once():
    arms, again = arms_of({"method": "ewc"}, {"method": "ewc"}, {"method": "ewc", "seed": 1})
    assert [len(arm.results) for arm in arms] == [2]
    assert again == ["folder1"]


def test_tasks_go_by_their_numbers_where_seeds_have_them_in_another_order(compared):
    arms, _ = summary.read(compared)
    arm = next(arm for arm in arms if arm.method == "space")
    assert arm.tasks == ["digits-1", "digits-2", "digits-3"]
    arm.results[1]["tasks"][0]["name"] = "digits-3"
    assert arm.tasks == ["task 1", "task 2", "task 3"]


def test_validation_accuracy_is_not_called_test_accuracy(tmp_path):
    runs_in(tmp_path, [{"method": "finetune", "eval_split": "valid", "tasks": 2}])
    arms, _ = summary.read(tmp_path)
    assert "validation data" in summary.title(arms)
    report.write(tmp_path, arms)
    text = (tmp_path / "report.html").read_text()
    assert "Validation accuracy, mean over all tasks" in text
    assert "Test accuracy" not in text


def test_networks_with_other_layers_stand_in_one_report(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef network():\n    return nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))\n"
    )
    runs_in(tmp_path / "runs", [{"tasks": 2}, {"tasks": 2, "model": f"{tmp_path / 'net.py'}:network"}])
    arms, _ = summary.read(tmp_path / "runs")
    sections = {section.name: section for section in report.compose(arms)}
    assert [panel.title for panel in sections["filters"].figures[0].panels] == ["hidden1", "hidden2", "0"]
    assert sections["filters"].figures[0].panels[2].levels == [(40, "all 40")]


def test_runs_of_several_benchmarks_or_of_none_are_refused_with_what_to_do(tmp_path, compared):
    with pytest.raises(ConfigError, match="holds no finished run that can be shown"):
        summary.read(tmp_path)
    with pytest.raises(ConfigError, match="is no folder"):
        summary.read(tmp_path / "none")
    shutil.copytree(compared / "run0-0", tmp_path / "a")
    other = json.loads((tmp_path / "a" / "result.json").read_text())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "result.json").write_text(
        json.dumps(other | {"benchmark": "p-mnist", "config": other["config"] | {"benchmark": "p-mnist"}})
    )
    with pytest.raises(ConfigError, match="holds runs of p-mnist, permuted-digits"):
        summary.read(tmp_path)
    (tmp_path / "b" / "result.json").write_text("{")
    old = {**other, "tasks": [{key: value for key, value in task.items() if key != "costs"} for task in other["tasks"]]}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "result.json").write_text(json.dumps(old))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text(json.dumps(other["config"]))
    arms, left = summary.read(tmp_path)
    assert len(arms) == 1
    assert (left[0], left[2]) == ("d (not finished)", "c (its result.json is of another version)")
    assert "result.json is damaged or truncated" in left[1]


def test_a_report_is_made_of_a_single_run_whose_costs_were_not_measured(tmp_path):
    runs_in(tmp_path, [{"method": "finetune"}])
    assert cli.main(["report", str(tmp_path)]) == 0
    with (tmp_path / "report" / "costs.csv").open(newline="") as stream:
        row = next(csv.DictReader(stream))
    assert row["latency at batch 1, ms (measured)"] == row["energy at batch 64, µJ (measured)"] == ""
    assert "Fine-tuning" in (tmp_path / "report.html").read_text()


def test_a_missing_matplotlib_names_the_extra(monkeypatch, compared, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", str(compared)]) == 1
    assert 'pip install "spacecl[report]"' in capsys.readouterr().err


def test_energy_is_called_measured_only_where_every_run_was(compared):
    arms, _ = summary.read(compared)
    assert summary.how_known(arms) == "modelled"
    for arm in arms:
        for result in arm.results:
            for task in result["tasks"]:
                for kind, cost in task["costs"].items():
                    cost["measured"]["energy"] = {"1": 2.0, "64": 1.0 if kind == "dense" else 0.25}
                    cost["measured"]["meter"] = "a meter"
    assert summary.how_known(arms) == "measured"
    titles, rows = summary.table(arms)
    assert "energy / STL (measured)" in titles
    assert {row[3] for row in rows} == {"0.250 ± 0.000"}
    assert "measured (a meter)" in summary.remarks(arms)
    arms[0].results[0]["tasks"][0]["costs"]["network"]["measured"]["energy"] = None
    assert summary.how_known(arms) == "modelled"


# -- files ------------------------------------------------------------------------------------------------------------

FIGURES = ("frontier", "accuracy", "first-task", "filters", "energy", "core-and-residual", "spectrum")
TABLES = ("table", "accuracy", "first-task", "filters", "costs", "costs-by-task", "core-and-residual", "thresholds")


def test_every_figure_is_there_as_svg_and_png_and_every_table_as_csv_and_markdown(compared):
    from PIL import Image

    files = {file.name for file in (compared / "report").iterdir()}
    assert files == {f"{n}.{e}" for n in FIGURES for e in ("svg", "png")} | {f"{n}.{e}" for n in TABLES for e in ("csv", "md")}
    for name in FIGURES:
        with Image.open(compared / "report" / f"{name}.png") as picture:
            assert picture.width > 500
            assert len(picture.convert("L").getcolors()) > 20, f"{name} is blank"
        assert "<title>" in (compared / "report" / f"{name}.svg").read_text()


def test_the_table_for_programs_has_the_numbers_of_the_results(compared):
    with (compared / "report" / "table.csv").open(newline="") as stream:
        rows = {row["method"]: row for row in csv.DictReader(stream)}
    assert list(rows) == ["STL", "EWC", "HAT", "PackNet", "SPACE"]
    for method, label in (("ewc", "EWC"), ("space", "SPACE")):
        found = results(compared, method)
        accuracy = [100 * result["average_accuracy"] for result in found]
        assert float(rows[label]["accuracy, %, mean"]) == pytest.approx(statistics.fmean(accuracy))
        assert float(rows[label]["accuracy, %, standard deviation"]) == pytest.approx(statistics.stdev(accuracy))
        assert float(rows[label]["network size, mean"]) == pytest.approx(statistics.fmean(r["size"] for r in found))
        energy = [
            statistics.fmean(
                task["costs"]["network"]["energy_modelled"]["64"] / task["costs"]["dense"]["energy_modelled"]["64"]
                for task in result["tasks"]
            )
            for result in found
        ]
        assert float(rows[label]["energy / STL (modelled), mean"]) == pytest.approx(statistics.fmean(energy))
        assert rows[label]["runs"] == "2"


def rows_of(folder, name):
    with (folder / "report" / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_costs_are_those_of_the_results_each_under_its_own_label(compared):
    rows = {row["method"]: row for row in rows_of(compared, "costs")}
    tasks = [task["costs"] for result in results(compared, "space") for task in result["tasks"]]
    for label, kind in (("SPACE", "network"), ("full network", "dense")):
        costs = [cost[kind] for cost in tasks]
        for title, unit, value in (
            ("parameters", 1, lambda c: c["parameters"]),
            ("multiply-adds", 1, lambda c: c["multiply_adds"]),
            ("weights read, kB", 1e3, lambda c: c["traffic"]["weights"]),
            ("activations moved, kB", 1e3, lambda c: c["traffic"]["activations"]),
            ("peak memory at batch 1, kB", 1e3, lambda c: c["peak_memory"]["1"]),
            ("peak memory at batch 64, kB", 1e3, lambda c: c["peak_memory"]["64"]),
            ("energy at batch 1, µJ (modelled)", 1e-6, lambda c: c["energy_modelled"]["1"]),
            ("energy at batch 64, µJ (modelled)", 1e-6, lambda c: c["energy_modelled"]["64"]),
        ):
            assert float(rows[label][title]) == pytest.approx(statistics.fmean(map(value, costs)) / unit), title
        assert rows[label]["energy at batch 64, µJ (measured)"] == ""
    for batch in ("1", "64"):
        for title, key in ((f"latency at batch {batch}, ms (measured)", "median"), (f"upper quartile at {batch}", "high")):
            found = statistics.fmean(cost["network"]["measured"]["latency"][batch][key] for cost in tasks)
            assert float(rows["SPACE"][title]) == pytest.approx(1e3 * found)
    assert float(rows["PackNet"]["multiply-adds"]) == float(rows["full network"]["multiply-adds"])
    seconds = statistics.fmean(r["seconds"]["total"] - r["seconds"]["test"] for r in results(compared, "space"))
    plain = {row["method"]: row for row in rows_of(compared, "table")}
    assert float(plain["SPACE"]["training time, mean"]) == pytest.approx(seconds)


def test_what_the_analysis_saw_is_shown_as_it_was(compared):
    found = results(compared, "space")
    seen = [result["tasks"][2]["spectrum"]["hidden2"] for result in found]
    shares = {(row["series"], row["layer"]): row["3"] for row in rows_of(compared, "core-and-residual")}
    core, kept = (statistics.fmean(entry[key] for entry in seen) for key in ("first_core", "kept"))
    assert shares["the first task's core", "hidden2"] == f"{100 * core:.2f} %"
    assert shares["residual: filters kept beyond it", "hidden2"] == f"{100 * (kept - core):.2f} %"
    counts = {(row["series"], row["layer"]): row["3"] for row in rows_of(compared, "filters")}
    assert counts["SPACE", "hidden2"] == f"{statistics.fmean(r['tasks'][2]['used']['hidden2'] for r in found):.4g}"
    plain = statistics.fmean(entry["core"] + entry["new_without_projection"] for entry in seen)
    assert counts["SPACE, not subtracted", "hidden2"] == f"{plain:.4g}"
    drawn = (compared / "report" / "spectrum.svg").read_text()
    assert drawn.count(">threshold 0.97<") == 2
    assert (compared / "report" / "filters.svg").read_text().count(">all 100<") == 2


def test_arms_have_colours_of_their_own_and_deviations_are_drawn(compared):
    arms, _ = summary.read(compared)
    for section in report.compose(arms)[1:3]:
        (panel,) = section.figures[0].panels
        assert [series.look for series in panel.series] == [1, 2, 3, 4, 0]
        assert all(len(series.spread) == 3 for series in panel.series)
        plain = Panel("", "", "", [Series("a", [1, 2], [1, 2], "ab")])
        assert "fill-opacity" in inline(panel)
        assert "fill-opacity" not in inline(plain)


def test_a_report_leaves_nothing_behind_of_arms_that_are_no_more(tmp_path):
    runs_in(tmp_path, [{"tasks": 2}, {"tasks": 2, "options": {"projection": False}}])
    report.write(tmp_path, *summary.read(tmp_path))
    assert (tmp_path / "report" / "spectrum-2.svg").exists()
    shutil.rmtree(tmp_path / "run1-0")
    (tmp_path / "report" / "mine.txt").write_text("kept")
    report.write(tmp_path, *summary.read(tmp_path))
    assert not (tmp_path / "report" / "spectrum-2.svg").exists()
    assert (tmp_path / "report" / "mine.txt").exists()


def test_the_curves_of_a_frontier_are_told_apart(tmp_path):
    settings = [{"options": {"variance": v}} for v in (0.8, 0.9)] + [
        {"method": "packnet", "options": {"prune": v}} for v in (0.8, 0.5)
    ]
    runs_in(tmp_path, [{"tasks": 1, **entry} for entry in settings])
    figure = report.compose(summary.read(tmp_path)[0])[0].figures[0]
    assert [(series.label, len(series.x), series.kind) for series in figure.panels[0].series] == [
        ("SPACE", 2, "line"),
        ("PackNet", 2, "line"),
    ]
    assert len({series.look for series in figure.panels[0].series}) == 2


def test_the_same_results_give_the_same_page_to_the_byte(compared):
    before = (compared / "report.html").read_bytes()
    arms, unfinished = summary.read(compared)
    assert report.write(compared, arms, unfinished).read_bytes() == before


def test_marks_carry_their_texts_whatever_the_axes_leave_out(tmp_path):
    """Points beyond the axes are not drawn; those that are keep their own texts. Text of users is escaped."""
    y = [0.2, 0.9, 0.99, 0.9999]
    series = Series("<b>", [0, 1, 2, 3], y, [f"<{value}>" for value in y])
    panel = Panel("a & b", "x", "y", [series], percent=True, saturating=True, levels=[(0.9, "here")])
    text = inline(panel)
    assert re.findall(r"<title>&lt;([\d.]+)&gt;</title>", text) == ["0.2", "0.9", "0.99"]
    assert 'aria-label="a &amp; b"' in text
    assert "#0969da" not in text
    files = save(Figure("one", "One", [panel, panel]), tmp_path)
    assert "#0969da" in files[0].read_text()


def test_tied_layers_share_a_panel(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one, self.two = nn.Linear(64, 40), nn.Linear(40, 40)\n"
        "        self.three, self.head = nn.Linear(40, 30), nn.Linear(30, 10)\n"
        "    def forward(self, x):\n"
        "        x = torch.relu(self.one(x))\n"
        "        x = torch.relu(x + self.two(x))\n"
        "        return self.head(torch.relu(self.three(x)))\n"
    )
    runs_in(tmp_path / "runs", [{"model": f"{tmp_path / 'net.py'}:Net", "options": {"variance": 0.8}}])
    arms, _ = summary.read(tmp_path / "runs")
    sections = {section.name: section for section in report.compose(arms)}
    for name in ("filters", "core", "spectrum"):
        assert [panel.title for panel in sections[name].figures[0].panels] == ["one + 1 tied", "three"]


def test_the_example_in_the_docs_is_what_its_results_give():
    folder = Path(__file__).parents[2] / "docs" / "example-report"
    arms, left = summary.read(folder)
    assert left == []
    titles, rows = summary.table(arms)
    page = (folder / "report.html").read_text()
    for row in rows:
        assert f"<th scope=row>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}" in page
    assert report._as_markdown(titles, rows) in (folder / "README.md").read_text()


HOSTILE = {
    "digits-1": "</title></svg><script>window.owned = 1</script>",
    "digits-2": "\"><img src=x onerror='window.owned = 1'>",
    "digits-3": "a|b\n`c` *d* [e](javascript:f) &lt;",
    "hidden1": "<svg onload='window.owned = 1'>",
    "hidden2": '=HYPERLINK("x")',
}


@pytest.fixture(scope="module")
def hostile(compared, tmp_path_factory):
    """A report of one of these results, with names of tasks and layers that someone has made to do harm."""

    def renamed(value):
        if isinstance(value, dict):
            return {renamed(key): renamed(part) for key, part in value.items()}
        if isinstance(value, list):
            return [renamed(part) for part in value]
        return HOSTILE.get(value, value) if isinstance(value, str) else value

    folder = tmp_path_factory.mktemp("hostile")
    (result,) = results(compared / "run4-0", "space")
    (folder / "result.json").write_text(json.dumps(renamed(result)))
    report.write(folder, *summary.read(folder))
    return folder


def test_names_cannot_break_out_of_their_cells_in_markdown_and_csv(hostile):
    for file in (hostile / "report").glob("*.md"):
        rows = file.read_text().splitlines()
        columns = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert len(columns) == 1, file.name
        assert not re.search(r"(?<!\\)[<`*\[]", file.read_text()), file.name
    cells = [cell for file in (hostile / "report").glob("*.csv") for row in csv.reader(file.open(newline="")) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    assert '\'=HYPERLINK("x")' in cells
    assert HOSTILE["digits-3"] in cells, "what does no harm in a file for programs is as it was"


def test_text_is_markup_in_no_table():
    text = "a|b\nc `d` *e* _f_ <g> [h](i) \\ & ~~j~~ $k$ \0\ud800"
    shown = r"a\|b c \`d\` \*e\* \_f\_ \<g\> \[h\](i) \\ \& \~\~j\~\~ \$k\$ " + "\ufffd\ufffd"
    assert report.as_markdown_text(text) == shown
    assert report.as_markdown_code("a 'b|c'") == r"`a 'b\|c'`"
    assert report.as_markdown_code("a ``b`` `c`") == "``` a ``b`` `c` ```"
    numbers = ["-1.50 %", "-0.003", "-1e-05", "-inf", "+2.00 ± 0.10", "SPACE: variance 0.9", "x=1", "-nan"]
    assert [report._as_cell(text) for text in numbers] == numbers
    assert [report._as_cell(text) for text in ("=1+1", "@x", "-1+cmd|'/C'!A0", " =x", "+x", "-x")] == [
        *("'=1+1", "'@x", "'-1+cmd|'/C'!A0", "' =x", "'+x", "'-x")
    ]


def test_text_that_no_file_can_hold_does_not_keep_a_report_from_being_written(tmp_path):
    odd = "a\0b\x1b\ud800\uffff"
    series = Series(odd, [1, 2], [1, 2], [odd, odd])
    figure = Figure("one", odd, [Panel(odd, "x", "y", [series, replace(series, label="b")])])
    for file in save(figure, tmp_path)[:1]:
        ElementTree.parse(file)
    text = page(odd, [Section("s", odd, [odd], [figure], [("t", [odd, odd], [[odd, odd]])], settings={odd: odd})])
    text.encode()
    assert "\0" not in text
    assert "a\ufffdb" in text


# -- the page in a browser ---------------------------------------------------------------------------------------------


def look(browser, page, width=1200, dark=False, media="screen"):
    """Open a page as a screen of some width shows it."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
    browser.get(page.as_uri())


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_loads_alone_without_errors_and_fits_the_screen(browser, compared, width, dark):
    look(browser, compared / "report.html", width, dark)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for name in FIGURES:
        drawn = "const f = document.getElementById(arguments[0]); return [f.querySelectorAll('.point').length, f.offsetWidth]"
        points, wide = browser.execute_script(drawn, f"figure-{name}")
        assert points >= 5, name
        assert wide > 300, name
    colours = (
        "const s = e => getComputedStyle(document.querySelector(e)); return [s('body').backgroundColor, s('svg text').fill]"
    )
    back, text = browser.execute_script(colours)
    assert (back, text) == (("rgb(13, 17, 23)", "rgb(230, 237, 243)") if dark else ("rgb(255, 255, 255)", "rgb(31, 35, 40)"))


def test_names_are_shown_and_never_run(browser, hostile):
    look(browser, hostile / "report.html")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return document.querySelectorAll('img, body script:not(:last-of-type)').length") == 0
    tips = browser.execute_script("return [...document.querySelectorAll('.point')].map(p => p.dataset.tip)")
    cells = browser.execute_script("return [...document.querySelectorAll('td, th')].map(c => c.textContent)")
    for name in HOSTILE.values():
        assert any(name in tip for tip in tips), name
        assert any(name in cell for cell in cells), name
    for name in FIGURES:
        file = hostile / "report" / f"{name}.svg"
        browser.get(file.as_uri())
        assert browser.execute_script("return window.owned") is None
        assert browser.execute_script("return document.documentElement.tagName") == "svg", "it can be read"


INJECTED = (
    "<script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    "<svg onload='window.owned = 1'></svg>",
    "<iframe srcdoc='<script>parent.owned = 1</script>'></iframe>",
    "<script src='data:text/javascript,window.owned = 1'></script>",
)


@pytest.mark.parametrize("injected", INJECTED)
def test_a_script_that_got_into_the_page_does_not_run(browser, compared, tmp_path, injected):
    """Names are escaped; should that ever fail, the page's policy is the second wall."""
    text = (compared / "report.html").read_text()
    (tmp_path / "page.html").write_text(text.replace("<main>", f"<main>{injected}"))
    look(browser, tmp_path / "page.html")
    assert browser.execute_script("return window.owned") is None
    assert "Content Security Policy" in str(browser.get_log("browser"))
    assert browser.execute_script("return document.querySelectorAll('.point[data-tip]').length") > 5, "the page itself works"
    assert browser.execute_script("return performance.getEntriesByType('resource').filter(e => e.transferSize).length") == 0


def test_sections_answer_in_the_order_of_the_questions(browser, compared):
    look(browser, compared / "report.html")
    found = browser.execute_script("return [...document.querySelectorAll('section')].map(s => s.id)")
    assert found == ["table", "accuracy", "forgetting", "filters", "energy", "core", "spectrum", "commands"]


def test_the_values_on_the_page_are_those_of_the_results(browser, compared):
    look(browser, compared / "report.html")
    script = "return [...document.querySelectorAll('#table-table tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    shown = {row[0]: row[1:] for row in browser.execute_script(script)}
    tips = browser.execute_script("return [...document.querySelectorAll('.point')].map(p => p.dataset.tip)")
    for method, label in (("stl", "STL"), ("ewc", "EWC"), ("hat", "HAT"), ("packnet", "PackNet"), ("space", "SPACE")):
        found = results(compared, method)
        accuracy = [100 * result["average_accuracy"] for result in found]
        forgetting = [100 * result["forgetting"] for result in found]
        assert shown[label][0] == f"{statistics.fmean(accuracy):.2f} ± {statistics.stdev(accuracy):.2f}"
        assert shown[label][1].startswith(f"{statistics.fmean(r['size'] for r in found):.3f} ± ")
        assert shown[label][3] == f"{statistics.fmean(forgetting):.2f} ± {statistics.stdev(forgetting):.2f}"
        first = [result["accuracy_matrix"][2][0] for result in found]
        assert f"{label}, the first task after 3: {statistics.fmean(first):.2%} ± {statistics.stdev(first):.2%}" in tips
    for method in ("hat", "space"):
        for layer in ("hidden1", "hidden2"):
            used = statistics.fmean(result["tasks"][2]["used"][layer] for result in results(compared, method))
            assert f"{summary.NAMES[method]}, {layer}, digits-3: {used:g} filters" in tips
    seen = results(compared, "space")[0]["tasks"][1]["spectrum"]["hidden1"]
    script = (
        "return [...document.querySelectorAll('#table-thresholds tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    rows = {tuple(row[:2]): row[2:] for row in browser.execute_script(script)}
    needs = [str(seen["core"] + count) for count in seen["needed"].values()]
    assert rows["hidden1", "digits-2"] == [str(seen["core"]), "0.97", str(seen["core"] + seen["new"]), *needs]
    commands = browser.execute_script("return [...document.querySelectorAll('.command pre')].map(p => p.textContent)")
    assert len(commands) == 5
    assert "spacecl run permuted-digits --recipe fast --seed 0 --device cpu --tasks 3 --set train.epochs=2" in commands[-1]


def test_pointing_at_a_mark_shows_its_value(browser, compared):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    look(browser, compared / "report.html")
    tip = browser.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    point = browser.find_elements(By.CSS_SELECTOR, "#figure-accuracy .point")[-1]
    ActionChains(browser).move_to_element(point).perform()
    assert tip.is_displayed()
    found = [statistics.fmean(result["accuracy_matrix"][2]) for result in results(compared, "space")]
    assert f"SPACE, all tasks after 3: {statistics.fmean(found):.2%} ± {statistics.stdev(found):.2%}" in tip.text.splitlines()
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()
    dense = browser.find_elements(By.CSS_SELECTOR, "#figure-energy .point")[0]  # where several lie on one another, all are told
    ActionChains(browser).move_to_element(dense).perform()
    assert [text.split(",")[0] for text in tip.text.splitlines()] == ["STL", "EWC", "PackNet"]


def test_a_tap_elsewhere_takes_the_value_away(browser, compared):
    look(browser, compared / "report.html", width=360)
    tap = (
        "const [where, k] = arguments; const at = {bubbles: true, pointerType: 'touch', clientX: k.x, clientY: k.y};"
        "document.querySelector(where).dispatchEvent(new PointerEvent('pointerdown', at))"
    )
    point = "const p = document.querySelector('#figure-accuracy .point'); p.scrollIntoView(); return p.getBoundingClientRect()"
    box = browser.execute_script(point)
    for where, hidden in (("#figure-accuracy .panel svg", False), ("h1", True)):
        browser.execute_script(tap, where, box)
        assert browser.execute_script("return document.getElementById('tip').hidden") is hidden


def test_ids_are_unique(browser, compared):
    look(browser, compared / "report.html")
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    lost = "return [...document.querySelectorAll('use')].filter(u => !document.querySelector(u.href.baseVal)).length"
    assert browser.execute_script(lost) == 0


def test_in_print_the_page_is_light_and_whole_and_everything_is_open(browser, compared):
    look(browser, compared / "report.html", width=718, dark=True, media="print")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 718
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert not browser.execute_script("return [...document.querySelectorAll('details')].some(d => d.open)")
