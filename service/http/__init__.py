"""HTTP: routes, middleware, connection limits, JSON bodies, web pages."""
