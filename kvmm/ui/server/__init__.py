"""The web server around the app: visitors and their sessions, uploads, cookies, middleware, limits."""
