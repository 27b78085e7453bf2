"""Models: which families are supported, how they are loaded, and conversations with them."""

from kvmm.embedded import assets_folder
from kvmm.models.conversation import Conversation
from kvmm.models.families import FAMILIES, Family, family_of
from kvmm.models.loading import load_model
from kvmm.models.processors import load_processor
from kvmm.models.progress import Progress
from kvmm.models.sampling import Sampling

__all__ = [
    "FAMILIES",
    "Conversation",
    "Family",
    "Progress",
    "Sampling",
    "assets_folder",
    "family_of",
    "load_model",
    "load_processor",
]
