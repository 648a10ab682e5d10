"""Data sets of TensorFlow Datasets: found where they are prepared, or prepared there.

``data.directory`` names one as ``NAME``, ``NAME/CONFIG``, ``NAME/CONFIG/VERSION`` or ``NAME/CONFIG:VERSION`` below
``TFDS_DATA_DIR`` (``~/tensorflow_datasets`` where that is not set), or is the folder of a prepared one. Both may lie in
a bucket (``gs://``); then the data set is copied to the cache, on local disk.

A data set is prepared once on each disk: the processes and hosts that share it wait for the first. With
``TFDS_DATA_DIR`` in a bucket, which has no locks, hosts that start together all prepare it, and the first that is done
puts it there; a dry run on one of them beforehand spares the others the work.

Preparing needs TensorFlow, which runs in a process of its own and sees no accelerator. Reading needs none.
"""

import importlib
import importlib.util
import json
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import DataConfig
from transformer.data.cache import cache_folder, writing_cache
from transformer.data.locks import locked
from transformer.data.processes import WHY_ENDED, start_pool, terminate
from transformer.data.text_files import names_near
from transformer.paths import AnyPath, as_path, copy_file, file_size, files_below, is_remote, modified, reaching
from transformer.progress import progress
from transformer.types import UserError, nearest

INSTALL = "pip install -r requirements-tfds.txt"
INFO = "dataset_info.json"  # what every prepared data set has, written last
DEFAULT = ".config/metadata.json"  # which config of a data set is meant where none is named
NAME = re.compile(r"([a-z]\w*)(?:/([A-Za-z][\w.-]*))?(?:[:/](\d+\.\d+\.\d+))?")

logger = logging.getLogger(__name__)


class DataSetName(NamedTuple):
    """``wmt14_translate/de-en:1.0.0`` in its parts; the last two may be None."""

    name: str
    config: str | None
    version: str | None

    @classmethod
    def parse(cls, text: str) -> "DataSetName | None":
        """The parts of a name; None if the text is none."""
        found = NAME.fullmatch(text)
        return cls(*found.groups()) if found else None

    def __str__(self) -> str:
        return "/".join(filter(None, (self.name, self.config))) + (f":{self.version}" if self.version else "")


def open_builder(config: DataConfig, features: Sequence[str]) -> tuple[Any, Any]:
    """The package, and its builder of the data set that ``data.directory`` names, which is prepared if it was not.

    Args:
      features: names that its examples must have.

    Raises:
      UserError: there is no such data set, it lacks a feature, its files are no ArrayRecord, or it cannot be prepared.
    """
    tfds = _package()
    directory = config.directory
    if directory is None:
        raise UserError(
            "data.directory is not set; data.source=tfds needs NAME/CONFIG, as wmt14_translate/de-en, or the folder of "
            "a prepared data set: --config.data.directory=NAME/CONFIG"
        )
    with reaching(directory if is_remote(directory) else data_dir()):
        folder = _folder(config, directory, features)
    try:
        builder = tfds.builder_from_directory(folder)
        formats = {str(one.value) for one in builder.info.available_file_formats()}
        known = list(builder.info.features)
    except Exception as error:  # the package has no common base of what it raises
        raise UserError(f"data.directory={directory}: {folder} cannot be read as a data set: {error}") from error
    if "array_record" not in formats:
        raise UserError(
            f"data.directory={directory}: {folder} was prepared as {', '.join(sorted(formats))}, which only TensorFlow "
            "reads; prepare it anew with TFDS_DATA_DIR set to another folder, or convert it: tfds convert_format "
            f"--dataset_version_dir={folder} --out_file_format=array_record"
        )
    require_features(directory, known, features)
    return tfds, builder


