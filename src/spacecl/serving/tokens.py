"""Tokens of callers: whoever sends none of them in `Authorization: Bearer ...` is refused."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ConfigError

OPEN = ("/v2/health/live", "/v2/health/ready")  # probes of orchestrators send no token, and learn nothing from these
SHORTEST = 16  # characters
LARGEST = 2**16  # bytes of a file


def read_tokens(file: str | os.PathLike[str]) -> list[bytes]:
    """Read a file with a token on each line; several allow old and new ones to be valid while clients change."""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"--token-file {file} cannot be read: {error.strerror}.") from error
    tokens = [line.strip() for line in content.splitlines() if line.strip()]
    usable = len(content) <= LARGEST and all(len(t) >= SHORTEST and all(33 <= byte <= 126 for byte in t) for t in tokens)
    if not tokens or not usable:
        raise ConfigError(
            f"--token-file {file} must have a token on each line: at least {SHORTEST} ASCII characters without spaces. "
            "Make one with: openssl rand -hex 32"
        )
    return tokens


class RequireToken:
    """ASGI middleware that answers 401 to requests without one of the tokens, before their bodies are read."""

    def __init__(self, app: ASGIApp, tokens: Sequence[bytes]):
        self.app, self.tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._has_token(Headers(scope=scope).getlist("authorization")):
            return await self.app(scope, receive, send)
        reason = "This server needs a token: send the header Authorization: Bearer TOKEN."
        await JSONResponse({"error": reason}, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _has_token(self, headers: Sequence[str]) -> bool:
        scheme, _, sent = (headers[0] if len(headers) == 1 else "").partition(" ")
        given = sent.strip().encode("latin-1", errors="replace")
        same = [hmac.compare_digest(given, token) for token in self.tokens]  # all, so that the time does not tell which
        return scheme.lower() == "bearer" and any(same)
