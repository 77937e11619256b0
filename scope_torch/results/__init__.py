"""What a run tells: its result, in words, tables, figures and pages."""
