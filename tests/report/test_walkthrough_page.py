"""The walkthrough's links to the code."""

import re

import pytest

from transformer.report.walkthrough_page import ROOT, SOURCES, excerpt, page


def test_every_link_leads_to_the_line_that_it_names(tmp_path):
    text = page(tmp_path / "walkthrough.html")
    links = re.findall(r'<a href="([^"#]+)#L(\d+)"><code>(transformer/[\w/]+\.py):(\d+)</code>', text)
    assert len(links) == len(SOURCES)
    for (path, number, name, shown), source in zip(links, SOURCES, strict=True):
        assert number == shown and (tmp_path / path).resolve() == ROOT / name
        line = (ROOT / name).read_text(encoding="utf-8").split("\n")[int(number) - 1]
        assert source.text in line


def test_what_is_shown_is_the_rest_of_a_function():
    number, text = excerpt(SOURCES[0])
    assert text.startswith("query_BTGRK = (query_BTHK * scale)") and text.endswith("axis=-1), 0)") and number > 30
    with pytest.raises(ValueError, match="no line with 'nowhere'"):
        excerpt(SOURCES[0]._replace(text="nowhere"))
