"""The evidence of docs/results: runs into CSV files, tables and figures out of them."""
