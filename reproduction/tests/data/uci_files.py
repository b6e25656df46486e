"""Tiny archives in the format of the UCI collection."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def write_tar(path: Path, members: dict[str, bytes], **special: str) -> Path:
    """Write a .tar.gz; `special` maps a member's name to its link target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
        for name, goal in special.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, goal
            archive.addfile(info)
    return path


def uci_members(
    name: str = "toy", *, n: int = 8, d: int = 2, n_test: int = 0, folder: str = "./"
) -> dict[str, bytes]:
    """The files of one table of the UCI collection: row i holds i, i + 0.5, ...

    Classes alternate between 0 and 1. The split takes even and odd rows, fold i has
    every fourth row from the i-th on as its test set.
    """
    described = [
        f"n_entradas= {d}", "n_clases= 2", f"n_arquivos= {1 + (n_test > 0)}",
        f"fich1= {name}_R.dat", f"n_patrons1= {n}",
    ]  # fmt: skip
    files = {f"{name}_R.dat": uci_rows(range(n), d)}
    if n_test:
        described += [f"fich2= {name}_test_R.dat", f"n_patrons2= {n_test}"]
        files[f"{name}_test_R.dat"] = uci_rows(range(100, 100 + n_test), d)
    described += [f"n_patrons_entrena= {n // 2}", f"n_patrons_valida= {n - n // 2}"]
    files[f"{name}.txt"] = "\n".join(described).encode() + b"\n"
    files["conxuntos.dat"] = uci_indices([range(0, n, 2), range(1, n, 2)])
    folds = []
    for i in range(4):
        folds += [[row for row in range(n) if row % 4 != i], range(i, n, 4)]
    files["conxuntos_kfold.dat"] = uci_indices(folds)
    return {f"{folder}{name}/{file}": raw for file, raw in files.items()}


def uci_rows(values: Iterable[int], d: int) -> bytes:
    lines = ["\t".join(["", *(f"f{j + 1}" for j in range(d)), "clase"])]
    for number, value in enumerate(values, start=1):
        inputs = (str(value + j / 2) for j in range(d))
        lines.append("\t".join([str(number), *inputs, str(value % 2)]))
    return "\n".join(lines).encode() + b"\n"


def uci_indices(lines: Iterable[Iterable[int]]) -> bytes:
    return "".join(" ".join(map(str, line)) + " \n" for line in lines).encode()
