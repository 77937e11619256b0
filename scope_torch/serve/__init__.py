"""A loopback endpoint for applications that stay as they are: the model they ask for is a module."""
