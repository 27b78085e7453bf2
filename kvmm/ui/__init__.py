"""The browser app: ask about a page, a picture or a recording, and see what the KV cache costs."""

from kvmm.ui.demo import build_demo, launch_options
from kvmm.ui.endpoint.client import Endpoint
from kvmm.ui.endpoint.models import EndpointModels
from kvmm.ui.models import Models
from kvmm.ui.server.arenas import share_arenas

__all__ = ["Endpoint", "EndpointModels", "Models", "build_demo", "launch_options", "share_arenas"]
