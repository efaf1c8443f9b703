"""A small hub on this machine: it answers as the hub does, as far as downloading needs, and misbehaves when told to."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`files` of one model at one commit, under the revisions main, v1 and the commit.

    gated:   everything but the model's name is refused.
    cut:     the next download of this file breaks off after so many bytes (a mapping of file to bytes).
    hang:    the next download of this file stops after so many bytes, and `hung` is set.
    corrupt: files of which another byte is sent.
    ranges:  whether parts of a file may be asked for.
    asked:   every request, as "METHOD path range".
    """

    def __init__(self, name: str, files: dict[str, bytes], commit: str = COMMIT):
        self.name, self.files, self.commit = name, files, commit
        self.gated, self.ranges = False, True
        self.cut: dict[str, int] = {}
        self.hang: dict[str, int] = {}
        self.hung = threading.Event()
        self.closing = threading.Event()
        self.corrupt: set[str] = set()
        self.asked: list[str] = []
        self.endpoint = ""

    def downloads(self, file: str) -> list[str]:
        """What was asked of a file's content, as ranges ("" is all of it)."""
        found = (re.fullmatch(rf"GET /\S*/{re.escape(file)} ?(.*)", line) for line in self.asked)
        return [match[1] for match in found if match]

    @contextmanager
    def running(self) -> Iterator["Hub"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self.closing.set()
            server.shutdown()
            thread.join()
            server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path, wanted = unquote(urlsplit(self.path).path), self.headers.get("Range", "")
        self.hub.asked.append(f"{self.command} {path} {wanted}".strip())
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self.facts(match[1], match[2], match[3] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.file(match[1], match[2], match[3], body)
        else:
            self.send(404, b"")

    def facts(self, name: str, what: str | None, revision: str) -> None:
        if not self.known(name, revision):
            return
        if what == "tree":
            listed = [self.listed(file, content) for file, content in self.hub.files.items()]
            self.send(200, json.dumps(listed).encode())
        else:
            siblings = [{"rfilename": file} for file in self.hub.files]
            self.send(
                200, json.dumps({"id": name, "sha": self.hub.commit, "siblings": siblings, "private": False}).encode()
            )

    def listed(self, file: str, content: bytes) -> dict[str, Any]:
        facts: dict[str, Any] = {"type": "file", "path": file, "size": len(content), "oid": etag_of("", content)}
        if file.endswith(".safetensors"):
            facts["lfs"] = {"oid": etag_of(file, content), "size": len(content), "pointerSize": 130}
        return facts

    def known(self, name: str, revision: str) -> bool:
        if name != self.hub.name:
            self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif self.hub.gated:
            self.send(403, b"", {"X-Error-Code": "GatedRepo"})
        elif revision not in ("main", "v1", self.hub.commit):
            self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return True
        return False

    def file(self, name: str, revision: str, file: str, body: bool) -> None:
        if not self.known(name, revision):
            return
        if file not in self.hub.files:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.hub.commit})
            return
        content = self.hub.files[file]
        headers = {"ETag": f'"{etag_of(file, content)}"', "X-Repo-Commit": self.hub.commit, "Accept-Ranges": "bytes"}
        if file in self.hub.corrupt:
            content = bytes([content[0] ^ 1]) + content[1:]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        status, start = (206, int(wanted[1])) if wanted and self.hub.ranges else (200, 0)
        cut = self.hub.cut.pop(file, None) if body else None
        hang = self.hub.hang.pop(file, None) if body else None
        self.send(status, content[start:], headers, body, hang or cut)
        if hang:
            self.hub.hung.set()
            self.hub.closing.wait()

    def send(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
        body: bool = True,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(content[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True


def etag_of(file: str, content: bytes) -> str:
    """As the hub has them: sha256 for large files, git's own hash for small ones."""
    if file.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
