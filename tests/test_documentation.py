"""Every command that the documentation shows is understood by the real scripts, and every file it names is there."""

import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# The scripts' flags are global: each command is parsed in a fork of a process that has imported what all need.
PARSE = """
import json, os, runpy, sys
from transformer import commands
from transformer.config import Config

def parse(main):
    commands.parse_flags(sys.argv)
    script = main.__globals__
    if "OVERRIDES" in script:
        commands.override(Config(), script["OVERRIDES"])
    else:
        commands.read_config(script["CONFIG"])

commands.run = parse
for command in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        sys.argv = command
        try:
            runpy.run_path(command[0], run_name="__main__")
        except BaseException as error:
            print(command, error, flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def commands() -> list[list[str]]:
    """The words of each line of the fenced blocks, continued lines joined."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(XLA_FLAGS=\S+ |echo .*\| )?(\.venv/bin/)?(python|make) ", line):
                    line = re.sub(r"(--config=\S+\.py):runs/\S+", r"\1", line)  # a workdir that no test has made
                    found.append(shlex.split(line, comments=True))
    return found


def after(words: list[str], names: set[str]) -> list[str]:
    """The arguments of the first word of these names, up to a redirection."""
    start = next((i + 1 for i, word in enumerate(words) if word.rpartition("/")[2] in names), len(words))
    end = next((i for i, word in enumerate(words) if i >= start and word in "|<>"), len(words))
    return words[start:end]


def test_the_scripts_understand_every_command_that_is_shown():
    scripts = [
        arguments
        for words in commands()
        if (arguments := after(words, {"python"})) and arguments[0] in ("train.py", "eval.py", "generate.py")
    ]
    assert len(scripts) > 15
    result = subprocess.run(
        [sys.executable, "-c", PARSE], input=json.dumps(scripts), cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0 and not result.stdout, result.stdout + result.stderr


def test_modules_and_targets_that_are_shown_are_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    missing = []
    for words in commands():
        python = after(words, {"python"})
        if python[:1] == ["-m"] and python[1].startswith("tests."):
            python = [python[1].replace(".", "/") + ".py"]
        missing += [name for name in python[:1] if name.endswith(".py") and not (ROOT / name).is_file()]
        missing += [name for name in after(words, {"make"}) if "=" not in name and name not in targets]
    assert not missing


def test_keys_that_may_change_when_a_run_goes_on_are_all_named():
    from transformer.config import HARMLESS_KEYS, SCHEDULES_FREE_OF_NUM_STEPS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("### Going on") : text.index("| exit code |")]
    assert not [name for name in (*HARMLESS_KEYS, *SCHEDULES_FREE_OF_NUM_STEPS) if f"`{name}`" not in section]


def test_the_sizes_of_the_reading_order_are_near():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## Reading order") : text.index("Then [docs/extending.md]")]
    package, wrong, found = ROOT / "transformer", [], 0
    for line in section.splitlines():
        folder = package
        for name, size in re.findall(r"`([\w/]+\.py)` (\d+)", line):
            places = [folder / name, folder.parent / name, ROOT / name, package / name]
            path = next(place for place in places if place.is_file())
            folder = path.parent
            lines = len(path.read_text(encoding="utf-8").splitlines())
            found += 1
            if abs(lines - int(size)) > max(20, 0.15 * lines):
                wrong.append(f"{name}: {lines}, not {size}")
    assert not wrong and found > 30


def test_files_and_keys_that_are_named_are_there():
    from transformer.config import Config, flatten

    keys = {key for key, _ in flatten(Config())}
    sections = {key.split(".")[0] for key in keys if "." in key}
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:transformer|tests|docs|configs|benchmarks)/[\w/]+\.\w+)`", text):
            if not (ROOT / name).exists() and f"# {name}" not in text:  # what extending.md is about to add
                missing.append(f"{page.name}: {name}")
        for name in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            if not (page.parent / name).exists():
                missing.append(f"{page.name}: {name}")
        for key in re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_]+)(?:=[^`]*)?`", text):
            if key not in keys and not (ROOT / "transformer" / key.replace(".", "/", 1)).exists():
                missing.append(f"{page.name}: {key}")
    assert not missing
