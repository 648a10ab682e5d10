"""The run report in a real browser: what it draws and says is what the workdirs hold."""

import json

import numpy as np
import pytest

from tests.report.browser import chromium, opened
from tests.report.workdirs import AWKWARD, a_run, outputs, training_line
from transformer.report.run_page import page as make_page
from transformer.report.runs import read_runs

pytestmark = pytest.mark.xdist_group("browser")  # one browser serves all


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Of a run, one without a record, and one of 3,001 reports without tokens."""
    folder = tmp_path_factory.mktemp("pages")
    one, other, long = a_run(folder / "a"), a_run(folder / "b", dropout=0.3), a_run(folder / f"c {AWKWARD[9:]}")
    (other / "run.json").unlink()
    outputs(one, "test.130.raw", [130], ["das 0", AWKWARD])
    for manifest in long.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    (long / "metrics.jsonl").write_text("".join(json.dumps(training_line(step, 1)) + "\n" for step in range(1, 3002)))
    written = folder / "run.html"
    written.write_text(make_page(read_runs([one, other, long])), encoding="utf-8")
    return written


def chart(page, title):
    """The figure with a title."""
    return page.locator(".chart").filter(has=page.get_by_role("heading", name=title, exact=True))


def drawn(page):
    """Return when what was changed is to be seen: charts are drawn before the next frame."""
    page.wait_for_function("() => !report.waiting")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_fits_and_every_chart_is_drawn(browser, path, width, scheme):
    with opened(browser, path, width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for title in ("Loss", "BLEU", "Expert load", "Tokens a second"):
            lines = chart(page, title).locator("svg .line")
            assert lines.count() >= 2 and lines.first.get_attribute("d").startswith("M")
        assert chart(page, "BLEU").locator("svg .line").count() == 2  # the third run has none
        assert chart(page, "Loss").locator("svg .restart").count() == 2  # the second has no record
        assert AWKWARD[9:] in page.locator("h1").inner_text()
        page.get_by_text("Curves of all else that was logged").click()
        page.wait_for_function("document.querySelector('#other-charts svg .line')")


def test_keys_move_through_the_reports_of_all_charts(browser, path):
    with opened(browser, path) as page:
        page.get_by_role("button", name="C c").click()  # its reports lie closer
        loss = chart(page, "Loss")
        assert loss.locator(".readout").inner_text().split() == f"last A {300 / 130:.3f} B {300 / 130:.3f}".split()
        loss.get_by_role("slider").focus()
        scrolled = page.evaluate("scrollY")
        for keys, step in (("Home", 10), ("ArrowRight", 20), ("ArrowRight", 30), ("End", 130), ("PageDown", 110)):
            page.keyboard.press(keys)
            page.wait_for_function("step => report.cursor === step", arg=step)
            drawn(page)
            expected = f"step {step} A {300 / step:#.4g} B {300 / step:#.4g}"
            assert loss.locator(".readout").inner_text().split() == expected.split()
            spoken = loss.get_by_role("slider").get_attribute("aria-valuetext")
            assert spoken.replace(",", "").split() == expected.split()
        assert "0.009091" in chart(page, "Gradient norm").locator(".readout").inner_text()
        assert "validation 2.000" in chart(page, "Nats per token").locator(".readout").inner_text()
        assert page.evaluate("scrollY") == scrolled  # keys that the chart takes do not move the page
        page.keyboard.press("Escape")
        page.wait_for_function("() => report.cursor === null")


def test_axes_and_scales_can_be_changed(browser, path):
    with opened(browser, path) as page:
        page.locator("#axis").select_option("tokens")
        drawn(page)
        assert "Not drawn over tokens, which are not known: C c" in page.locator("#curves-note").inner_text()
        assert page.evaluate("() => report.range()") == [0, 3600]
        chart(page, "Loss").get_by_role("slider").press("Home")
        drawn(page)
        assert "180 tokens" in chart(page, "Loss").locator(".readout").inner_text()
        page.locator("#axis").select_option("steps")
        page.get_by_role("checkbox", name="logarithmic").check()
        assert page.evaluate("() => report.range()") == [1, 3001]
        page.locator("#scale").select_option("log")
        drawn(page)
        places = page.evaluate("() => [3, 30, 300].map((value) => report.charts[0].scaleY.at(value))")
        assert places[0] - places[1] == pytest.approx(places[1] - places[2]) and places[0] > places[1] + 9


def test_mouse_and_buttons_enlarge_a_part(browser, path):
    with opened(browser, path) as page:
        slider = chart(page, "Loss").get_by_role("slider")
        box = slider.bounding_box()
        expected = page.evaluate("() => [100, 200].map((pixel) => report.charts[0].scaleX.back(pixel))")
        page.mouse.move(box["x"] + 100, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 90)
        page.mouse.up()
        np.testing.assert_allclose(page.evaluate("() => report.bounds"), expected, rtol=1e-3)
        page.get_by_role("button", name="Whole run").click()
        assert page.evaluate("() => report.bounds") is None
        slider.press("Escape")
        slider.press("+")
        np.testing.assert_allclose(page.evaluate("() => report.range()"), [3001 / 4, 3001 * 3 / 4])
        slider.press("-")
        assert page.evaluate("() => report.bounds") is None


def test_more_points_than_pixels_become_their_mean_and_range(browser, path):
    with opened(browser, path) as page:
        assert "mean and range of up to 3,001 points a line" in chart(page, "Loss").inner_text()
        assert chart(page, "Loss").locator("svg .band").count() == 1
        script = """() => {
          const xs = Array.from({ length: 1000 }, (_, i) => i), ys = xs.map((x) => x % 7 === 3 ? null : (x * 37) % 101);
          const one = new Scale(0, 1000, 0, 50, false), same = new Scale(0, 1, 0, 1, false);
          return [xs.map((x) => Math.round(one.at(x))), ys, pieces(xs, ys, 0, 1000, one, same, 50)];
        }"""
        columns, ys, found = page.evaluate(script)
    (piece,) = found["pieces"]
    assert found["joined"] and [point["x"] for point in piece] == sorted(set(columns))
    for point in piece:
        values = [y for x, y in zip(columns, ys, strict=True) if x == point["x"] and y is not None]
        assert (point["low"], point["high"]) == (min(values), max(values))
        assert point["y"] == pytest.approx(np.mean(values))


def test_ticks_are_round_numbers_in_few_characters(browser, path):
    with opened(browser, path) as page:
        script = "([low, high, log]) => new Scale(low, high, 0, 1, log).ticks(5).map(tickText)"
        assert page.evaluate(script, [0, 0.00103, False]) == ["0", "2.5e−4", "5e−4", "7.5e−4", "0.001"]
        assert page.evaluate(script, [5.3e-4, 9.9e-4, False]) == ["6e−4", "7e−4", "8e−4", "9e−4"]
        assert page.evaluate(script, [-12.5, 29, False]) == ["−10", "0", "10", "20"]
        assert page.evaluate(script, [0, 2_500_000, False]) == ["0", "500K", "1M", "1.5M", "2M", "2.5M"]
        assert page.evaluate(script, [0.9, 24, True]) == ["1", "2", "5", "10", "20"]
        assert page.evaluate(script, [1e-6, 30, True]) == ["1e−6", "1e−4", "0.01", "1"]


def test_letters_at_the_ends_of_lines_can_be_read(browser, path):
    ends = [{"x": x, "y": y} for x, y in np.random.default_rng(0).uniform([300, 20], [303, 198], (13, 2)).tolist()]
    with opened(browser, path) as page:
        placed = page.evaluate("ends => (spread(ends, 12, 12, 198), ends)", ends)
        crowded = page.evaluate(
            "ends => (spread(ends, 12, 12, 198), ends)", [{"x": 300, "y": 150.1} for _ in range(40)]
        )
    places = sorted(end["place"] for end in placed)
    assert np.diff(places).min() >= 12 and places[0] >= 12 and places[-1] <= 198
    assert len({round(end["place"]) for end in crowded}) > 13  # as many as there is room for


def test_a_number_that_is_missing_ends_a_line(browser, path):
    with opened(browser, path) as page:
        script = """() => {
          const same = new Scale(0, 1, 0, 1, false);
          const found = pieces([1, 2, 3, 4], [5, null, 6, 7], 0, 4, same, same, 50);
          return found.pieces.map((piece) => piece.map(({ y }) => y));
        }"""
        assert page.evaluate(script) == [[5], [6, 7]]
