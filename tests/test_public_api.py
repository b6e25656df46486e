"""No public name goes or changes unless the changelog says so."""

from __future__ import annotations

from tests.public_api import CHANGELOG, COMMAND, STORED, text, unmentioned


def test_the_stored_names_are_those_of_the_package():
    old, new = STORED.read_text(encoding="utf-8"), text()
    missing = unmentioned(old, new, CHANGELOG.read_text(encoding="utf-8"))
    assert not missing, f"Name these in CHANGELOG.md under Unreleased: {missing}"
    changed = sorted(set(old.splitlines()) ^ set(new.splitlines()))
    remedy = f"Rewrite the stored list: {COMMAND}"
    assert not changed, "\n".join([remedy, *changed])


def test_what_is_gone_or_changed_must_be_mentioned():
    old = "a.f(x)\na.g(x, y=1)\na.C: class\na.C.m(self)\n"
    new = "a.f(x)\na.g(x, y=2)\na.C: class\na.h()\n"
    log = "# Log\n\n## Unreleased\n\n- nothing\n\n## 1.0\n\n- `g` and `C.m`\n"
    assert unmentioned(old, new, log) == ["a.C.m", "a.g"]
    assert unmentioned(old, new, log.replace("nothing", "`g`")) == ["a.C.m"]
    assert unmentioned(old, old + new, log) == []


def test_the_list_holds_methods_and_fields_but_nothing_inherited():
    lines = text().splitlines()
    assert "normalign.At: normalign.geometry.At" in lines
    (at,) = (line for line in lines if line.startswith("normalign.geometry.At:"))
    assert "token: int | None=None" in at.replace(" = ", "=")
    assert any(
        line.startswith("normalign.regularizers.GrokAlign.__call__(") for line in lines
    )
    assert not any("get_params" in line or " object at " in line for line in lines)
