"""The paper's tables, one small file each: what is run, and what it shows."""
