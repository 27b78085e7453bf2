"""The models of a server in the place of those that an app loads."""

from __future__ import annotations

from typing import Any

from kvmm.errors import KVMMError
from kvmm.models.caches import DYNAMIC
from kvmm.ui.endpoint.client import Endpoint
from kvmm.ui.endpoint.conversation import EndpointConversation
from kvmm.ui.models import Loaded, Models

NO_MODEL = "This app answers by a server and has no model of its own: start it without --endpoint for this."


class EndpointModels(Models):
    """The models of a server.

    Args:
        endpoint: the server, which is asked for its models now.
        chosen: those to offer, the default first; none of them offers all.

    Raises:
        KVMMError: the server cannot be used, or does not have a chosen model.
    """

    def __init__(self, endpoint: Endpoint, chosen: list[str] | None = None) -> None:
        there = endpoint.models()
        for name in chosen or ():
            if name not in there:
                raise KVMMError(f"The server at {endpoint.url} has no model {name!r}; it has: {', '.join(there[:20])}")
        super().__init__(dict.fromkeys(chosen or there, _refuse))
        self.endpoint = endpoint

    @property
    def remote(self) -> str | None:
        """The address of the server."""
        return self.endpoint.url

    def is_loaded(self, name: str) -> bool:
        """True: the server sees to it."""
        return True

    def converse(self, name: str | None, policy: Any, **options: Any) -> EndpointConversation:
        """A new conversation with a model; the cache's policy is the server's matter.

        Raises:
            KVMMError: the app does not offer the model, or a comparison is asked for.
        """
        name = self.default if name is None else name
        if name not in self.names:
            raise KVMMError(f"There is no model {name!r} here; choose one of: {', '.join(self.names)}.")
        if policy == DYNAMIC:
            raise KVMMError("A server answers with its own cache alone, so there is no full precision to compare with.")
        return EndpointConversation(self.endpoint, name)


def _refuse() -> Loaded:
    raise KVMMError(NO_MODEL)


__all__ = ["NO_MODEL", "EndpointModels"]
