"""`select`: the front door."""
