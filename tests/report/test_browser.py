"""The pages in a real browser: what they compute is what Python computes, and hand, eye and keyboard can use them."""

import numpy as np
import pytest

from tests.report.browser import chromium, opened
from tests.report.looks import AWKWARD, encoder_look, image_look, long_look, translation_look
from transformer.report import attention_page, walkthrough_page
from transformer.report.attention_measures import alignment, rollout, word_starts

pytestmark = pytest.mark.xdist_group("browser")  # one browser serves all

LOOKS = {
    "text": encoder_look,
    "translation": translation_look,
    "image": image_look,
    "long": long_look,
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A path for each look, and the walkthrough's."""
    folder, paths = tmp_path_factory.mktemp("pages"), {}
    for name, make in LOOKS.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(attention_page.page(make(), {"task": "test"}), encoding="utf-8")
    paths["walkthrough"] = folder / "walkthrough.html"
    paths["walkthrough"].write_text(walkthrough_page.page(paths["walkthrough"]), encoding="utf-8")
    return paths


@pytest.mark.parametrize("name", ["text", "translation", "image"])
def test_all_weights_of_the_page_are_those_of_the_model(browser, pages, name):
    look = LOOKS[name]()
    with opened(browser, pages[name]) as page:
        for stack, layers in look.weights.items():
            for number, weights in enumerate(layers):
                for head, of_head in enumerate(weights):
                    script = "([s, l, h]) => Array.from(attention.heads.weights(s, l, h))"
                    got = np.array(page.evaluate(script, [stack, number, head])).reshape(of_head.shape)
                    np.testing.assert_allclose(got, of_head, atol=2e-3)
            if stack != "cross":
                script = "s => new Promise(done => attention.heads.rollout(s, 1, w => done(Array.from(w))))"
                got = np.array(page.evaluate(script, stack)).reshape(layers[0].shape[1:])
                np.testing.assert_allclose(got, rollout(layers)[1], atol=4e-3)


@pytest.mark.parametrize("name", ["text", "walkthrough"])
def test_the_scale_changes_the_weights_to_those_that_python_computes(browser, pages, name):
    with opened(browser, pages[name]) as page:
        owner = "attention" if name == "text" else "walkthrough"
        if name == "text":
            page.evaluate("() => attention.choose({ layer: 0, head: 2 })")  # without a mask
        state = page.evaluate(
            f"() => {{ const p = {owner}.inside.problem; return [Array.from(p.products), p.scale]; }}"
        )
        products, scale = np.array(state[0]), state[1]
        if name == "text":
            layer = encoder_look().attention["encoder"][0]
            np.testing.assert_allclose(products, layer.key[0] @ layer.query[2, 5], atol=5e-3)
        for scaled in (True, False):
            expected = softmax(products * (scale if scaled else 1))
            np.testing.assert_allclose(page.evaluate(f"() => Array.from({owner}.inside.current)"), expected, atol=1e-6)
            shown = [float(text) for text in page.locator(".query-table .weight .number").all_inner_texts()]
            np.testing.assert_allclose(shown, expected, atol=6e-4)
            page.locator("#scale-toggle").click()
        # A score that is dragged takes weight from the others, and the output follows.
        before = page.evaluate(f"() => Array.from({owner}.inside.currentOutput)")
        slider = page.locator(".query-table input[type=range]").first
        slider.focus()
        page.keyboard.press("End")
        moved = page.evaluate(f"() => [Array.from({owner}.inside.products), Array.from({owner}.inside.current)]")
        assert moved[0][0] > products[0]
        np.testing.assert_allclose(moved[1], softmax(np.array(moved[0]) * scale), atol=1e-6)
        assert not np.allclose(before, page.evaluate(f"() => Array.from({owner}.inside.currentOutput)"))
        page.get_by_text("Put the scores back").click()
        np.testing.assert_allclose(page.evaluate(f"() => Array.from({owner}.inside.currentOutput)"), before, atol=1e-9)


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def test_the_output_is_the_weighted_sum_of_the_values(browser, pages):
    look = encoder_look()
    layer = look.attention["encoder"][0]
    with opened(browser, pages["text"]) as page:
        page.evaluate("() => { attention.choose({ layer: 0, head: 4 }); attention.chooseQuery(2); }")
        got = page.evaluate("() => Array.from(attention.inside.currentOutput)")
        np.testing.assert_allclose(got, layer.weights[4, 2] @ layer.value[4 // 3], atol=2e-3)
        page.evaluate("() => attention.choose({ layer: 1 })")  # with a mask
        page.locator("#mask-toggle").click()
        assert min(page.evaluate("() => Array.from(attention.inside.current)")) > 0


def test_every_token_is_shown_as_text(browser, pages):
    with opened(browser, pages["text"]) as page:
        chips = page.locator("#tokens-body .chips[data-side=encoder] button > bdi").evaluate_all(
            "all => all.map(e => e.textContent)"
        )
        keys = page.locator(".query-table .key").evaluate_all("all => all.slice(1).map(e => e.textContent)")
        assert tuple(chips) == AWKWARD and tuple(keys) == AWKWARD
        assert page.locator("b", has_text="bold").count() == 0
        assert "<script>alert(1)</script>" in page.locator("#facts").inner_text()
        page.locator("#tokens-body button").nth(3).click()
        assert "</script>" in page.locator("#alternatives").inner_text()
        assert "50%" in page.locator("#alternatives").inner_text()


def test_pointing_and_keys_say_what_is_looked_at(browser, pages):
    look = translation_look()
    with opened(browser, pages["translation"]) as page:
        page.evaluate("() => attention.choose({ layer: 0, head: 1 })")
        weights, pointed = look.weights["cross"][0][1], page.locator("#pointed")
        lines = page.locator("#lines .scroll")
        lines.scroll_into_view_if_needed()
        box = lines.bounding_box()
        page.mouse.move(box["x"] + 20, box["y"] + 6 + 22 * 2.5)  # the third query
        assert pointed.inner_text().startswith(
            f"“▁w2” looks at ▁r{weights[2].argmax()}" if weights[2].argmax() < 5 else "“▁w2” looks at <eos>"
        )
        page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 6 + 22 * 1.5)  # the second key
        assert pointed.inner_text().startswith("“▁r1” is looked at by")
        lines.focus()
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert pointed.inner_text().startswith("“▁w1” looks at")
        assert page.locator("#query-select").input_value() == "1"
        page.locator("#map .scroll").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert f"{weights[0, 2]:.3f}"[:4] in pointed.inner_text() and "“▁r2”" in pointed.inner_text()
        current = page.locator(".thumb[aria-current=true]")
        current.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator("#head-title").inner_text() == "Cross-attention, layer 2, head 2"


def test_hidden_tokens_are_left_out_and_what_is_left_is_said(browser, pages):
    weights = translation_look().weights["cross"][0][0]
    with opened(browser, pages["translation"]) as page:
        page.evaluate("() => attention.choose({ layer: 0, head: 0 })")
        page.locator("#hide").check()
        left = page.evaluate("() => Array.from(attention.data.weights)")
        np.testing.assert_allclose(left, weights[:-1, :-1].reshape(-1), atol=2e-3)
        assert "add up to less than 1" in page.locator("#map-caption").inner_text()
        page.locator("#renormalise").check()
        left = np.array(page.evaluate("() => Array.from(attention.data.weights)")).reshape(4, 5)
        np.testing.assert_allclose(left.sum(axis=1), 1, atol=1e-5)
        assert "made to add up to 1 again" in page.locator("#map-caption").inner_text()


def test_words_are_aligned_as_python_aligns_them(browser, pages):
    look = translation_look()
    written = [look.predictions["decoder"][place].text for place in range(5)]
    read = [piece.text for piece in look.pieces["encoder"]]
    words = [word_starts(texts, [text == "<eos>" for text in texts]) for texts in (written, read)]
    with opened(browser, pages["translation"]) as page:
        for chosen, button in ({0: [0, 1, 2]}, "last layer but one"), ({0: [0, 1, 2], 1: [0, 1, 2]}, "all"):
            page.get_by_role("button", name=button, exact=True).click()
            expected = alignment(look.weights["cross"], *words, chosen)
            got = page.evaluate("() => Array.from(attention.alignment.data.weights)")
            np.testing.assert_allclose(np.array(got).reshape(expected.shape), expected, atol=2e-3)


def test_heads_are_sorted_by_their_numbers(browser, pages):
    with opened(browser, pages["text"]) as page:
        page.locator("#measure").select_option("entropy")
        page.locator("#order").select_option("down")
        values = page.evaluate("() => attention.thumbs.map(({ value }) => value)")
        assert values == sorted(values, reverse=True) and len(values) == 36


def test_experts_are_named(browser, pages):
    with opened(browser, pages["text"]) as page:
        assert page.locator("#experts th[scope=row]").all_inner_texts() == ["layer 5"]
        assert page.locator("#experts td").nth(4).inner_text().split() == ["2", "3", "0.50"]


def test_a_patch_that_is_chosen_is_the_query(browser, pages):
    with opened(browser, pages["image"]) as page:
        overlay = page.locator("#picture canvas").nth(1)
        overlay.scroll_into_view_if_needed()
        box = overlay.bounding_box()
        page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.2 * box["height"])
        assert page.locator("#query-select").input_value() == "4"  # behind class token and register, the third
        assert "1,3 looks" in page.locator("#picture-caption").inner_text()
        page.evaluate("() => attention.chooseQuery(0)")
        assert "<class> looks" in page.locator("#picture-caption").inner_text()


def test_a_long_text_stays_quick_and_says_what_is_left_out(browser, pages):
    with opened(browser, pages["long"]) as page:
        for side in ("width", "height"):
            assert (
                page.evaluate(f"() => Math.max(...Array.from(document.querySelectorAll('canvas'), c => c.{side}))")
                < 3000
            )
        script = (
            "() => new Promise(done => { const ask = () => attention.thumbs.every(({ canvas }) => canvas.width === 64)"
        )
        page.locator("#overview").scroll_into_view_if_needed()
        page.evaluate(f"{script} ? done() : setTimeout(ask, 20); ask(); }})")
        assert "512 by 512" in page.locator("#overview-note").inner_text()
        assert "the other 472" in page.locator("#inside .note", has_text="largest weights").inner_text()
        assert page.locator(".query-table tbody tr").count() == 40
        script = """() => { const start = performance.now(); attention.choose({ layer: 1, head: 1 });
            attention.chooseQuery(300); return performance.now() - start; }"""
        assert page.evaluate(script) < 3000  # a tenth of a second where nothing else runs


@pytest.mark.parametrize("name", ["text", "translation", "image", "walkthrough"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_nothing_is_wider_than_the_window(browser, pages, name, width, scheme):
    with opened(browser, pages[name], width=width, scheme=scheme) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_walkthrough_shows_what_float16_makes_of_a_mask(browser, pages):
    with opened(browser, pages["walkthrough"]) as page:
        table = page.locator("#mask-table")
        assert "not a number" in table.inner_text() and "−∞" in table.inner_text()
        page.locator("#mask-value").fill("-10000")
        assert "not a number" not in table.inner_text() and "0.333" in table.inner_text()
        numbers = [0.1, 1.0, 65504.0, 65519.0, 65520.0, -1e9, 6e-8, 2.9e-8, 1 / 3, 2049.0, 2051.0, 6.1e-5]
        got = page.evaluate("numbers => numbers.map(toHalf).map(x => Number.isFinite(x) ? x : String(x))", numbers)
        with np.errstate(over="ignore"):
            expected = np.array(numbers).astype(np.float16).astype(np.float64)
        assert [float(one) for one in got] == expected.tolist()


def test_temperature_and_size_of_the_walkthrough(browser, pages):
    with opened(browser, pages["walkthrough"]) as page:
        page.locator("#causal").check()
        page.locator("#query").select_option("1")
        assert page.evaluate("() => walkthrough.inside.current[2]") == 0
        page.locator("#scale-toggle").uncheck()
        entropies = []
        for size in ("0", "4", "8"):
            page.locator("#size").fill(size)
            entropies.append(page.evaluate("() => entropyOf(walkthrough.inside.current)"))
        assert entropies[0] > entropies[1] > entropies[2]
        page.locator("#temperature").fill("2")
        assert page.evaluate("() => entropyOf(walkthrough.inside.current)") > entropies[2]
