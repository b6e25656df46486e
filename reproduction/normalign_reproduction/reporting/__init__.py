"""Showing what was computed: tables, figures, verdicts, and the page of all."""
