"""The processes around `sej forward` that tests kill: ``python -m tests.contrib.receivers receive|forward WORDS``."""

import json
import re
import runpy
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from sej.contrib import forward as module

LINE_BYTES = 256 << 10
"""Loki's ``max_line_size``, as its documentation of ``limits_config`` has it."""


def loki(path: str, kind: str, body: bytes) -> tuple[list[str], list[str]]:
    """Return the lines of a request that Loki takes, and those that it refuses.

    The request must be as in "Ingest logs" of Loki's HTTP API: labels have a name and a text, and each value is the
    time in nanoseconds, as a string, and a line. Loki takes the good lines of a request although it answers 400.
    """
    assert (path, kind) == ("/loki/api/v1/push", "application/json")
    request = json.loads(body)
    assert list(request) == ["streams"]
    lines: list[str] = []
    for stream in request["streams"]:
        assert stream.keys() == {"stream", "values"}
        assert 1 <= len(stream["stream"]) <= 15
        for name, text in stream["stream"].items():
            assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]{,1023}", name)
            assert isinstance(text, str)
            assert len(text.encode()) <= 2048
        for time, line in stream["values"]:
            assert re.fullmatch("[0-9]{1,19}", time)
            assert int(time) < 1 << 63
            lines.append(line)
    assert lines
    return [line for line in lines if fits(line)], [line for line in lines if not fits(line)]


def post(path: str, kind: str, body: bytes) -> tuple[list[str], list[str]]:
    """Return the values of a request; it is refused as a whole if one does not fit."""
    assert (path, kind) == ("/", "application/x-ndjson")
    lines = [json.loads(line)["value"] for line in body.splitlines()]
    return (lines, []) if all(map(fits, lines)) else ([], lines)


def fits(line: str) -> bool:
    return len(line.encode()) <= LINE_BYTES


def receive(kind: str, port: str, file: str) -> None:
    """Serve; what is taken is in the file before the answer is sent."""
    read = {"loki": loki, "post": post}[kind]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken, refused = read(self.path, self.headers["Content-Type"], body)
            with open(file, "a") as out:
                out.write("".join(f"{json.dumps(line)}\n" for line in taken))
            self.send_response(400 if refused else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


def forward(*words: str) -> None:
    """Run `sej forward`, which soon tries again."""
    vars(module).update(_BACKOFF_S=(0.001, 0.01))
    sys.argv = ["sej", "forward", *words]
    runpy.run_module("sej", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
