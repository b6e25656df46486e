"""The paper's tables and figures, one folder each."""
