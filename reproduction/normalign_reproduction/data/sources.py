"""The two collections of tables: where they come from."""

from __future__ import annotations

from normalign.data import RemoteFile, Source

__all__ = ["TABARENA", "UCI"]

# Its authors published neither size nor checksum, so that nothing can be downloaded on
# trust: a copy is put in place by hand, and every copy counts as not exact.
UCI = Source(
    name="uci",
    title="121 classification tables of the UCI repository, 10 to 130064 rows",
    files=(RemoteFile("uci/data.tar.gz", size=0, md5=""),),
    mirrors=(),
    licence="as each table of the UCI repository",
    citation="Fernández-Delgado, Cernadas, Barro, Amorim: Do we need hundreds of "
    "classifiers to solve real world classification problems? (JMLR 15, 2014)",
    page="http://persoal.citius.usc.es/manuel.fernandez.delgado/papers/jmlr/",
)

# Every table has a checksum of its own, which OpenML states when it is asked for it.
TABARENA = Source(
    name="tabarena",
    title="51 tables of TabArena v0.1, 748 to 150000 rows",
    files=(),
    mirrors=("https://www.openml.org/api/v1/xml",),
    licence="as each table says",
    citation="Erickson et al.: TabArena: a living benchmark for machine learning on "
    "tabular data (2025)",
    page="https://tabarena.ai",
)
