"""What must be set before anything else is imported."""

import os

import torch

if not torch.cuda.is_available():
    # Triton decides as it is imported whether kernels are interpreted, and transformers may import it
    os.environ.setdefault("TRITON_INTERPRET", "1")
