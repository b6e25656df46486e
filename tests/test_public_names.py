"""Every public name is what it claims to be, whatever was imported before it."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import normalign
from tests.public_api import folders, kind_of

SOURCE = Path(normalign.__file__).parents[1]

PROGRAM = """
import importlib, json, pkgutil, sys, types, warnings
warnings.simplefilter("ignore")
order = sys.argv[1]
import normalign
sys.path.insert(0, sys.argv[2])
from tests.public_api import folders, kind_of

def names():
    return {
        f"{folder}.{name}": kind_of(getattr(importlib.import_module(folder), name))
        for folder in folders() for name in importlib.import_module(folder).__all__
    }

def submodules():
    for folder in folders()[1:]:
        package = importlib.import_module(folder)
        for found in pkgutil.walk_packages(package.__path__, f"{folder}."):
            if "__main__" not in found.name:
                try:
                    importlib.import_module(found.name)
                except ModuleNotFoundError as error:
                    if str(error.name).startswith("normalign"):
                        raise

if order == "modules":
    submodules()
    result = names()
else:
    names()
    submodules()
    result = names()
print(json.dumps(result))
"""


def kinds_by_name(order):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, order, str(Path(__file__).parents[1])],
        capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("order", ["modules", "names"])
def test_a_name_does_not_depend_on_the_order_of_imports(order):
    here = {
        f"{folder}.{name}": kind_of(getattr(importlib.import_module(folder), name))
        for folder in folders()
        for name in importlib.import_module(folder).__all__
    }
    assert kinds_by_name(order) == here


def test_only_folders_are_public_modules():
    modules = set()
    for folder in folders():
        package = importlib.import_module(folder)
        for name in package.__all__:
            if kind_of(getattr(package, name)) == "module":
                modules.add(f"{folder}.{name}")
    assert modules == {
        *folders()[1:], "normalign.training.randomness", "normalign.training.rules",
    }  # fmt: skip


def packages(name="normalign"):
    yield name
    package = importlib.import_module(name)
    for found in pkgutil.iter_modules(package.__path__):
        if found.ispkg:
            yield from packages(f"{name}.{found.name}")


@pytest.mark.parametrize("name", list(packages()))
def test_a_module_is_imported_under_its_own_name(name):
    package = importlib.import_module(name)
    for found in pkgutil.iter_modules(package.__path__):
        inner = f"{name}.{found.name}"
        if found.name in vars(package):
            assert vars(package)[found.name] is importlib.import_module(inner), inner
        public = found.name in getattr(package, "__all__", ())
        if public:
            assert kind_of(getattr(package, found.name)) == "module", inner
