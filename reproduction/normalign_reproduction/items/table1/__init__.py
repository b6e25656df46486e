"""Table 1: GrokAlign accelerates grokking."""
