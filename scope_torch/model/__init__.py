"""The surrogates: Gaussian processes for each query, and their aggregate over queries."""
