"""A loopback endpoint for unchanged applications: the model that they ask for is a module."""
