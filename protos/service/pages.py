"""Serves the HTTP pages of a service: one WSGI application per path, called in threads.

The pages are for people and for Prometheus. They are served on a port of their own, not on the gRPC
port. The only page that this module itself defines is `/metrics`.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from tandem.protos.address import is_loopback, joined, names_this_machine, unbracketed
from tandem.protos.errors import Unusable
from tandem.protos.service.vllm_names import VLLMNames

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

MAX_REQUESTS = 64  # maximum number of concurrent requests; each has a thread
READ_SECONDS = 10.0  # seconds that a client may take to send its whole request
METHODS = ("GET", "HEAD")
PLAIN = ("Content-Type", "text/plain; charset=utf-8")
CERTIFICATE = "SSL_CLIENT_VERIFY"  # WSGI variable with the result of the certificate check


class Pages:
    """A WSGI application that passes each request to the application registered for its path.
    `/metrics` always exists.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._applications: dict[str, WSGIApplication] = {"/metrics": metrics_page(registry)}
        self._anybody: set[str] = set()

    def add(self, path: str, application: WSGIApplication, anybody: bool = False) -> None:
        """Serve an application at a path from now on. The application is called from several
        threads. With TLS, clients need a certificate unless `anybody` is set.
        """
        self._applications[path] = application
        if anybody:
            self._anybody.add(path)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Pass a request to the application registered for its path. The WSGI server calls this."""
        if environ["REQUEST_METHOD"] not in METHODS:
            start_response("405 Method Not Allowed", [PLAIN, ("Allow", ", ".join(METHODS))])
            return [b"only GET and HEAD\n"]
        here, asked = environ.get("SERVER_NAME", ""), environ.get("HTTP_HOST", "")
        # DNS rebinding: a foreign web page in a local browser may have sent this request
        if is_loopback(here) and not names_this_machine(asked):
            start_response("403 Forbidden", [PLAIN])
            return [b"the host is not this machine\n"]
        path = environ.get("PATH_INFO") or "/"
        if environ.get(CERTIFICATE) == "NONE" and path not in self._anybody:
            start_response("403 Forbidden", [PLAIN])
            return [b"a certificate is needed\n"]
        application = self._applications.get(path)
        if application is None:
            start_response("404 Not Found", [PLAIN])
            paths = " ".join(sorted(self._applications))
            return [f"not found; the pages are {paths}\n".encode()]
        return application(environ, start_response)


def metrics_page(registry: CollectorRegistry) -> WSGIApplication:
    """Return a page with the metrics of a registry, in the format that the client accepts. With
    `?compat=vllm` the page has only the metrics that vLLM has too, under vLLM's names.
    """
    from prometheus_client import make_wsgi_app

    own = make_wsgi_app(registry)
    compatible = make_wsgi_app(VLLMNames(registry))

    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = parse_qs(environ.get("QUERY_STRING", "")).get("compat", [])
        served = dict(environ, REQUEST_METHOD="GET")
        if not asked:
            return _bytes(own(served, start_response))
        if asked != ["vllm"]:
            start_response("400 Bad Request", [PLAIN])
            return [b"compat is vllm, or not given\n"]
        return _bytes(compatible(served, start_response))

    return page


def _bytes(body: Any) -> Iterable[bytes]:
    return list(body)


class _Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each request, so that a slow client delays no other client.
    Connections beyond MAX_REQUESTS are closed at once.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.Semaphore(MAX_REQUESTS)
        super().__init__((host, port), _Handler)
        if tls:
            # each connection does its TLS handshake in its own thread; otherwise a client that
            # sends nothing would block all others
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection. If MAX_REQUESTS threads are running, close the
        connection.
        """
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its thread, and release its slot at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a client that leaves or does not speak TLS is not worth a log line."""


class _InTime(io.RawIOBase):
    """Reads from a connection for at most `seconds` seconds in all, then raises TimeoutError."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True, because this stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer` within the time that is left. Afterwards the connection's timeout is
        restored, so that writes have the full time.
        """
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        """Set a time limit for reading the whole request."""
        super().setup()
        self.rfile = io.BufferedReader(_InTime(self.connection, READ_SECONDS))

    def get_environ(self) -> WSGIEnvironment:
        """Return the WSGI environment of the request. With TLS, the environment also tells whether
        the client has a certificate.
        """
        environ = super().get_environ()
        if isinstance(self.connection, ssl.SSLSocket):
            environ["HTTPS"] = "on"  # WSGI derives the URL scheme from this variable
            environ[CERTIFICATE] = "SUCCESS" if self.connection.getpeercert() else "NONE"
        return environ

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, because requests are not logged."""


@contextmanager
def pages_served(
    host: str, port: int, pages: WSGIApplication, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Context manager that serves pages, and yields the address. Port 0 selects a free port. If new
    certificates are loaded into `tls` later, connections opened from then on use them. Raises
    Unusable.
    """
    try:
        server = _Server(unbracketed(host), port, tls)
    except OSError as error:
        problem = f"metrics port {port} on {host} cannot be opened: {error.strerror}"
        raise Unusable(problem) from error
    server.set_app(pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="pages", daemon=True)
    thread.start()
    try:
        yield joined(host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
