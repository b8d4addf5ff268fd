"""A notebook in a browser: the viewer in a frame, in the theme of the page around it."""

from urllib.parse import quote

import pytest
from charts import DARK, LIGHT

import ppsim
from ppsim.actions import Kind

CANVAS = "canvas"


def test_a_notebook_shows_the_viewer_in_a_frame_without_a_heading(page, tmp_path):
    run = ppsim.simulate(ppsim.build("1f1b", devices=8, microbatches=512))
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{run._repr_html_()}", encoding="utf-8")
    page.browser.get(path.as_uri())
    page.browser.switch_to.frame(0)
    page.until("return document.documentElement.dataset.drawn")
    heading = page.run("return document.querySelector('h1')")
    label = page.find(CANVAS).get_attribute("aria-label")
    page.browser.switch_to.default_content()
    assert heading is None
    assert label.startswith("1f1b, 8 devices, 512 microbatches: 1,557.0 s, idle 1.3 %")


@pytest.mark.parametrize("light", ["true", "false"])
def test_a_notebook_is_light_or_dark_as_the_page_around_it(page, tmp_path, light):
    theme, path = LIGHT if light == "true" else DARK, tmp_path / "notebook.html"
    timeline = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8))
    chart = timeline.plot()._repr_mimebundle_()[0]["text/html"]
    shown = f"{timeline.schedule._repr_html_()}{chart}{timeline._repr_html_()}"
    path.write_text(f"<!doctype html><body data-jp-theme-light='{light}'>{shown}", encoding="utf-8")
    page.browser.get(path.as_uri())
    ground = page.run("return getComputedStyle(document.querySelector('td.pp-F')).backgroundColor")
    assert ground == f"rgb({', '.join(str(part) for part in bytes.fromhex(theme.kinds[Kind.F][1:]))})"
    page.until("return document.querySelector('svg')")
    seen = "[...document.querySelectorAll('svg path')].filter((path) => path.getClientRects().length)"
    fills = page.run(f"return {seen}.map((path) => getComputedStyle(path).fill)")
    assert {ground, f"rgb({', '.join(str(part) for part in bytes.fromhex(theme.idle[1:]))})"} <= set(fills)
    other = (DARK if theme is LIGHT else LIGHT).kinds[Kind.F]
    assert f"rgb({', '.join(str(part) for part in bytes.fromhex(other[1:]))})" not in fills
    page.browser.switch_to.frame(page.find("iframe"))
    page.until("return document.documentElement.dataset.drawn")
    assert page.run("return document.documentElement.style.getPropertyValue('--paper')") == theme.paper
    page.browser.switch_to.default_content()


def test_a_timeline_that_a_notebook_shows_twice_is_the_viewer_both_times(page, tmp_path):
    shown = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2))._repr_html_()
    path = tmp_path / "twice.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{shown}{shown}", encoding="utf-8")
    page.browser.get(path.as_uri())
    page.until("return document.querySelectorAll('iframe').length === 2 && !document.querySelector('img')")


def test_a_chart_shown_as_an_image_fits_into_a_narrow_cell(page, tmp_path):
    chart = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8)).plot().to_svg()
    path = tmp_path / "narrow.html"
    path.write_text(f"<!doctype html><div style='width:600px'><img src='data:image/svg+xml,{quote(chart)}'></div>")
    page.browser.get(path.as_uri())
    width, height = page.run("const {width, height} = document.querySelector('img'); return [width, height]")
    assert (width, round(height / width, 2)) == (600, 0.21)
