#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator's HTTP side for tests of the tool: it answers with the files of a directory.

cli_server.py DIRECTORY PORT_FILE

The jobs `moving` and `changing` are another one at each question: quiet, stalled, an error, and then
stalled. Of the job `page`, and at /readyz, it answers like a server that is no coordinator. The stacks of the job `secret` need a token. The answer about the job `large` is larger than a buffer.
"""

import http.server
import json
import os
import sys

FILES = {
    "/api/v1/jobs": "jobs",
    "/api/v1/jobs/mnist": "job",
    "/api/v1/stalls": "stalls",
    "/api/v1/jobs/mnist/stalls": "stalls",
    "/api/v1/jobs/calm/stalls": "stalls_over",
    "/api/v1/ranks/3/stack": "stack",
    "/api/v1/jobs/mnist/ranks/3/stack": "stack",
}
MOVING = ("stalls_over", "stalls", None)
TOKEN = "Bearer correct-horse"


class Handler(http.server.BaseHTTPRequestHandler):
    questions = {}

    def do_GET(self):
        if self.path in ("/api/v1/jobs/moving/stalls", "/api/v1/jobs/changing/stalls"):
            asked = Handler.questions.get(self.path, 0)
            name = MOVING[asked] if asked < len(MOVING) else "stalls"
            Handler.questions[self.path] = asked + 1
            self.send_file(name) if name else self.send_error_of(503, "the coordinator is busy")
        elif self.path == "/api/v1/jobs/large/stalls":
            self.send_body(200, {"stalls": [], "more": "x" * 100000})
        elif self.path == "/api/v1/jobs/secret/ranks/3/stack":
            if self.headers.get("Authorization") == TOKEN:
                self.send_file("stack")
            else:
                self.send_error_of(401, "stacks need a token")
        elif self.path == "/api/v1/jobs/young/ranks/3/stack?fresh=1":
            self.send_file("stack")
        elif self.path.startswith("/api/v1/jobs/page") or self.path == "/readyz":
            self.send_bytes(200, b"<html>hi</html>\n")
        elif self.path == "/healthz":
            self.send_bytes(200, b"ok\n")
        elif self.path.endswith("?fresh=1"):
            self.send_error_of(503, "rank 3 has not answered")
        elif self.path in FILES:
            self.send_file(FILES[self.path])
        else:
            self.send_error_of(404, "there is no such job")

    def send_file(self, name):
        with open(os.path.join(sys.argv[1], name + ".json"), encoding="utf-8") as file:
            self.send_body(200, json.load(file))

    def send_error_of(self, code, message):
        self.send_body(code, {"error": {"code": code, "message": message}})

    def send_body(self, code, value):
        self.send_bytes(code, json.dumps(value, separators=(",", ":")).encode())

    def send_bytes(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[2] + ".new", "w", encoding="ascii") as ports:
    ports.write(f"{server.server_port}\n")
os.rename(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
