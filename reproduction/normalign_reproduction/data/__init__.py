"""The tables of the paper: the UCI collection of 121 tables, and TabArena.

Both are looked for in ``data_dir=``, ``$NORMALIGN_DATA`` and the user's cache. TabArena
is downloaded from OpenML. The UCI collection, which has no published checksum, is not.
"""

from normalign_reproduction.data._tabarena import (
    METRICS,
    TABARENA,
    TabArenaFacts,
    TabArenaTable,
    load_tabarena,
    tabarena_entries,
    tabarena_facts,
    tabarena_names,
)
from normalign_reproduction.data._uci import UCI, UCICollection, UCITable, load_uci

__all__ = [
    "METRICS",
    "TABARENA",
    "UCI",
    "TabArenaFacts",
    "TabArenaTable",
    "UCICollection",
    "UCITable",
    "load_tabarena",
    "load_uci",
    "tabarena_entries",
    "tabarena_facts",
    "tabarena_names",
]
