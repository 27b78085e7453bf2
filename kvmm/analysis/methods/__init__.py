"""All presets on one document and question: bytes, drift and time."""
