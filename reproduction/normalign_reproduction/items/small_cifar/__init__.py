"""Beyond the paper: Few images: does GrokAlign pay?."""
