"""Table 5: Which identity weight the tasks of TabArena choose."""
