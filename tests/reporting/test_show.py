"""`spacecl show`: a page that needs nothing else, runs nothing, and says what the learner has."""

import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import teach, teach_random
from models import IMAGE, ConvNet

from spacecl import SPACE, DataError, Images, Learner, PackNet, Recipe, Task
from spacecl.cli.main import main
from spacecl.learning.picture import ABSENT, FREE, LayerPicture, draw_network, picture_core
from spacecl.reporting.show import make_show, write_show
from spacecl.runs.open_run import open_run

EVIL = "<script>alert(1)</script>\"'&\x00"


@pytest.fixture(scope="module")
def learner():
    return teach_random(ConvNet(), IMAGE)


def count_colours(html):
    """By layer, how many filters are drawn with each text."""
    rows = [re.findall(r"<title>(.+?): (\d+)</title>", row) for row in html.split("<tr>")[1:]]
    return [{label: sum(int(n) for text, n in row if text == label) for label, _ in row} for row in rows]


def test_every_filter_is_drawn_once_in_the_colour_of_its_first_task_or_grey(learner):
    core = learner.core
    layers = picture_core(core)
    first, second = (task.units for task in core.tasks)
    for layer, counts in zip(layers, count_colours(draw_network(layers, learner.tasks))):
        owner = core.channels.layers[layer.name]
        wanted = {
            "task 0": int(first[owner].sum()),
            "task 1": int((second & ~first)[owner].sum()),
            "free": int((~first & ~second)[owner].sum()),
        }
        assert counts == {label: count for label, count in wanted.items() if count}
        assert sum(wanted.values()) == len(layer.owners)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "hidden"]


def test_a_tasks_network_has_its_own_filters_and_no_others(learner):
    for number, name in enumerate(learner.tasks):
        for layer in picture_core(learner.core, number):
            assert layer.present == learner.records[name].widths[layer.name]
            assert all(owner == ABSENT or owner <= number for owner in layer.owners)
            assert FREE not in layer.owners


def test_notebooks_show_learners_and_records_without_scripts_and_with_escaped_names(learner):
    html = draw_network([LayerPicture(EVIL, [0, 0, FREE, ABSENT])], [EVIL])
    ET.fromstring(html)
    assert "<script" not in html
    assert count_colours(html)[0]["free"] == 1
    taught = teach(names="<b>{}</b>")
    for text in (taught._repr_html_(), *(record._repr_html_() for record in taught.records.values())):
        ET.fromstring(text)
        assert "<b>0</b>" not in text
        assert "&lt;b&gt;0" in text or "&lt;b&gt;1" in text
        assert "<script" not in text
    assert "0 tasks" in Learner(ConvNet(), example_input=IMAGE)._repr_html_()
    record = list(taught.records.values())[1]
    new = sum(counts.get("new filters", 0) for counts in count_colours(record._repr_html_()))
    assert new == sum(seen["new"] for seen in record.spectrum.values()) > 0


def test_methods_whose_tasks_own_single_weights_are_drawn_too():
    assert "task 1" in teach(method=PackNet())._repr_html_()


def test_the_page_of_a_run_loads_nothing_and_runs_nothing(digits_run, tmp_path, capsys):
    assert main(["show", str(digits_run), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "digits-2" in page
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)=(?!"?(?:data:|#))', page), "the page loads something"
    show = make_show(open_run(digits_run))
    core = open_run(digits_run).learner().core
    shared = int((core.tasks[0].units & core.tasks[1].units).sum())
    assert show.rows[1][3].startswith(f"{shared} (")
    assert "Latency was not measured" in capsys.readouterr().out


def make_run(folder, learner, streams):
    """A run whose learner and data are in memory; without `streams` its data are missing."""

    def load(data):
        if streams is None:
            raise DataError("the data are elsewhere")
        return streams

    return SimpleNamespace(folder=folder, config=None, learner=lambda: learner, tasks=load)


@pytest.fixture(scope="module")
def pictures():
    """A learner of pictures, and its tasks."""
    torch.manual_seed(0)
    labels = np.arange(60) % 2
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
    images = Images(pixels, labels)
    learner = Learner(ConvNet(), SPACE(variance=0.8), example_input=IMAGE)
    task = Task("pets", images, valid=images, test=images, classes=("cat", "<dog>"))
    learner.learn(task, Recipe(epochs=1, retrain_epochs=1))
    return learner, {"pets": task}


def test_filters_and_right_and_wrong_examples_are_shown_for_pictures(pictures, tmp_path):
    learner, streams = pictures
    (part,) = make_show(make_run(tmp_path, learner, streams)).tasks
    assert (part.layer, len(part.filters)) == ("conv1", learner.records["pets"].widths["conv1"])
    assert {picture.text for picture in part.right} <= {"cat", "<dog>"}
    assert {picture.text for picture in part.wrong} <= {"cat, not <dog>", "<dog>, not cat"}
    assert 8 <= len(part.right) + len(part.wrong) <= 16
    assert all(picture.source.startswith("data:image/png;base64,") for picture in (*part.filters, *part.right, *part.wrong))
    file, _ = write_show(make_run(tmp_path, learner, streams))
    page = file.read_text()
    assert "<dog>" not in page
    assert "&lt;dog&gt;" in page


def test_a_page_without_data_says_so(pictures, tmp_path):
    show = make_show(make_run(tmp_path, pictures[0], None))
    assert any("the data are elsewhere" in note for note in show.notes)
    assert not show.tasks[0].right
    assert show.tasks[0].filters


def test_a_page_downloads_nothing(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("SPACECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPACECL_DATA", raising=False)
    run = make_run(tmp_path, pictures[0], {})
    run.config = SimpleNamespace(benchmark="split-cifar10")
    run.tasks = lambda data: pytest.fail("reads the data, and would download them")
    assert "There are no test examples here: name the folder of CIFAR-10 with --data." in make_show(run).notes
