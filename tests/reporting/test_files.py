"""`spacecl report`: the files that it writes, and the values in them."""

import csv
import re
import shutil
import statistics
import sys

import pytest
from helpers import ROOT
from reporting_helpers import FIGURES, HOSTILE, example_result, results_of, train_in, write_result

from spacecl.cli.main import main
from spacecl.reporting import report as report_module
from spacecl.reporting.arms import read_comparisons
from spacecl.reporting.html import render
from spacecl.reporting.report import make_page, write_report
from spacecl.reporting.text import to_csv_cell, to_markdown_code, to_markdown_text

TABLES = ("table", "accuracy", "first-task", "filters", "costs", "costs-by-task", "core-and-residual", "thresholds")


@pytest.fixture
def without_drawing(monkeypatch):
    """Write empty files for figures: for tests of which files there are."""

    def save(figure, folder):
        files = [folder / f"{figure.name}.{ending}" for ending in ("svg", "png")]
        for file in files:
            file.write_text("")
        return files

    monkeypatch.setattr(report_module, "save_figure", save)


def read_rows(folder, name):
    with (folder / "report" / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_run_on_validation_data_whose_costs_were_not_measured_is_reported_as_such(tmp_path, capsys):
    train_in(tmp_path, {"method": "finetune", "eval_split": "valid"})
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Fine-tuning" in said
    assert "validation data" in said
    (row, _) = read_rows(tmp_path, "costs")
    assert row["latency at batch 1, ms (measured)"] == row["energy at batch 64, µJ (measured)"] == ""
    text = (tmp_path / "report.html").read_text()
    assert "Validation accuracy of each task" in text
    assert "Test accuracy" not in text


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_names_the_extra(monkeypatch, report, capsys, library):
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["report", str(report)]) == 1
    said = capsys.readouterr().err
    assert f"needs {'Jinja2' if library == 'jinja2' else library}." in said
    assert 'pip install "spacecl[report]"' in said


def test_every_figure_is_there_as_svg_and_png_and_every_table_as_csv_and_markdown(report):
    from PIL import Image

    files = {file.name for file in (report / "report").iterdir()}
    assert files == {f"{n}.{e}" for n in FIGURES for e in ("svg", "png")} | {f"{n}.{e}" for n in TABLES for e in ("csv", "md")}
    for name in FIGURES:
        with Image.open(report / "report" / f"{name}.png") as picture:
            assert picture.width > 500
            assert len(picture.convert("L").getcolors()) > 20, f"{name} is blank"
        assert "<title>" in (report / "report" / f"{name}.svg").read_text()


def test_the_table_for_programs_has_the_numbers_of_the_results(report):
    rows = {row["method"]: row for row in read_rows(report, "table")}
    assert list(rows) == ["STL", "EWC", "HAT", "PackNet", "SPACE"]
    for method, label in (("ewc", "EWC"), ("space", "SPACE")):
        results = results_of(report, method)
        accuracy = [100 * result["average_accuracy"] for result in results]
        assert float(rows[label]["accuracy, %, mean"]) == pytest.approx(statistics.fmean(accuracy))
        assert float(rows[label]["accuracy, %, standard deviation"]) == pytest.approx(statistics.stdev(accuracy))
        assert float(rows[label]["network size, mean"]) == pytest.approx(statistics.fmean(r["size"] for r in results))
        energy = [
            statistics.fmean(
                task["costs"]["network"]["energy_modelled"]["64"] / task["costs"]["dense"]["energy_modelled"]["64"]
                for task in result["tasks"]
            )
            for result in results
        ]
        assert float(rows[label]["energy / STL (modelled), mean"]) == pytest.approx(statistics.fmean(energy))
        seconds = statistics.fmean(result["seconds"]["total"] - result["seconds"]["test"] for result in results)
        assert float(rows[label]["training time, mean"]) == pytest.approx(seconds)
        assert rows[label]["runs"] == "3"


def test_costs_are_those_of_the_results_each_under_its_own_label(report):
    rows = {row["method"]: row for row in read_rows(report, "costs")}
    tasks = [task["costs"] for result in results_of(report, "space") for task in result["tasks"]]
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
        for title, key in (
            (f"latency at batch {batch}, ms (measured)", "median"),
            (f"lower quartile at {batch}", "low"),
            (f"upper quartile at {batch}", "high"),
        ):
            seconds = statistics.fmean(cost["network"]["measured"]["latency"][batch][key] for cost in tasks)
            assert float(rows["SPACE"][title]) == pytest.approx(1e3 * seconds)
    assert float(rows["PackNet"]["multiply-adds"]) == float(rows["full network"]["multiply-adds"])


