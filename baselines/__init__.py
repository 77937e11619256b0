"""The competitors of SCOPE, on the same protocol, budget, kernel and tie-breaking."""
