"""Pages of one file: HTML, style, scripts and data from the folder ``pages``, nothing from elsewhere."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from transformer.types import UserError

PAGES = Path(__file__).parent / "pages"


def assemble(name: str, title: str, scripts: Sequence[str], data: Mapping[str, Any], **texts: str) -> str:
    """A whole page.

    Args:
      name: of the file ``pages/NAME.html``, the body. Where it has ``{{KEY}}`` it is given one of ``texts``, as HTML.
      title: of the page, as text.
      scripts: files of ``pages``, which run in this order; they find the data as ``pageData``.
      data: what JSON can hold.
    """
    # In one pass: a text may itself have braces.
    body = re.sub(r"\{\{(\w+)\}\}", lambda place: texts[place[1]], _file(f"{name}.html"))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',  # or the browser asks the server for one
            f"<title>{escape(title)}</title>\n<style>\n{_file('style.css')}</style>\n</head>\n<body>",
            body,
            f'<script type="application/json" id="data">{as_json(data)}</script>',
            *(f"<script>\n{_file(script)}</script>" for script in ("parts.js", *scripts)),
            "</body>\n</html>\n",
        ]
    )


def as_json(data: Mapping[str, Any]) -> str:
    """JSON that can stand within HTML, whatever the texts in it are."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def packed(values: np.ndarray) -> str:
    """The bytes of an array in base64, in the order of its last axis, lowest byte first."""
    return base64.b64encode(np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()).decode()


def write(path: Path, text: str) -> None:
    """Write a page.

    Raises:
      UserError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output={path} cannot be written: {error.strerror}") from None


def _file(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")
