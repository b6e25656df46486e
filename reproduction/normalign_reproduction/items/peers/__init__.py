"""Beyond the paper: Where RFAM stands among other methods on tables."""
