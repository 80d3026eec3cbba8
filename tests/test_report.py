"""The report: labels and tables from results alone, figures as files, and the page in a real browser."""

import csv
import json
import re
import shutil
import statistics
import sys

import pytest

from spacecl import ConfigError, cli, config, report, run, summary
from spacecl.figures import Figure, Panel, Series, inline, save

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
            chosen = config.resolve(config.merged(SHORT, more, {"seed": seed}))
            run.run(chosen, folder / f"run{number}-{seed}", say=quiet)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Runs of five methods with two seeds; of each only its result is left, and from these the report is made."""
    folder = tmp_path_factory.mktemp("report")
    runs_in(folder, SETTINGS, (0, 1))
    for path in folder.glob("run*"):
        run.measure(path)
        for other in path.iterdir():
            if other.name != "result.json":
                shutil.rmtree(other) if other.is_dir() else other.unlink()
    assert cli.main(["report", str(folder)]) == 0
    return folder


def results(folder, method):
    found = [json.loads(file.read_text()) for file in sorted(folder.rglob("result.json"))]
    return [result for result in found if result["method"] == method]


# -- what is said -----------------------------------------------------------------------------------------------------


def labels(*settings):
    """What arms with some settings are called."""
    found = {}
    for number, more in enumerate(settings):
        chosen = config.resolve(config.merged(SHORT, more)).to_json()
        tasks = [{"costs": {}}]
        result = {"config": chosen, "method": chosen["method"], "seed": 0, "size": number, "tasks": tasks}
        found[f"folder{number}"] = result
    return {arm.label for arm in summary._arms(found)}


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
    assert labels({"method": "ewc", "limit": 30}, {"method": "hat"}) == {"EWC: limit 30", "HAT: limit null"}


def test_runs_of_several_benchmarks_or_of_none_are_refused_with_what_to_do(tmp_path, compared):
    with pytest.raises(ConfigError, match="holds no finished run"):
        summary.read(tmp_path)
    with pytest.raises(ConfigError, match="is no folder"):
        summary.read(tmp_path / "none")
    shutil.copytree(compared / "run0-0", tmp_path / "a")
    other = json.loads((tmp_path / "a" / "result.json").read_text())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "result.json").write_text(json.dumps(other | {"benchmark": "p-mnist"}))
    with pytest.raises(ConfigError, match="holds runs of p-mnist, permuted-digits"):
        summary.read(tmp_path)
    (tmp_path / "b" / "result.json").write_text("{")
    with pytest.raises(ConfigError, match="is not the result of a run"):
        summary.read(tmp_path)


def test_a_report_is_made_of_a_single_run_whose_costs_were_not_measured(tmp_path):
    runs_in(tmp_path, [{"method": "finetune"}])
    assert cli.main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "costs.md").read_text()
    assert text.count("| - |") >= 1
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
TABLES = ("table", "costs", "costs-by-task", "thresholds")


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


# -- the page in a browser ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A real Chromium without a window."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("there is no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update"
    for flag in [*flags.split(), "disable-sync", f"user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


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


def test_in_print_the_page_is_light_and_everything_is_open(browser, compared):
    look(browser, compared / "report.html", dark=True, media="print")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
