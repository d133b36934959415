"""A web server of this process that answers as a helpdesk's documentation says."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.connect.adapters import opened
from service.connect.config import DeskConfig

JSON, HTML = "application/json", "text/html"
_NOT_FOUND = (404, JSON, b'{"message": "Not Found"}', {})


class Server:
    """Answers each path with (status, content type, body, more headers), and remembers what it was sent.

    A path with its query is looked for first, then the path alone.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, bytes, dict[str, str]]] = {}
        self.sent: list[tuple[str, str, Any, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                document = json.loads(body) if body else None
                outer.sent.append((self.command, self.path, document, self.headers.get("Authorization")))
                found = (outer.answers.get(path) for path in (self.path, self.path.partition("?")[0]))
                status, kind, content, headers = next((answer for answer in found if answer), _NOT_FOUND)
                self.send_response(status)
                for name, value in {
                    "Content-Type": kind,
                    "Content-Length": str(len(content)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = _answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, body: Any, status: int = 200, kind: str = JSON, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[path] = (status, kind, content, {k.replace("_", "-"): v for k, v in headers.items()})

    def desk(self, **keys: Any) -> Any:
        """The adapter of a desk at this server, with the secret of the variable DESK_TOKEN."""
        document = {"entry": ["Inbox"], "teams": {"payment": "Payments"}, "token_env": "DESK_TOKEN", **keys}
        return opened(DeskConfig.model_validate({"url": self.url, **document}))
