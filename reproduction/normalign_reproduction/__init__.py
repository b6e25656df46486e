"""Reproduction of *The Geometric Structure of Models Learning Sparse Data*.

Runs the experiments behind every table and figure of the paper, compares the results
with the published numbers, and writes the report. `normalign reproduce`, `list`,
`show`, `compare`, `report` and `verify` are the commands.
"""

__version__ = "0.1.0"
