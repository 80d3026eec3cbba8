"""The page in a real browser."""

import statistics

import pytest
from reporting_helpers import FIGURES, HOSTILE, results_of

from spacecl.reporting.labels import title_method

pytestmark = pytest.mark.slow


def open_page(browser, page, width=1200, dark=False, media="screen"):
    """Open a page on a screen of some width."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
    browser.get(page.as_uri())


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_loads_alone_without_errors_and_fits_the_screen(browser, report, width, dark):
    open_page(browser, report / "report.html", width, dark)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for name in FIGURES:
        drawn = "const f = document.getElementById(arguments[0]); return [f.querySelectorAll('.point').length, f.offsetWidth]"
        points, wide = browser.execute_script(drawn, f"figure-{name}")
        assert points >= 4, name
        assert wide > 300, name
    colours = (
        "const s = e => getComputedStyle(document.querySelector(e)); return [s('body').backgroundColor, s('svg text').fill]"
    )
    back, text = browser.execute_script(colours)
    assert (back, text) == (("rgb(13, 17, 23)", "rgb(230, 237, 243)") if dark else ("rgb(255, 255, 255)", "rgb(31, 35, 40)"))


def test_names_are_shown_and_never_run(browser, hostile_report):
    open_page(browser, hostile_report / "report.html")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return document.querySelectorAll('img, body script:not(:last-of-type)').length") == 0
    tips = browser.execute_script("return [...document.querySelectorAll('.point')].map(p => p.dataset.tip)")
    cells = browser.execute_script("return [...document.querySelectorAll('td, th')].map(c => c.textContent)")
    for name in HOSTILE.values():
        assert any(name in tip for tip in tips), name
        assert any(name in cell for cell in cells), name
    for name in FIGURES:
        file = hostile_report / "report" / f"{name}.svg"
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
def test_a_script_that_got_into_the_page_does_not_run(browser, report, tmp_path, injected):
    """Names are escaped; should that ever fail, the page's policy stops the script."""
    text = (report / "report.html").read_text()
    (tmp_path / "page.html").write_text(text.replace("<main>", f"<main>{injected}"))
    open_page(browser, tmp_path / "page.html")
    assert browser.execute_script("return window.owned") is None
    assert "Content Security Policy" in str(browser.get_log("browser"))
    assert browser.execute_script("return document.querySelectorAll('.point[data-tip]').length") > 5, "the page itself works"
    assert browser.execute_script("return performance.getEntriesByType('resource').filter(e => e.transferSize).length") == 0


def test_sections_are_in_order(browser, report):
    open_page(browser, report / "report.html")
    ids = browser.execute_script("return [...document.querySelectorAll('section')].map(s => s.id)")
    assert ids == ["table", "accuracy", "matrix", "filters", "energy", "core", "spectrum", "commands"]


