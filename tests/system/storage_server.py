"""So much of Google Cloud Storage as Orbax's client and gcsfs ask for: objects in memory, their generations, and the
conditions on these by which several writers do not undo each other's work.

Reference: Google Cloud Storage, JSON API v1.
"""

import base64
import contextlib
import hashlib
import http.server
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple


class Object(NamedTuple):
    content: bytes
    generation: int


class Storage:
    """The objects of one bucket, by name."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.sessions: dict[str, tuple[str, bytes]] = {}  # uploads in several parts
        self.generations = itertools.count(1)
        self.lock = threading.Lock()
        self.read_only = False


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage: Storage

    def do_GET(self) -> None:
        path, query = self._parsed()
        name = self._object(path)
        with self.storage.lock:
            if name is None and path.endswith("/o"):
                self._json(200, self._listed(query))
            elif name is None:
                self._json(200, {"kind": "storage#bucket", "name": "bucket", "location": "HERE"})
            elif name not in self.storage.objects:
                self._json(404, {"error": {"code": 404, "message": "No such object"}})
            elif "alt" in query and query["alt"] == "media":
                self._media(name, query)
            else:
                self._json(200, self._described(name))

    def do_POST(self) -> None:
        path, query = self._parsed()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.storage.lock:
            if self.storage.read_only:
                self._json(403, {"error": {"code": 403, "message": "no storage.objects.create"}})
                return
            if "/rewriteTo/" in path:
                source, target = (self._object(part) for part in path.split("/rewriteTo", 1))
                self._put(target, self.storage.objects[source].content)
                self._json(200, {"done": True, "resource": self._described(target)})
                return
            if "upload_id" in query:
                self._take_part(query["upload_id"], body)
                return
            if query["uploadType"] == "resumable":
                session = str(len(self.storage.sessions))
                self.storage.sessions[session] = (query.get("name") or json.loads(body)["name"], b"")
                address = f"http://{self.headers['Host']}{path}?uploadType=resumable&upload_id={session}"
                self._json(200, {}, {"Location": address})
                return
            name, content = query.get("name"), body
            if query["uploadType"] == "multipart":
                boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
                parts = body.split(b"--" + boundary)[1:3]
                described, content = (re.split(rb"\r?\n\r?\n", part, maxsplit=1)[1] for part in parts)
                name = json.loads(described)["name"]
                content = content[:-2] if content.endswith(b"\r\n") else content[:-1]
            wanted = query.get("ifGenerationMatch")
            there = self.storage.objects.get(name, Object(b"", 0)).generation
            if wanted is not None and int(wanted) != there:
                self._json(412, {"error": {"code": 412, "message": "conditionNotMet"}})
                return
            self._put(name, content)
            self._json(200, self._described(name))

    do_PUT = do_POST  # of the parts of an upload; gcsfs sends them as the other

    def _take_part(self, session: str, part: bytes) -> None:
        name, before = self.storage.sessions[session]
        self.storage.sessions[session] = (name, before + part)
        if self.headers["Content-Range"].endswith("*"):
            self._json(308, {}, {"Range": f"bytes=0-{len(before + part) - 1}"})
            return
        self._put(name, before + part)
        self._json(200, self._described(name))

    def do_DELETE(self) -> None:
        path, query = self._parsed()
        with self.storage.lock:
            found = self.storage.objects.get(self._object(path))
            wanted = query.get("ifGenerationMatch")
            if found is None:
                self._json(404, {"error": {"code": 404, "message": "No such object"}})
            elif wanted is not None and int(wanted) != found.generation:
                self._json(412, {"error": {"code": 412, "message": "conditionNotMet"}})
            else:
                del self.storage.objects[self._object(path)]
                self._reply(204, b"", {})

    def log_message(self, *arguments: Any) -> None:
        pass

    def _parsed(self) -> tuple[str, dict[str, str]]:
        found = urllib.parse.urlsplit(self.path)
        return found.path, dict(urllib.parse.parse_qsl(found.query, keep_blank_values=True))

    @staticmethod
    def _object(path: str) -> str | None:
        found = re.search(r"/b/[^/]+/o/(.+)$", path)
        return urllib.parse.unquote(found[1]) if found else None

    def _put(self, name: str, content: bytes) -> None:
        self.storage.objects[name] = Object(content, next(self.storage.generations))

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        first, end = query.get("startOffset", ""), query.get("endOffset")
        items, prefixes = [], set()
        for name in sorted(self.storage.objects):
            if not name.startswith(prefix) or name < first or (end and name >= end):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self._described(name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}

    def _described(self, name: str) -> dict[str, Any]:
        content, generation = self.storage.objects[name]
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": "bucket",
            "size": str(len(content)),
            "generation": str(generation),
            "metageneration": "1",
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "timeCreated": "2020-01-01T00:00:00.000Z",
            "updated": "2020-01-01T00:00:00.000Z",
        }

    def _media(self, name: str, query: dict[str, str]) -> None:
        content, generation = self.storage.objects[name]
        headers = {"x-goog-generation": str(generation), "x-goog-stored-content-length": str(len(content))}
        if query.get("ifGenerationNotMatch") == str(generation):
            self._reply(304, b"", headers)
            return
        if query.get("ifGenerationMatch") not in (None, str(generation)):
            self._json(412, {"error": {"code": 412, "message": "conditionNotMet"}})
            return
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if found is None:
            self._reply(200, content, headers)
            return
        first = int(found[1]) if found[1] else max(len(content) - int(found[2]), 0)
        last = min(int(found[2]), len(content) - 1) if found[1] and found[2] else len(content) - 1
        if first >= len(content):
            self._reply(416, b"", headers)
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._reply(206, content[first : last + 1], headers)

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def served(storage: Storage) -> Iterator[str]:
    """The address of a storage service whose one bucket is ``gs://bucket``."""
    handler = type("BucketHandler", (Handler,), {"storage": storage})
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
