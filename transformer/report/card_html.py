"""The experiment card as HTML, for pages that show it: headings, tables and paragraphs, which is all that it has."""

import re
from collections.abc import Iterator, Sequence
from html import escape

CELLS = re.compile(r"(?<!\\)\|")


def as_html(card: str, level: int) -> str:
    """The Markdown of :func:`transformer.report.card.page` as HTML.

    Args:
      level: of the page's headings, that the card's first is to have.
    """
    parts: list[str] = []
    for block in card.strip().split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("|"):
            parts += _table([_cells(line) for line in lines])
        else:
            parts += (_line(line, level) for line in lines)
    return "\n".join(parts)


def _line(line: str, level: int) -> str:
    """A heading or a paragraph."""
    marks = re.match(r"(#+) ", line)
    if marks is None:
        return f"<p>{escape(line)}</p>"
    name = f"h{min(6, level + len(marks[1]) - 1)}"
    return f"<{name}>{escape(line[marks.end() :])}</{name}>"


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in CELLS.split(line)[1:-1]]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, _, *body = rows
    yield '<div class="wide"><table class="plain">'
    if any(head):
        yield f"<thead><tr>{''.join(f'<th scope=col>{escape(cell)}</th>' for cell in head)}</tr></thead>"
    for first, *others in body:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        yield f"<tr><th scope=row>{escape(first)}</th>{cells}</tr>"
    yield "</table></div>"
