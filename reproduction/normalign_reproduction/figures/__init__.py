"""The paper's figures, one small file each: what is run, and what it shows."""
