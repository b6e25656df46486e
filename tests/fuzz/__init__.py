"""Random cases against independent implementations; `make fuzz` runs them.

A family is a module with two functions: ``draw(rng)`` returns a case that JSON can
store, ``check(case)`` raises if the library gets it wrong. A case that fails is stored
in ``corpus/``, and `make test` runs every stored case.
"""
