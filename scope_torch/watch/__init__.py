"""A page about a run, for people who would rather look than read."""
