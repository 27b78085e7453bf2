"""Errors in OpenAI's form: one clear line, and a status and a code that clients act on."""

from __future__ import annotations

from typing import Any


class APIError(Exception):
    """An answer other than 200.

    Args:
        status: of HTTP.
        message: one line that says what is wrong and what to do; what it repeats of a request may be anything.
        code: a name that programs compare, such as ``invalid_api_key``.
        param: the field of the request that it is about.
        headers: to send with it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = _readable(message)
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers or {}

    @property
    def type(self) -> str:
        """The class of the error, by its status."""
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        if self.status >= 500:
            return "server_error"
        return kinds.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def _readable(text: str) -> str:
    """One line that can be sent and shown: without control characters and halves of surrogate pairs."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def bad_request(message: str, param: str | None = None, code: str | None = None) -> APIError:
    """Something in a request is not as it must be."""
    return APIError(400, message, code, param)


def busy() -> APIError:
    """More is asked than the server takes at once."""
    headers = {"retry-after": "1"}
    return APIError(503, "The server is busy: try again in a moment.", "overloaded", headers=headers)


__all__ = ["APIError", "bad_request", "busy"]
