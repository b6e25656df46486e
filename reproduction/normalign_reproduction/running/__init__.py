"""Running what is missing: the plan, the processes, the progress."""
