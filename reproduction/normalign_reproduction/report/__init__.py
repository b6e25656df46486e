"""What was computed, shown: tables, figures, verdicts, and the page of all."""
