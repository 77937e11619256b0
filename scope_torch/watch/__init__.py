"""One HTML page that shows a run."""
