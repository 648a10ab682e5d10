"""The house stays as it was drawn: who may import whom, and what no file may hold. Read from the source, not run."""

import ast
import graphlib
import pathlib
import re
import subprocess
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "transformer"

MAY_IMPORT = {
    "types": set(),
    "looks": {"types"},
    "paths": {"types"},
    "config": {"paths", "types"},
    "progress": set(),
    "commands": {"config", "progress", "types"},
    "models": {"config", "types"},
    "data": {"config", "paths", "progress", "types"},
    "decoding": {"types"},
    "evaluation": {"config", "progress", "types"},
    "tasks": {"config", "data", "decoding", "evaluation", "looks", "models", "progress", "types"},
    "training": {"config", "data", "evaluation", "paths", "progress", "tasks", "types"},
    "report": {"commands", "config", "data", "evaluation", "looks", "paths", "progress", "training", "types"},
    "plan": {"commands", "config", "data", "report", "training", "types"},
    "interop": {"commands", "config", "data", "models", "paths", "progress", "tasks", "training", "types"},
    "__init__": {"training"},
}
"""Room -> the other rooms it may import. Scripts may import everything."""

MAY_NOT_IMPORT = {
    "types": {"jax", "flax"},
    "looks": {"jax", "flax"},
    "config": {"jax", "flax"},
    "data": {"jax", "flax", "optax", "orbax"},
    "models": {"grain", "optax", "orbax", "sacrebleu", "sentencepiece", "tensorboardX"},
    "decoding": {"flax", "grain", "optax", "orbax", "sacrebleu", "sentencepiece", "tensorboardX"},
    "evaluation": {"flax", "optax", "orbax"},
    "report": {"flax", "jax", "optax", "orbax", "sacrebleu"},
}
"""Room -> packages from outside that would bring in what the room must not know."""

NOWHERE = {"tensorflow", "clu", "torch", "transformers"}
ONLY_ITS_ENTRY = {"tasks"}  # rooms of which others know the package, not the modules in it
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}

# Not /tmp: the documentation may well write there.
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:work|farm|root|home|Users)/")
REGISTRY = re.compile(r"https?://[\w.:@-]*(?:pypi|pythonhosted|artifactory|nexus)|(?:index-url|find-links)[ =]")
PIN = re.compile(r"[\w.-]+==[\w.]+( ; .+)?")


def sources() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def scripts() -> list[pathlib.Path]:
    return sorted([*ROOT.glob("*.py"), *(ROOT / "configs").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(text: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, also inside functions; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (f"{node.module}." if node.module else "") + alias.name


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules_imported(text: str) -> set[str]:
    """The modules of the package that a module takes something from, also inside functions."""
    names = {name for _, name in imports(text) if name.startswith("transformer.")}
    return {name if is_module(name) else name.rpartition(".")[0] for name in names}


def faults_of_import(room: str, name: str) -> str | None:
    """Why a room may not import a name, or None."""
    if name.startswith("."):
        return "write the whole name, transformer...."
    top, *rest = name.split(".")
    if top != "transformer":
        forbidden = top in MAY_NOT_IMPORT.get(room, set()) | NOWHERE
        return f"{room} must not import {top}" if forbidden else None
    target = rest[0] if rest and is_module(f"transformer.{rest[0]}") else "__init__"
    if target == room:
        return None
    if target not in MAY_IMPORT[room]:
        return f"{room} may import only {', '.join(sorted(MAY_IMPORT[room])) or 'nothing'} of transformer"
    if target in ONLY_ITS_ENTRY and len(rest) > 1 and is_module(f"transformer.{rest[0]}.{rest[1]}"):
        return f"{room} knows of {target} only what transformer/{target}/__init__.py offers"
    return None


def tracked() -> list[pathlib.Path]:
    """Text files that git holds or would take in."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed if (ROOT / name).is_file() and b"\0" not in (ROOT / name).read_bytes()]


def matches(paths: list[pathlib.Path], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if pattern.search(line)
    ]


def test_who_may_import_whom():
    assert {room_of(path) for path in sources()} <= set(MAY_IMPORT), "a new room needs a line in MAY_IMPORT"
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: {fault}"
        for path in sources()
        for line, name in imports(path.read_text(encoding="utf-8"))
        if (fault := faults_of_import(room_of(path), name))
    ]
    assert not found, "\n".join(found)


def test_no_module_imports_one_that_is_built_on_it():
    graph = {}
    for path in sources():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = modules_imported(path.read_text(encoding="utf-8"))
    assert "transformer.data.tokenizer" in graph["transformer.data.vocabularies"]
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises with the circle


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("models", "from transformer.data.store import Store"),
        ("models", "from transformer import data"),
        ("data", "import transformer.models.masks"),
        ("data", "import jax.numpy as jnp"),
        ("data", "def f():\n    from jax import numpy"),
        ("decoding", "from transformer.config import DecodingConfig"),
        ("tasks", "from transformer.training.state import State"),
        ("tasks", "from transformer import training"),
        ("training", "from transformer.tasks.translation import TranslationTask"),
        ("training", "from transformer.tasks import translation"),
        ("training", "from transformer.models.seq2seq import Seq2Seq"),
        ("models", "from . import masks"),
        ("models", "import transformer"),
        ("evaluation", "import tensorflow as tf"),
        ("evaluation", "from transformer.report import translations"),
        ("tasks", "from transformer.report.translations import write"),
        ("report", "import sacrebleu"),
    ],
)
def test_the_rules_refuse(room, statement):
    assert all(faults_of_import(room, name) for _, name in imports(statement))


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("training", "from transformer.tasks import make_task"),
        ("training", "from transformer.training import workdir"),
        ("tasks", "from transformer.models.seq2seq import Seq2Seq"),
        ("models", "import jax.numpy as jnp"),
        ("data", "from transformer.types import UserError"),
        ("report", "from transformer.evaluation.text_scores import score"),
    ],
)
def test_the_rules_allow(room, statement):
    assert not any(faults_of_import(room, name) for _, name in imports(statement))


def test_every_module_has_a_name_that_says_something():
    assert not [path for path in sources() + scripts() if {*path.relative_to(ROOT).with_suffix("").parts} & EMPTY_NAMES]


def test_no_default_hides_a_setting():
    """``.get(key, default)`` on a config answers a misspelt key with the default."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sources() + scripts()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and re.search("config|cfg", ast.unparse(node.func.value), re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_no_tracked_file_knows_this_machine():
    found = matches(tracked(), MACHINE_PATH) + matches(tracked(), REGISTRY)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_the_lock_holds_nothing_but_pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins and all(PIN.fullmatch(line) for line in pins), [line for line in pins if not PIN.fullmatch(line)]


def test_the_locks_agree():
    """Both are installed into one environment."""
    pins = [
        set((ROOT / name).read_text(encoding="utf-8").splitlines())
        for name in ("requirements.txt", "requirements-dev.txt")
    ]
    names = [{line.split("==")[0] for line in lines if not line.startswith("#")} for lines in pins]
    shared = names[0] & names[1] - {"colorama"}  # its marker differs: pytest wants it on Windows only
    assert shared
    for name in shared:
        of_each = [{line for line in lines if line.startswith(f"{name}==")} for lines in pins]
        assert of_each[0] == of_each[1]
