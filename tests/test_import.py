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


def results():
    """One of everything that has a table."""
    import torch

    from normalign.robustness import masking_report, pgd

    model, x = torch.nn.Linear(2, 2), torch.randn(4, 2)
    y = model(x).argmax(1)
    return {
        "LocalGeometry": normalign.local_geometry(model, x),
        "LayerProfile": normalign.layer_profile(model, x),
        "Attack": pgd(model, x, y, radii=0.1, n_steps=1),
        "MaskingReport": masking_report(model, x, y, radii=0.1, n_steps=1),
    }


def test_tables_without_pandas_say_which_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for name, result in results().items():
        words = (
            rf"^{name}.to_frame: the frames extra .* named pandas\. pip install \"norm"
        )
        with pytest.raises(ModuleNotFoundError, match=words):
            result.to_frame()


@pytest.mark.parametrize("asked", ["plot_profile", "plot_centroids", "plots"])
def test_pictures_without_matplotlib_say_which_extra_to_install(asked):
    code = (
        "import sys\nsys.modules['matplotlib'] = None\nimport normalign\n"
        f"try:\n    normalign.{asked}\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        timeout=120, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.stdout.strip() == (
        "normalign.plots: the plots extra must be installed, got no module named "
        'matplotlib. pip install "normalign[plots]"'
    )


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
