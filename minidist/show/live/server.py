"""A run that goes on, as a page on this machine: http.server gives the page, its data, and takes orders of faults."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template

from minidist.show.figures.timeline import COLOURS
from minidist.show.live.state import Live
from minidist.train.resilience.orders import ORDERS, order

HERE = Path(__file__).parent
HOST = "127.0.0.1"  # nobody else's machine reaches it
LAST_LOOK = 2.0  # seconds for which the page may still ask how the run ended


@contextmanager
def serving(live: Live, orders: str, port: int = 0) -> Iterator[str]:
    """Within it there is a page at the address that this gives; at the end it has seen how the run ended.

    Args:
        orders: the folder where faults are ordered.
        port: 0 for any that is free.

    Raises:
        OSError: if the port is taken.
    """
    key = secrets.token_urlsafe(8)  # another page in the same browser does not know it, and can order nothing

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == f"/?{key}":
                self.answer(_page(key).encode(), "text/html; charset=utf-8")
            elif self.path == f"/state?{key}":
                told = live.as_dict()
                self.answer(json.dumps(told).encode(), "application/json")
                if told["ended"]:
                    seen.set()
                asked.set()
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            if self.path != f"/order?{key}":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                wanted = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                rank, what = int(wanted["rank"]), str(wanted["what"])
                if not 0 <= rank < live.layout.world_size:
                    raise ValueError(f"there is no rank {rank}")
                order(orders, rank, what)
            except (ValueError, KeyError, TypeError) as error:
                self.send_error(HTTPStatus.BAD_REQUEST, str(error))
                return
            live.tell(f"ordered for rank {rank}: {what}")
            self.answer(b"", "text/plain")

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            """Nothing: the terminal shows the run."""

    asked, seen = threading.Event(), threading.Event()
    with ThreadingHTTPServer((HOST, port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/?{key}"
        finally:
            if asked.is_set():  # somebody looks
                seen.wait(LAST_LOOK)
                time.sleep(0.05)  # for the rest of that answer
            server.shutdown()
            thread.join()


def _page(key: str) -> str:
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        KEY=json.dumps(key), COLOURS=json.dumps(COLOURS), ORDERS=json.dumps(ORDERS)
    )
