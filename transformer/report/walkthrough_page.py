"""The walkthrough page: what attention computes, on three tokens, and where the code computes it."""

import ast
import os
import textwrap
from html import escape
from pathlib import Path
from typing import NamedTuple

from transformer.report.page import assemble

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("numbers.js", "query.js", "heads.js", "walkthrough.js")


class Source(NamedTuple):
    """A place in the code: the line that has ``text``. Shown is what its function has from there on."""

    what: str
    file: str
    text: str


SOURCES = (
    Source("Dot products, scale, mask, softmax", "models/attention/dense.py", "query_BTGRK = (query_BTHK * scale)"),
    Source("The weighted sum of the values", "models/attention/dense.py", "weights_BHTS = dense_weights("),
    Source("The cap and the bias on logits", "models/attention/biases.py", "if softcap is not None:"),
    Source("Who may see whom: causal, windows, padding, segments", "models/masks.py", "seen = jnp.ones("),
    Source("Projections, grouped heads", "models/multi_head_attention.py", "queries, outputs = "),
    Source(
        "What becomes of queries, and the scale", "models/multi_head_attention.py", "query_BTHK = self.query(x_BTD)"
    ),
    Source("Rotary positions", "models/positions.py", "half = rotation.cosines.shape[-1]"),
    Source("Long texts without the matrix", "models/attention/blockwise.py", "query_NBHTK = _cut("),
)


def page(output: Path) -> str:
    """The page as HTML.

    Args:
      output: where it will lie, for the links to the code.
    """
    code = "\n".join(_shown(source, output) for source in SOURCES)
    return assemble("walkthrough", "What attention computes", SCRIPTS, {}, code=code)


def _shown(source: Source, output: Path) -> str:
    """A source as HTML: its file and line as a link, and the lines themselves."""
    number, text = excerpt(source)
    path = os.path.relpath(ROOT / "transformer" / source.file, output.resolve().parent)
    link = f'<a href="{escape(Path(path).as_posix())}#L{number}"><code>transformer/{source.file}:{number}</code></a>'
    lines = f"<p>{link}</p><pre><code>{escape(text)}</code></pre>"
    return f"<details><summary>{escape(source.what)}</summary>{lines}</details>"


def excerpt(source: Source) -> tuple[int, str]:
    """The number, from 1, of the line that a source names, and the lines from there to the end of its function.

    Raises:
      ValueError: if no line has the text.
    """
    text = (ROOT / "transformer" / source.file).read_text(encoding="utf-8")
    lines = text.split("\n")
    found = [number for number, line in enumerate(lines, start=1) if source.text in line]
    if not found:
        raise ValueError(f"{source.file} has no line with {source.text!r}")
    first = found[0]
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    ends = [node.end_lineno or 0 for node in functions if node.lineno <= first <= (node.end_lineno or 0)]
    return first, textwrap.dedent("\n".join(lines[first - 1 : min(ends)]))