def test_the_values_on_the_page_are_those_of_the_results(browser, report):
    open_page(browser, report / "report.html")
    script = "return [...document.querySelectorAll('#table-table tr')].map(r => [...r.cells].map(c => c.textContent))"
    titles, *rows = browser.execute_script(script)
    shown = {row[0]: dict(zip(titles, row)) for row in rows}
    tips = browser.execute_script("return [...document.querySelectorAll('.point')].map(p => p.dataset.tip)")
    for method, label in (("stl", "STL"), ("ewc", "EWC"), ("hat", "HAT"), ("packnet", "PackNet"), ("space", "SPACE")):
        results = results_of(report, method)
        accuracy = [100 * result["average_accuracy"] for result in results]
        forgetting = [100 * result["forgetting"] for result in results]
        assert shown[label]["accuracy, %"] == f"{statistics.fmean(accuracy):.2f} ± {statistics.stdev(accuracy):.2f}"
        assert shown[label]["network size"].startswith(f"{statistics.fmean(r['size'] for r in results):.3f} ± ")
        assert shown[label]["forgetting, %"] == f"{statistics.fmean(forgetting):.2f} ± {statistics.stdev(forgetting):.2f}"
        first = [result["accuracy_matrix"][2][0] for result in results]
        assert f"{label}, the first task after 3: {statistics.fmean(first):.2%} ± {statistics.stdev(first):.2%}" in tips
    for method in ("hat", "space"):
        for layer in ("hidden1", "hidden2"):
            used = statistics.fmean(result["tasks"][2]["used"][layer] for result in results_of(report, method))
            assert f"{title_method(method)}, {layer}, digits-3: {used:g} filters" in tips
    spectrum = results_of(report, "space")[0]["tasks"][1]["spectrum"]["hidden1"]
    script = (
        "return [...document.querySelectorAll('#table-thresholds tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    rows = {tuple(row[:2]): row[2:] for row in browser.execute_script(script)}
    needs = [str(spectrum["core"] + count) for count in spectrum["needed"].values()]
    after = spectrum["core"] + spectrum["new"]
    assert rows["hidden1", "digits-2"] == [str(spectrum["core"]), f"{spectrum['threshold']:g}", str(after), *needs]
    commands = browser.execute_script("return [...document.querySelectorAll('.command pre')].map(p => p.textContent)")
    assert len(commands) == 5
    assert commands[-1] == "spacecl run permuted-digits --recipe fast --seed 0"


def test_pointing_at_a_mark_shows_its_value(browser, report):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    open_page(browser, report / "report.html")
    tip = browser.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    point = browser.find_elements(By.CSS_SELECTOR, "#figure-accuracy .point")[-1]
    ActionChains(browser).move_to_element(point).perform()
    assert tip.is_displayed()
    means = [statistics.fmean(result["accuracy_matrix"][4]) for result in results_of(report, "space")]
    assert f"SPACE, all tasks after 5: {statistics.fmean(means):.2%} ± {statistics.stdev(means):.2%}" in tip.text.splitlines()
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()
    dense = browser.find_elements(By.CSS_SELECTOR, "#figure-energy .point")[0]  # where several overlap, all are shown
    ActionChains(browser).move_to_element(dense).perform()
    assert [text.split(",")[0] for text in tip.text.splitlines()] == ["STL", "EWC", "PackNet"]


def test_the_arrow_keys_move_between_the_points_of_a_figure(browser, report):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    open_page(browser, report / "report.html")
    tip = browser.find_element(By.ID, "tip")
    svg = browser.find_element(By.CSS_SELECTOR, "#figure-first-task .panel svg")
    svg.send_keys(Keys.ARROW_RIGHT)
    assert any(line.startswith("STL, the first task after 1: ") for line in tip.text.splitlines())
    svg.send_keys(Keys.ARROW_RIGHT)
    assert any(line.startswith("STL, the first task after 2: ") for line in tip.text.splitlines())
    svg.send_keys(Keys.END)
    assert any(line.startswith("SPACE, the first task after 5: ") for line in tip.text.splitlines())
    svg.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


@pytest.mark.parametrize("width", [1200, 390])
def test_no_column_of_a_table_is_cut_off(browser, report, width):
    open_page(browser, report / "report.html", width=width)
    script = "return [...document.querySelectorAll('.scroll')].filter(t => t.scrollWidth > t.clientWidth).map(t => t.innerHTML)"
    browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.execute_script(script) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    words = "return document.querySelector('#table-table td[data-title=\"accuracy, %\"]').textContent"
    assert browser.execute_script(words)


def test_a_tap_elsewhere_hides_the_value(browser, report):
    open_page(browser, report / "report.html", width=360)
    tap = (
        "const [where, k] = arguments; const at = {bubbles: true, pointerType: 'touch', clientX: k.x, clientY: k.y};"
        "document.querySelector(where).dispatchEvent(new PointerEvent('pointerdown', at))"
    )
    point = "const p = document.querySelector('#figure-accuracy .point'); p.scrollIntoView(); return p.getBoundingClientRect()"
    box = browser.execute_script(point)
    for where, hidden in (("#figure-accuracy .panel svg", False), ("h1", True)):
        browser.execute_script(tap, where, box)
        assert browser.execute_script("return document.getElementById('tip').hidden") is hidden


def test_ids_are_unique(browser, report):
    open_page(browser, report / "report.html")
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    lost = "return [...document.querySelectorAll('use')].filter(u => !document.querySelector(u.href.baseVal)).length"
    assert browser.execute_script(lost) == 0


def test_in_print_the_page_is_light_and_complete_and_everything_is_open(browser, report):
    open_page(browser, report / "report.html", width=718, dark=True, media="print")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 718
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert not browser.execute_script("return [...document.querySelectorAll('details')].some(d => d.open)")
