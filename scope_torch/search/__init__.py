"""SCOPE (Algorithm 1), Calibrate (Algorithm 2), and their parts."""
