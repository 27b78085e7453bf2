"""Subcommands of ``python -m kvmm``, one module each; a module's ``command`` is what typer calls."""
