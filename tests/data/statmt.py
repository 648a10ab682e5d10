"""Tiny archives under the names of statmt.org's, with what they hold there: members, line ends, annotations."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

EUROPARL, COMMON_CRAWL, NEWS, UN, GIGA, DEV = (
    "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    "http://www.statmt.org/wmt13/training-parallel-un.tgz",
    "http://www.statmt.org/wmt10/training-giga-fren.tar",
    "http://data.statmt.org/wmt19/translation-task/dev.tgz",
)

Pairs = Sequence[tuple[str, str]]


def text(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def sgm(lines: Sequence[str], kind: str, source: str, target: str) -> bytes:
    """A test set as WMT wrote them, with two documents."""
    languages = f'srclang="{source}"' if kind == "srcset" else f'srclang="any" trglang="{target}"'
    parts = [f'<{kind} setid="newstest2014" {languages}>\n']
    for number, part in enumerate((lines[:3], lines[3:])):
        parts.append(f'<doc sysid="ref" docid="news-{number}" genre="news" origlang="en">\n<p>\n')
        parts += [f'<seg id="{place}">{line}</seg>\n' for place, line in enumerate(part, start=1)]
        parts.append("</p>\n</doc>\n")
    return "".join([*parts, f"</{kind}>\n"]).encode()


def members(language: str, corpora: Mapping[str, Pairs]) -> dict[str, dict[str, bytes]]:
    """What each archive holds, by its address, for pairs (English, ``language``).

    Args:
      corpora: "europarl", "commoncrawl", "news" and for French "un" and "giga"; "newstest2013", "newstest2014".
    """
    names = {
        (EUROPARL, "europarl"): f"training/europarl-v7.{language}-en",
        (COMMON_CRAWL, "commoncrawl"): f"commoncrawl.{language}-en",
        (NEWS, "news"): f"training/news-commentary-v9.{language}-en",
        (UN, "un"): f"un/undoc.2000.{language}-en",
        (DEV, "newstest2013"): "dev/newstest2013",
    }
    found: dict[str, dict[str, bytes]] = {}
    for (address, corpus), name in names.items():
        for side, ending in enumerate(("en", language)):
            if corpus in corpora:
                lines = [pair[side] for pair in corpora[corpus]]
                found.setdefault(address, {})[f"{name}.{ending}"] = text(lines)
    found[COMMON_CRAWL][f"commoncrawl.{language}-en.annotation"] = b"http://example.org/1\n"
    if "giga" in corpora:
        for side, ending in enumerate(("en", language)):
            content = gzip.compress(text([pair[side] for pair in corpora["giga"]]))
            found.setdefault(GIGA, {})[f"giga-fren.release2.fixed.{ending}.gz"] = content
    english, other = ([pair[side] for pair in corpora["newstest2014"]] for side in (0, 1))
    found[DEV] |= {
        f"dev/newstest2014-{language}en-src.{language}.sgm": sgm(other, "srcset", language, "en"),
        f"dev/newstest2014-{language}en-ref.en.sgm": sgm(english, "refset", language, "en"),
    }
    return found


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    compression = path.suffix.removeprefix(".").removeprefix("t")
    with tarfile.open(path, f"w:{compression}" if compression in ("gz", "bz2", "xz") else "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path
