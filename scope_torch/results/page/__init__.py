"""The decision page: one HTML file that says what to use, and why."""
