"""The tabs of the app, one module each."""