def test_figures_show_the_analysis_of_the_results(report):
    results = results_of(report, "space")
    spectra = [result["tasks"][2]["spectrum"]["hidden2"] for result in results]
    shares = {(row["series"], row["layer"]): row["3"] for row in read_rows(report, "core-and-residual")}
    core, kept = (statistics.fmean(spectrum[key] for spectrum in spectra) for key in ("first_core", "kept"))
    assert shares["the first task's core", "hidden2"] == f"{100 * core:.2f} %"
    assert shares["residual: filters kept beyond it", "hidden2"] == f"{100 * (kept - core):.2f} %"
    counts = {(row["series"], row["layer"]): row["3"] for row in read_rows(report, "filters")}
    assert counts["SPACE", "hidden2"] == f"{statistics.fmean(r['tasks'][2]['used']['hidden2'] for r in results):.4g}"
    unprojected = statistics.fmean(spectrum["core"] + spectrum["new_without_projection"] for spectrum in spectra)
    assert counts["SPACE, not subtracted", "hidden2"] == f"{unprojected:.4g}"
    assert ">threshold" not in (report / "report" / "spectrum.svg").read_text(), "tasks have thresholds of their own"
    assert (report / "report" / "filters.svg").read_text().count(">all 100<") == 2


def test_a_report_removes_the_files_of_arms_that_are_gone(tmp_path, without_drawing):
    write_result(tmp_path / "one", example_result("space"))
    write_result(tmp_path / "two", example_result("space", projection=False))
    write_report(tmp_path, *read_comparisons(tmp_path))
    assert (tmp_path / "report" / "spectrum-2.svg").exists()
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "report" / "mine.txt").write_text("kept")
    write_report(tmp_path, *read_comparisons(tmp_path))
    assert not (tmp_path / "report" / "spectrum-2.svg").exists()
    assert (tmp_path / "report" / "mine.txt").exists()


def test_the_same_results_give_the_same_page_to_the_byte(report):
    assert render(make_page(*read_comparisons(report))).encode() == (report / "report.html").read_bytes()


def test_the_published_results_of_all_versions_are_reported_together(tmp_path, without_drawing, capsys):
    for file in (ROOT / "results").glob("*/result.json"):
        (tmp_path / file.parent.name).mkdir()
        shutil.copy(file, tmp_path / file.parent.name)
    assert main(["report", str(tmp_path)]) == 0
    assert "Left out" not in capsys.readouterr().out
    files = {file.name for file in (tmp_path / "report").iterdir()}
    for benchmark in ("p-mnist", "permuted-digits", "split-cifar10", "split-cifar100"):
        assert f"{benchmark}-table.md" in files
    text = (tmp_path / "report" / "split-cifar10-table.md").read_text()
    assert re.search(
        r"\| SPACE[^|]*best[^|]*\| 94.96 \| 0.349 \| [\d.]+ \| 0.197 \| 0.00 \| [\d.]+ \| 1 h 44 min \| 1 \|", text
    )
    assert len(text.splitlines()) == 4, "a row for each of the two results"
    page = (tmp_path / "report.html").read_text()
    ids = re.findall(r'<\w+ id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for anchor in re.findall(r'<a href="#([^"]+)"', page):
        assert anchor in ids


def test_names_cannot_break_out_of_their_cells_in_markdown_and_csv(hostile_report):
    for file in (hostile_report / "report").glob("*.md"):
        rows = file.read_text().splitlines()
        columns = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert len(columns) == 1, file.name
        assert not re.search(r"(?<!\\)[<`*\[]", file.read_text()), file.name
    files = (hostile_report / "report").glob("*.csv")
    cells = [cell for file in files for row in csv.reader(file.open(newline="")) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    assert '\'=HYPERLINK("x")' in cells
    assert HOSTILE["digits-3"] in cells, "harmless text is unchanged in a file for programs"


def test_names_are_escaped_in_the_page(hostile_report):
    page = (hostile_report / "report.html").read_text()
    assert "&lt;script&gt;window.owned" in page
    for markup in ("<script>window", "<img", "<svg onload"):
        assert markup not in page


def test_text_is_markup_in_no_table():
    text = "a|b\nc `d` *e* _f_ <g> [h](i) \\ & ~~j~~ $k$ \0\ud800"
    escaped = r"a\|b c \`d\` \*e\* \_f\_ \<g\> \[h\](i) \\ \& \~\~j\~\~ \$k\$ " + "\ufffd\ufffd"
    assert to_markdown_text(text) == escaped
    assert to_markdown_code("a 'b|c'") == r"`a 'b\|c'`"
    assert to_markdown_code("a ``b`` `c`") == "``` a ``b`` `c` ```"
    numbers = ["-1.50 %", "-0.003", "-1e-05", "-inf", "+2.00 ± 0.10", "SPACE: variance 0.9", "x=1", "-nan"]
    assert [to_csv_cell(text) for text in numbers] == numbers
    assert [to_csv_cell(text) for text in ("=1+1", "@x", "-1+cmd|'/C'!A0", " =x", "+x", "-x")] == [
        *("'=1+1", "'@x", "'-1+cmd|'/C'!A0", "' =x", "'+x", "'-x")
    ]
