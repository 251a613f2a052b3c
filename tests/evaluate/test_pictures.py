"""Guards pictures: enough contrast in light and dark mode, valid SVG, and the same bytes for the same data."""

from xml.etree import ElementTree

import numpy as np
import pytest

from aplc.evaluate.pictures import (
    DARK,
    LIGHT,
    MARKERS,
    draw_clusters,
    draw_zipf,
    figure,
    inline_svg,
    save_picture,
    style,
    thin,
)


def luminance(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    """WCAG 2's ratio."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast_is_enough_for_text_and_lines(colours):
    for name in ("ink", "muted"):
        assert contrast(colours[name], colours["paper"]) >= 4.5, name
    for name in ("series-1", "series-2", "series-3"):
        assert contrast(colours[name], colours["paper"]) >= 3, name
    assert len(set(MARKERS)) == len([name for name in colours if name.startswith("series")])


def draw(cutoffs=(500,)):
    with style():
        made, (axes,) = figure()
        draw_clusters(axes, np.sort(np.arange(1, 1001))[::-1], cutoffs)
    return made


def test_inline_picture_uses_the_colours_of_the_page():
    svg = inline_svg(draw(), "name")
    assert not any(value in svg for value in LIGHT.values())
    assert "var(--series-1)" in svg
    assert 'id="name-figure_1"' in svg
    assert "tail 1" in svg  # text, not outlines
    assert "training documents" in svg
    assert svg == inline_svg(draw(), "name")
    ElementTree.fromstring(svg)


def test_file_defines_colours_for_light_and_dark_mode(tmp_path):
    save_picture(draw(), tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert "prefers-color-scheme: dark" in text
    assert DARK["series-1"] in text
    ElementTree.fromstring(text)


def test_a_million_labels_are_drawn_as_a_few_hundred_points():
    assert len(thin(1_000_000)) <= 400
    assert thin(1_000_000)[[0, -1]].tolist() == [0, 999_999]
    assert thin(3).tolist() == [0, 1, 2]
    with style():
        made, (axes,) = figure()
        draw_zipf(axes, np.arange(670_091, 0, -1))
    assert len(inline_svg(made, "zipf")) < 60_000


def test_dollars_in_names_are_not_tex(tmp_path):
    with style():
        made, (axes,) = figure()
        axes.set(xlabel="$x^2$ & <b>")
    assert "$x^2$ &amp; &lt;b&gt;" in inline_svg(made, "p")
