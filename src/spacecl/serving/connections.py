"""Limits of single connections: time, the size of a request's head, pipelined requests, and how many may be open."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2**16  # request line and headers
MAX_PIPELINED = 64  # requests that a client may send before it receives the first response
BACKLOG = 256  # connections that the operating system accepts before the server sees them
OTHER_FILES = 64  # that a server has open besides connections


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP protocol with limits.

    A connection is closed when the head of a request does not arrive in time, when its body does not (one second later, so
    that the client still receives the reason), and when the client reads nothing of a response.
    """

    seconds = 10.0
    max_connections = 2048

    receive_timer: asyncio.TimerHandle | None = None  # runs while the client has to send something
    send_timer: asyncio.TimerHandle | None = None  # runs while the client has to read something
    unsent_bytes = head_bytes = 0
    in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self.start_receive_timer(self.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_receive_timer()
        if self.send_timer is not None:
            self.send_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.head_bytes += len(data)
        if self.in_head and self.receive_timer is None:
            self.start_receive_timer(self.seconds)
        super().data_received(data)
        if self.in_head and self.head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request may have at most {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self.in_head, self.head_bytes = True, 0
        self.start_receive_timer(self.seconds)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.in_head = False
        self.start_receive_timer(self.seconds + 1)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError(f"More than {MAX_PIPELINED} requests were pipelined.")  # the parser turns it into a 400
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.stop_receive_timer()
        self.in_head, self.head_bytes = True, 0  # the next head begins with the next byte
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self.close()

    def timeout_keep_alive_handler(self) -> None:
        self.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unsent_bytes = self.transport.get_write_buffer_size()
        self.send_timer = self.loop.call_later(self.seconds, self.check_progress)

    def resume_writing(self) -> None:
        if self.send_timer is not None:
            self.send_timer.cancel()
        super().resume_writing()

    def check_progress(self) -> None:
        """Close the connection if its client has read nothing since the last check."""
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self.unsent_bytes:
            self.transport.abort()
        else:
            self.unsent_bytes = unsent
            self.send_timer = self.loop.call_later(self.seconds, self.check_progress)

    def close(self) -> None:
        """Close the connection as soon as the client has read what was written, or after a while."""
        self.transport.close()
        self.loop.call_later(self.seconds, self.transport.abort)

    def start_receive_timer(self, seconds: float) -> None:
        self.stop_receive_timer()
        self.receive_timer = self.loop.call_later(seconds, self.close)

    def stop_receive_timer(self) -> None:
        if self.receive_timer is not None:
            self.receive_timer.cancel()
            self.receive_timer = None


def make_protocol(seconds: float, max_connections: int) -> type[LimitedProtocol]:
    """Return the class of protocol for a server with these limits; uvicorn makes an instance per connection."""
    return type("Protocol", (LimitedProtocol,), {"seconds": seconds, "max_connections": max_connections})


def limit_connections(count: int) -> int:
    """Return how many connections, at most `count`, the operating system's limit of open files allows to serve.

    Twice as many may be open, because those above are answered with an error. The limit is raised where it can be.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * count + BACKLOG + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(count, (soft - BACKLOG - OTHER_FILES) // 2))
    return count
