"""HTTP: routes, one middleware, limits of a connection, JSON bodies, the pages."""
