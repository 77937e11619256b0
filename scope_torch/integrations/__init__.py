"""Our searches behind the interfaces of other packages."""
