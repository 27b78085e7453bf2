"""One folder an operation; ``reference.py`` defines the result in torch and is the CPU path."""
