"""TabArena's tables from OpenML: downloaded, checked, and written as Parquet."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4
from xml.etree import ElementTree

from normalign.data import RemoteFile, cache_dir, download
from normalign_reproduction.data._tabarena import (
    TABARENA,
    TabArenaEntry,
    TabArenaFacts,
    read_entries,
    read_table,
    tabarena_facts,
    table_from_frame,
)

if TYPE_CHECKING:
    import pandas as pd


def fetch_tabarena(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    server: str | None = None,
    attempts: int = 2,
    timeout: float = 30.0,
    progress: bool = False,
) -> Path:
    """Download one table of TabArena from OpenML and return its folder.

    An intact table that is already there is kept. Files get their final names only
    after the download has OpenML's checksum, and the table the rows, columns and
    classes of the task.

    Parameters
    ----------
    name : str
        One of :func:`tabarena_facts`.
    data_dir : path, optional
        By default the user's cache.
    server : str, optional
        Address of OpenML's XML interface.
    attempts : int, default=2
        How often a file is requested.
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
        If OpenML cannot be reached, or sends other bytes or another table.
    ValueError
        If there is no such task, or `attempts` or `timeout` is not positive.
    """
    if name not in tabarena_facts():
        raise ValueError(
            f"fetch_tabarena: name must be one of the {len(tabarena_facts())} tasks of "
            f"TabArena, got {name!r}. See normalign_reproduction.data.tabarena_facts()."
        )
    for argument, value in (("attempts", attempts), ("timeout", timeout)):
        if value <= 0:
            raise ValueError(
                f"fetch_tabarena: {argument} must be positive, got {value}."
            )
    place = cache_dir() if data_dir is None else Path(data_dir).expanduser()
    folder, facts = place / "tabarena", tabarena_facts()[name]
    if (folder / f"{name}.json").is_file():
        try:
            read_table(folder, read_entries(folder)[name])
        except (ValueError, KeyError):  # damaged since it was downloaded
            pass
        else:
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    entry = TabArenaEntry(
        **asdict(facts), file=f"{name}.parquet", matches_tabarena=True, note=""
    )
    file = f"tabarena/{entry.file}"  # named in errors: where a copy may be put instead
    address = f"{(server or TABARENA.mirrors[0]).rstrip('/')}/data"
    address = f"{address}/{facts.openml_dataset_id}"
    with TemporaryDirectory(prefix=".openml-", dir=folder) as scratch:
        description, raw = (
            Path(scratch, "description.xml"),
            Path(scratch, f"{name}.arff"),
        )
        anything = RemoteFile(file, size=0, md5="")
        download(anything, [address] * attempts, description, timeout=timeout)
        url, md5 = _read_description(facts, description, address)
        table = RemoteFile(file, size=0, md5=md5)
        download(table, [url] * attempts, raw, timeout=timeout, progress=progress)
        try:
            frame = read_arff(raw)
            table_from_frame(frame, entry)
        except ValueError as error:
            raise ConnectionError(
                f"fetch_tabarena: {url} sent another table: {error}"
            ) from error
    # The entry last: a table without one does not count.
    part = folder / f".{entry.file}.{uuid4().hex}.part"
    try:
        frame.to_parquet(part, index=False)
        os.replace(part, folder / entry.file)
        part.write_text(entry.to_json(), "utf-8")
        os.replace(part, folder / f"{name}.json")
    finally:
        part.unlink(missing_ok=True)
    return folder


def _read_description(
    facts: TabArenaFacts, path: Path, address: str
) -> tuple[str, str]:
    """Return address and checksum of a table's file from OpenML's description."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise _bad_description(facts, "in XML", str(error), address) from error
    number, url, md5 = (
        (root.findtext(f"{{*}}{key}") or "").strip()
        for key in ("id", "url", "md5_checksum")
    )
    if number != str(facts.openml_dataset_id):
        rule = f"of table {facts.openml_dataset_id}"
        raise _bad_description(facts, rule, f"one of {number!r}", address)
    if not re.match("https?://", url):
        raise _bad_description(facts, "with the address of a file", repr(url), address)
    if not re.fullmatch("[0-9a-f]{32}", md5.lower()):
        raise _bad_description(facts, "with a checksum", repr(md5), address)
    return url, md5.lower()


def _bad_description(
    facts: TabArenaFacts, rule: str, got: str, address: str
) -> ConnectionError:
    return ConnectionError(
        f"fetch_tabarena: OpenML's answer must be a description of {facts.name} "
        f"{rule}, got {got} from {address}."
    )


def read_arff(path: Path) -> pd.DataFrame:
    """Read an ARFF file: numbers as float64, nominal values and text as categories."""
    import arff
    import pandas as pd

    try:
        with path.open(encoding="utf-8") as stream:
            content = arff.load(stream)
    except (arff.ArffException, ValueError) as error:
        raise ValueError(
            f"{path.name} must be an ARFF file, got one with an error: {error}"
        ) from error
    rows, columns = content["data"], {}
    for i, (name, kind) in enumerate(content["attributes"]):
        values = [row[i] for row in rows]
        if not isinstance(kind, str):
            columns[name] = pd.Categorical(values, categories=kind)
        elif kind in ("NUMERIC", "REAL", "INTEGER"):
            columns[name] = pd.Series(values, dtype="float64")
        else:
            columns[name] = pd.Series(values, dtype="object").astype("category")
    return pd.DataFrame(columns)
