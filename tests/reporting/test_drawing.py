"""Drawings: marks with texts, whatever these texts are."""

import re
from dataclasses import replace
from xml.etree import ElementTree

from spacecl.reporting.drawing import draw_panel, save_figure
from spacecl.reporting.figures import Figure, Panel, Series
from spacecl.reporting.html import render
from spacecl.reporting.page import Chapter, Command, Page, Section, Table


def test_marks_carry_their_texts_whatever_the_axes_leave_out(tmp_path):
    """Points beyond the axes are not drawn; the others keep their own texts. Text of users is escaped."""
    y = [0.2, 0.9, 0.99, 0.9999]
    series = Series("<b>", [0, 1, 2, 3], y, [f"<{value}>" for value in y])
    panel = Panel("a & b", "x", "y", [series], percent=True, saturating=True, levels=[(0.9, "here")])
    text = draw_panel(panel)
    assert re.findall(r"<title>&lt;([\d.]+)&gt;</title>", text) == ["0.2", "0.9", "0.99"]
    assert 'aria-label="a &amp; b"' in text
    assert "#0969da" not in text
    files = save_figure(Figure("one", "One", [panel, panel]), tmp_path)
    assert "#0969da" in files[0].read_text()


def test_text_that_no_file_can_hold_does_not_keep_a_report_from_being_written(tmp_path):
    odd = "a\0b\x1b\ud800\uffff"
    series = Series(odd, [1, 2], [1, 2], [odd, odd])
    figure = Figure("one", odd, [Panel(odd, "x", "y", [series, replace(series, label="b")])])
    for file in save_figure(figure, tmp_path)[:1]:
        ElementTree.parse(file)
    table = Table("t", odd, [odd, odd], [[odd, odd]], folded=True)
    section = Section("s", odd, [odd], [figure], [table], commands=[Command(odd, odd, odd, odd)])
    text = render(Page(odd, [Chapter("c", odd, [section])], [odd]))
    text.encode()
    assert "\0" not in text
    assert "a\ufffdb" in text
