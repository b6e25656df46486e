"""Where a table's numbers are put, how precisely, and what is said of their scale."""
