"""Large tables in parts: a tree of smooth cuts, machines of its leaves, one metric."""
