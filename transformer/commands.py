"""What the scripts share: flags, logging to standard error, and mistakes shown without a traceback."""

import dataclasses
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import absl.logging
from absl import app, flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from transformer.config import (
    COMPUTATION_KEYS,
    HARMLESS_KEYS,
    Config,
    MeshConfig,
    default_config,
    flatten,
    from_config_dict,
    to_config_dict,
)
from transformer.progress import ProgressHandler
from transformer.types import UserError, nearest

USER_ERROR_EXIT_CODE = 2
ConfigFlag = flags.FlagHolder[Any]


class _OrNone(flags.ArgumentParser[Any]):
    """Reads None as such, where ml_collections would read it as a string or refuse it."""

    def __init__(self, parser: flags.ArgumentParser[Any]):
        self.parser = parser
        self.syntactic_help = parser.syntactic_help

    def parse(self, argument: Any) -> Any:
        return None if argument == "None" else self.parser.parse(argument)

    def flag_type(self) -> str:
        return self.parser.flag_type()


class _BareWords(tuple_parser.TupleParser):
    """Takes local,global as it takes local,local: ml_collections evaluates it, and a keyword of Python is an error."""

    def parse(self, argument: Any) -> Any:
        try:
            return super().parse(argument)
        except ValueError:
            if argument.startswith(("(", "[")):
                raise
            return (argument,)


config_flags.register_flag_parser_for_type(tuple, _BareWords())

# So that --config.training.gradient_clip=None takes away what a config file sets. Keys that cannot be None say so.
for _kind, _parser in ((int, flags.IntegerParser()), (float, flags.FloatParser()), (str, flags.ArgumentParser())):
    config_flags.register_flag_parser_for_type(_kind, _OrNone(_parser))


def run(main: Callable[[], int | None]) -> None:
    """Parse the flags, call ``main``, which reads them, and exit with what it gives (None is 0)."""
    handler = ProgressHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("transformer")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # Abseil would print every line once more
    absl.logging.set_verbosity(absl.logging.WARNING)

    def parse(arguments: list[str]) -> list[str]:
        with mistakes_shown():
            return parse_flags(arguments)

    def call(arguments: list[str]) -> None:
        with mistakes_shown():
            if len(arguments) > 1:
                raise UserError(f"unexpected argument {arguments[1]!r}; every option is written --name=value")
            sys.exit(main())

    app.run(call, flags_parser=parse)


class mistakes_shown:
    """Turns what is the user's to mend into one message and exit code 2, and a closed pipe into a quiet end."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr)
            sys.exit(USER_ERROR_EXIT_CODE)
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
            sys.exit(1)


def parse_flags(arguments: list[str]) -> list[str]:
    """Set the flags from the command line.

    Raises:
      UserError: for an unknown flag or config key, with the nearest name, or a value of the wrong type.
    """
    keys = dict(flatten(Config()))
    for argument in arguments[1:]:
        found = re.match(r"--?config\.([\w.]+)", argument)
        if found and found[1] not in keys:
            raise UserError(f"unknown config key {found[1]}{nearest(found[1], keys)}")
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        raise UserError(str(error)) from None
    except (AttributeError, TypeError) as error:
        raise _in_config_file(error) from error


def read_config(flag: ConfigFlag) -> Config:
    """The config of a file, with what the command line overrides, checked.

    Raises:
      UserError: if the file is not there, or sets a key that is not there or to a wrong type.
    """
    path = config_flags.get_config_filename(flags.FLAGS[flag.name])
    if not Path(path.partition(":")[0]).is_file():
        raise UserError(f"--config={path}: there is no such file")
    try:
        return from_config_dict(flag.value)
    except (AttributeError, TypeError) as error:
        raise _in_config_file(error) from error


def config_name(flag: ConfigFlag) -> str:
    """The name of a config file, wherever it lies, with its variant: ``wmt14_en_de.py:base``."""
    path, colon, variant = config_flags.get_config_filename(flags.FLAGS[flag.name]).partition(":")
    return Path(path).name + colon + variant


def _in_config_file(error: Exception) -> Exception:
    """A ConfigDict's complaint in one line; other errors of a config file's code stay as they are."""
    message = str(error)
    if "config is locked" not in message and "Could not override field" not in message:
        return error
    key = re.search(r'Key "(\w+)" does not exist', message)
    if key:
        names = [name.rpartition(".")[2] for name, _ in flatten(Config())]
        return UserError(f"--config: there is no key {key[1]}{nearest(key[1], names)}")
    return UserError(f"--config: {message}")


def define_overrides() -> ConfigFlag:
    """``--config.SECTION.KEY=VALUE`` for scripts that take the config from a workdir."""
    return config_flags.DEFINE_config_dict("config", default_config(), "--config.SECTION.KEY=VALUE overrides a key")


def override(config: Config, flag: ConfigFlag) -> Config:
    """The config of a run with what the command line overrides.

    Its mesh is not the run's, which trained on other machines perhaps, but this one's devices.

    Raises:
      UserError: for a key that parameters or data of the run depend on.
    """
    here = dataclasses.replace(config, mesh=MeshConfig())
    values, allowed = to_config_dict(here), (*HARMLESS_KEYS, *COMPUTATION_KEYS)
    for key, value in config_flags.get_override_values(flags.FLAGS[flag.name]).items():
        if not any(key == name or key.startswith(name + ".") for name in allowed):
            raise UserError(f"{key} belongs to the run and cannot be overridden here; what can: {', '.join(allowed)}")
        values.update_from_flattened_dict({key: value})
    return from_config_dict(values)
