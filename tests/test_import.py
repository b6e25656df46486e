import os
import subprocess
import sys
from pathlib import Path

import pytest

import normalign

SOURCE = Path(normalign.__file__).parents[1]


def imported_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        timeout=120, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_normalign_imports_nothing_heavy():
    heavy = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pandas", "rich"}
    assert not heavy & imported_by("import normalign; dir(normalign)")


def test_measuring_and_loading_import_no_extras():
    extras = {"sklearn", "matplotlib", "pandas", "pooch", "mlxtend", "safetensors"}
    statement = "import normalign.data\nfrom normalign import local_geometry"
    assert not extras & imported_by(statement)


@pytest.mark.parametrize("name", normalign.__all__)
def test_every_public_name_resolves(name):
    assert getattr(normalign, name) is not None


def test_every_folder_keeps_its_promises():
    for folder in normalign._FOLDERS:
        module = getattr(normalign, folder)
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"normalign.{folder}.{name}"


def test_type_checkers_see_the_same_names():
    stub = Path(normalign.__file__).read_text().partition("if TYPE_CHECKING:")[2]
    seen = {line.split()[0] for line in stub.splitlines() if " as " in line}
    assert seen == set(normalign.__all__) - {"__version__"}


def test_dir_lists_the_public_names():
    assert dir(normalign) == sorted(normalign.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nromal_alignment'"):
        _ = normalign.nromal_alignment