def require_prepared(config: DataConfig) -> None:
    """Raise a ``UserError`` if :func:`open_builder` would have to prepare the data set first."""
    if config.source != "tfds" or config.directory is None:
        return
    name = DataSetName.parse(config.directory)
    if name is None or (as_path(config.directory) / INFO).exists() or _prepared(as_path(data_dir()), name):
        return
    raise UserError(
        f"data.directory={name} is not prepared in TFDS_DATA_DIR={data_dir()}, and preparing it may take hours: "
        "train.py without --dry_run does that first. Other text can be looked at until then: "
        "--config.data.source=files --config.data.directory=DIR"
    )


def require_features(directory: str, known: Sequence[str], needed: Sequence[str]) -> None:
    """Raise a ``UserError`` for a feature that the examples do not have."""
    for name in needed:
        if name not in known:
            raise UserError(
                f"data.directory={directory} has examples of {', '.join(known)}, not of {name}"
                f"{nearest(name, dict.fromkeys(known))}; for pairs these are the names of the languages "
                "(data.source_language, data.target_language)"
            )


def is_prepared(directory: str) -> bool:
    """Whether the data set that ``data.directory`` names is there, so that opening it prepares none."""
    name = DataSetName.parse(directory)
    if (as_path(directory) / INFO).exists():
        return True
    return name is not None and _prepared(as_path(data_dir()), name) is not None


def data_dir() -> str:
    """Where prepared data sets are: ``TFDS_DATA_DIR``, or the package's default."""
    return os.environ.get("TFDS_DATA_DIR") or str(Path.home() / "tensorflow_datasets")


def _folder(config: DataConfig, directory: str, features: Sequence[str]) -> Path:
    """The folder of the prepared data set, on local disk."""
    given = as_path(directory)
    if (given / INFO).exists():
        return _on_disk(given, config)
    name = DataSetName.parse(directory)
    root = as_path(data_dir())
    found = _prepared(root, name) if name else None
    if found:
        return _on_disk(found, config)
    versions = [os.fspath(path.parent) for path in sorted(given.glob(f"*/{INFO}"))]
    if versions:
        raise UserError(
            f"data.directory={directory} is no prepared data set but a folder that holds {', '.join(versions)}; give "
            "one of these"
        )
    if name is None:
        near = "" if is_remote(given) else names_near(Path(directory))
        raise UserError(
            f"data.directory={directory} is neither the folder of a prepared data set (it holds no {INFO}) nor the "
            f"name of one, NAME/CONFIG or NAME/CONFIG:VERSION{near}"
        )
    return _prepare(root, name, config, features)


def _prepared(root: AnyPath, name: DataSetName) -> AnyPath:
    """The folder of the newest version that is prepared, or of the one that is named; None if there is none.

    Where no config is named, it is the one that the package noted as the default, if the data set has configs.
    """
    folder, default = root / name.name, root / name.name / DEFAULT
    if name.config:
        folder = folder / name.config
    elif default.exists():
        folder = folder / json.loads(default.read_text())["default_config_name"]
    if name.version:
        return folder / name.version if (folder / name.version / INFO).exists() else None
    if not folder.exists():
        return None
    versions = [path for path in folder.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    versions = [path for path in versions if (path / INFO).exists()]
    return max(versions, key=lambda path: tuple(map(int, path.name.split("."))), default=None)


def _prepare(root: AnyPath, name: DataSetName, config: DataConfig, features: Sequence[str]) -> Path:
    """Prepare a data set while others wait; gives its folder on local disk."""
    place = _local(root, config)
    lock = place / f".{name.name}.lock"  # of all its configs: one of them may be meant without being named
    try:
        if not lock.exists():  # nobody prepares it whom we could wait for
            _require_tensorflow(name, root)
        place.mkdir(parents=True, exist_ok=True)
        with locked(lock, f"preparing {name} in {place}", config.wait_minutes):
            found = _prepared(place, name)  # the process that we waited for has made it
            if found is None:
                _require_tensorflow(name, root)
                logger.info("preparing %s in %s, where downloads are kept", name, place)
                found = Path(_in_own_process(str(name), str(place), tuple(features)))
    except OSError as error:
        raise UserError(
            f"{name} cannot be prepared in {place}: {error.strerror or error}; set TFDS_DATA_DIR to a folder on a disk "
            "with room"
        ) from error
    if is_remote(root):
        _put(found, place, root, name)
    return found


def _put(found: Path, place: Path, root: AnyPath, name: DataSetName) -> None:
    """Copy what was prepared to the bucket, if no other host has; what goes wrong there is a warning."""
    try:
        with reaching(root):
            if _prepared(root, name):
                return
            default = Path(name.name) / DEFAULT
            if (place / default).exists():
                copy_file(place / default, root / default.as_posix())
            _copy_all(found, root / found.relative_to(place).as_posix())
    except UserError as error:
        logger.warning("%s stays in %s and was not copied: %s", name, place, error)


def _require_tensorflow(name: DataSetName, root: AnyPath) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            f"data.directory={name} is not prepared in TFDS_DATA_DIR={root}, and preparing it needs TensorFlow: "
            f"{INSTALL}; what is prepared is then read without it"
        )


