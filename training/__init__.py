"""Training of the small omni model that kvmm ships: data from seeds, one GPU, one command (``training/README.md``)."""
