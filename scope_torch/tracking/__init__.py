"""Callbacks that show or log a run; the journal and the trace remain the record."""