def _in_own_process(name: str, root: str, features: tuple[str, ...]) -> str:
    with start_pool(1, _hide_accelerators) as pool:
        try:
            return pool.submit(download_and_prepare, name, root, features).result()
        except BrokenProcessPool as error:
            raise UserError(f"the process that prepares {name} {WHY_ENDED}") from error
        except BaseException:  # a Ctrl-C, for which the block would wait until all is fetched
            terminate(pool)
            raise


def _hide_accelerators() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def download_and_prepare(name: str, root: str, features: tuple[str, ...] = ()) -> str:
    """Prepare a data set as ArrayRecord, with TensorFlow, which is why it is called in a process of its own.

    Args:
      name: NAME, NAME/CONFIG or NAME/CONFIG:VERSION.
      root: the folder of all data sets.
      features: names that its examples must have.

    Returns:
      The folder of the prepared data set.

    Raises:
      UserError: there is no such data set, it lacks a feature, or its files cannot be fetched.
    """
    tfds = _package()
    try:
        builder = tfds.builder(name, data_dir=root)
    except Exception as error:
        message = str(error).strip().split("\n")[0]
        raise UserError(f"data.directory={name} is no data set that can be prepared: {message}") from error
    require_features(name, list(builder.info.features), features)
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:
        raise UserError(
            f"{name} could not be prepared in {root}: {type(error).__name__}: {error}. The same command goes on from "
            f"what was fetched; archives fetched by hand belong in {root}/downloads/manual, under their own names"
        ) from error
    return os.fspath(builder.data_dir)


def _package() -> Any:
    try:
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise UserError(f"data.source=tfds needs tensorflow_datasets: {INSTALL}") from error


# Buckets


def _local(path: AnyPath, config: DataConfig) -> Path:
    """The folder itself, or the one in the cache that stands for a folder in a bucket."""
    return cache_folder(config) / "tfds" / os.fspath(path).partition("://")[2] if is_remote(path) else Path(path)


def _on_disk(folder: AnyPath, config: DataConfig) -> Path:
    """The folder of a prepared data set, copied to local disk if it is elsewhere."""
    local = _local(folder, config)
    if is_remote(folder):
        with writing_cache(local), reaching(folder):
            local.parent.mkdir(parents=True, exist_ok=True)
            with locked(local.with_name(f"{local.name}.lock"), f"copying {folder}"):
                _copy_all(folder, local)
    return local


def _copy_all(source: AnyPath, target: AnyPath) -> None:
    """Copy a folder; what tells that it is whole comes last.

    The file on local disk gets the time of the one in the bucket: as long as time and size are the same, so are they.
    """
    files = sorted(files_below(source), key=lambda path: path.name == INFO)
    for path in progress(files, f"copying {source}", len(files), "file"):
        copy = target / path.relative_to(source).as_posix()
        time = modified(path)
        if copy.exists() and (file_size(copy), modified(copy)) == (file_size(path), time):
            continue
        copy_file(path, copy)
        if is_remote(target):
            os.utime(path, (modified(copy), modified(copy)))
        else:
            os.utime(copy, (time, time))
