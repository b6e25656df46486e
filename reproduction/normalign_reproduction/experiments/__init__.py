"""How the paper's items are computed: each module is an ``Experiment``.

A module takes runs, trains or solves what they describe, and returns plain numbers. It
knows nothing of files, tables or pages.
"""
