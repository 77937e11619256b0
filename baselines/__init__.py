"""The competitors of SCOPE: same protocol, budget, kernel and order of ties."""
