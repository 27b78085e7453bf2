"""An OpenAI-compatible server over packed caches."""
