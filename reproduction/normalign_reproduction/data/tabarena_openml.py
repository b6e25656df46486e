"""Tables of TabArena from OpenML: asked for, verified, and kept as parquet.

The ``openml`` package reads OpenML's description of a table; the files come through
:func:`normalign.data.download`, since the package waits without end for a silent
server and checks no parquet file. Its caches of pickles are never written or read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from normalign.data import RemoteFile, cache_dir, download
from normalign_reproduction._errors import complaint, require
from normalign_reproduction.data.arff_file import read_arff
from normalign_reproduction.data.tabarena import read_tabarena
from normalign_reproduction.data.tabarena_manifest import TabArenaEntry, entries
from normalign_reproduction.data.tabarena_table import table_from
from normalign_reproduction.data.tabarena_tasks import TabArenaFacts, tabarena_facts

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fetch_tabarena"]

_CALLEE = "fetch_tabarena"
_ONE_AT_A_TIME = Lock()  # the settings of the package are those of the process
_HOMES = ("XDG_CONFIG_HOME", "OPENML_CACHE_DIR")


def fetch_tabarena(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    server: str | None = None,
    attempts: int = 2,
    timeout: float = 30.0,
    progress: bool = False,
) -> Path:
    """Fetch one table of TabArena from OpenML and return the folder it is in.

    A table that was fetched before and reads well is left alone. Nothing gets its
    final name before the bytes have the checksum that OpenML states and the table
    has the rows, columns and classes of the task.

    Parameters
    ----------
    name : str
        One of :func:`tabarena_facts`.
    data_dir : path, optional
        Where to; by default the user's cache.
    server : str, optional
        Address of OpenML's XML interface; by default the one that the ``openml``
        package is set to.
    attempts : int, default=2
        Times a file is asked for.
    timeout : float, default=30.0
        Seconds of silence after which the server is given up.
    progress : bool, default=False
        Show a progress bar on stderr.

    Returns
    -------
    Path
        The folder with ``NAME.parquet`` and ``NAME.json``.

    Raises
    ------
    ConnectionError
        If OpenML cannot be reached, is silent, slow or cut short, or sends other
        bytes or another table than it should.
    ValueError
        If there is no such task, or `attempts` or `timeout` is not positive.
    """
    known = tabarena_facts()
    require(
        name in known, _CALLEE, "name", f"one of the {len(known)} tasks of TabArena",
        repr(name), "`normalign_reproduction.data.tabarena_facts()` lists them.",
    )  # fmt: skip
    require(attempts >= 1, _CALLEE, "attempts", "at least 1", attempts)
    require(timeout > 0, _CALLEE, "timeout", "positive", timeout)
    place = cache_dir() if data_dir is None else Path(data_dir).expanduser()
    folder, facts = place / "tabarena", known[name]
    if _is_kept(folder, name):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".openml-", dir=folder) as scratch:
        raw = Path(scratch) / "table.arff"
        with _ONE_AT_A_TIME, _openml(Path(scratch), server) as openml:
            url, md5 = _description(openml, facts, attempts=attempts, timeout=timeout)
        download(
            _remote(facts, md5), [url] * attempts, raw, timeout=timeout,
            progress=progress,
        )  # fmt: skip
        frame, entry = _checked(facts, raw)
        _keep(frame, entry, folder)
    return folder


def _is_kept(folder: Path, name: str) -> bool:
    if not (folder / f"{name}.json").is_file():
        return False
    try:
        read_tabarena(folder, entries(_CALLEE, folder)[name], callee=_CALLEE)
    except (ValueError, KeyError):  # damaged since: fetched anew
        return False
    return True


@contextmanager
def _openml(scratch: Path, server: str | None) -> Iterator[ModuleType]:
    """The ``openml`` package, kept out of the home folder while it is imported."""
    with nullcontext() if "openml" in sys.modules else _elsewhere(scratch):
        import openml
    config: Any = openml.config
    before = config.server, config.get_config_as_dict()["cachedir"]
    config.server = server or config.server
    config.set_root_cache_directory(scratch)
    try:
        yield openml
    finally:
        config.server = before[0]
        config.set_root_cache_directory(before[1])


@contextmanager
def _elsewhere(folder: Path) -> Iterator[None]:
    """The package makes folders for settings and cache when it is first imported."""
    before = {name: os.environ.get(name) for name in _HOMES}
    os.environ.update(dict.fromkeys(_HOMES, str(folder)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _description(
    openml: Any, facts: TabArenaFacts, *, attempts: int, timeout: float
) -> tuple[str, str]:
    """Address and checksum of the table's file, as OpenML describes it.

    The description's text is put where the package looks before it asks the server,
    and is looked through first: what the package cannot read it would ask for
    without a time limit.
    """
    number = facts.openml_dataset_id
    folder = Path(openml.config.get_cache_directory()) / f"datasets/{number}"
    folder.mkdir(parents=True)
    path = folder / "description.xml"
    url = f"{openml.config.server.rstrip('/')}/data/{number}"
    download(_remote(facts, ""), [url] * attempts, path, timeout=timeout)
    _check_description(facts, path, url)
    described = openml.datasets.get_dataset(
        number,
        download_data=False,
        download_qualities=False,
        download_features_meta_data=False,
        cache_format="feather",
    )
    digits = set("0123456789abcdef")
    md5 = str(described.md5_checksum or "").lower()
    _require_true(
        len(md5) == 32 and set(md5) <= digits, facts, "with a checksum", repr(md5), url
    )
    address = urlsplit(str(described.url))
    _require_true(
        address.scheme in ("http", "https"), facts, "with the address of a file",
        repr(described.url), url,
    )  # fmt: skip
    return str(described.url), md5


def _check_description(facts: TabArenaFacts, path: Path, url: str) -> None:
    from xml.parsers.expat import ExpatError

    import xmltodict

    try:
        parsed = xmltodict.parse(path.read_bytes())
    except (ExpatError, ValueError) as error:
        _require_true(False, facts, "in XML", str(error), url)
        return
    fields = parsed.get("oml:data_set_description")
    fields = fields if isinstance(fields, dict) else {}
    needed = ("oml:id", "oml:name", "oml:version", "oml:format", "oml:url")
    missing = [key for key in needed if not isinstance(fields.get(key), str)]
    _require_true(
        not missing, facts, f"with {', '.join(needed)}",
        f"one without {', '.join(missing)}", url,
    )  # fmt: skip
    _require_true(
        fields["oml:id"] == str(facts.openml_dataset_id), facts,
        f"of table {facts.openml_dataset_id}", f"one of {fields['oml:id']!r}", url,
    )  # fmt: skip
    _require_true(
        fields["oml:version"].isdecimal(), facts, "with a version",
        repr(fields["oml:version"]), url,
    )  # fmt: skip


def _require_true(
    condition: bool, facts: TabArenaFacts, rule: str, got: str, url: str
) -> None:
    """A server that says what cannot be: as if it could not be reached."""
    if not condition:
        raise ConnectionError(
            complaint(
                _CALLEE, "OpenML's answer", f"a description of {facts.name} {rule}",
                f"{got} from {url}",
            )
        )  # fmt: skip


def _remote(facts: TabArenaFacts, md5: str) -> RemoteFile:
    # the path is where a copy may lie instead, for the complaint
    return RemoteFile(f"tabarena/{facts.name}.parquet", size=0, md5=md5)


def _checked(facts: TabArenaFacts, path: Path) -> tuple[pd.DataFrame, TabArenaEntry]:
    entry = TabArenaEntry(
        name=facts.name,
        file=f"{facts.name}.parquet",
        target=facts.target,
        problem_type=facts.problem_type,
        n_rows=facts.n_rows,
        n_inputs=facts.n_inputs,
        n_classes=facts.n_classes,
        openml_dataset_id=facts.openml_dataset_id,
        openml_task_id=facts.openml_task_id,
        licence=facts.licence,
        matches_tabarena=True,
        note="",
    )
    try:
        frame = read_arff(path, callee=_CALLEE, name=f"{facts.name}.arff")
        table_from(_CALLEE, frame, entry)
    except ValueError as error:  # the server's doing, not the caller's
        raise ConnectionError(str(error)) from error
    return frame, entry


def _keep(frame: pd.DataFrame, entry: TabArenaEntry, folder: Path) -> None:
    """Table first, entry last: a table without an entry does not count."""
    path = folder / entry.file
    part = folder / f".{entry.file}.{uuid4().hex}.part"
    try:
        frame.to_parquet(part, index=False)
        os.replace(part, path)
        part.write_text(entry.as_json(), "utf-8")
        os.replace(part, path.with_suffix(".json"))
    finally:
        part.unlink(missing_ok=True)
