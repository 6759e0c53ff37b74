"""Live view of a run as a page on this machine. http.server serves it and its data, and takes orders for faults."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template

from msgspec import convert

from minidist.files import strict_json
from minidist.show.figures.timeline import COLOURS
from minidist.show.live.state import Live
from minidist.train.resilience.faults import ORDERS, order

HERE = Path(__file__).parent
ORDER_BYTES = 1000  # at most, of an order
HOST = "127.0.0.1"  # no other machine can reach it
LAST_LOOK = 2.0  # seconds that the page has to ask how the run ended
OTHERS = 0.4  # more seconds, for pages in other tabs: each asks every 0.25 seconds


@dataclass(frozen=True)
class Order:
    """Fault that the page orders."""

    rank: int
    what: str


class Server(ThreadingHTTPServer):
    """HTTP server that prints nothing when a browser hangs up: the terminal shows the run."""

    daemon_threads = True

    def handle_error(self, *_) -> None:
        pass


@contextmanager
def serving(live: Live, orders: str, port: int = 0) -> Iterator[str]:
    """Context manager: serve the page and yield its address; on exit, wait until an open page has seen the run's end.

    Args:
        orders: folder in which faults are ordered.
        port: 0 for any free port.

    Raises:
        OSError: if the port is taken.
    """
    key = secrets.token_urlsafe(8)  # other pages in the browser do not know it, so they can order nothing

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == f"/?{key}":
                self.answer(_page(key).encode(), "text/html; charset=utf-8")
            elif self.path == f"/state?{key}":
                told = live.as_dict()
                self.answer(strict_json(told).encode(), "application/json")
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
                length = int(self.headers.get("Content-Length", 0))
                if not 0 < length <= ORDER_BYTES:
                    raise ValueError(f"an order has 1 to {ORDER_BYTES} bytes, not {length}")
                wanted = convert(json.loads(self.rfile.read(length)), Order)
                if not 0 <= wanted.rank < live.layout.world_size:
                    raise ValueError(f"there is no rank {wanted.rank}")
                order(orders, wanted.rank, wanted.what)
            except (ValueError, RecursionError, OSError) as error:  # OSError: the run has just ended
                self.answer(str(error).encode(errors="replace"), "text/plain; charset=utf-8", HTTPStatus.BAD_REQUEST)
                return
            live.tell(f"ordered for rank {wanted.rank}: {wanted.what}")
            self.answer(b"", "text/plain")

        def answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            """Print nothing: the terminal shows the run."""

    asked, seen = threading.Event(), threading.Event()
    with Server((HOST, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/?{key}"
        finally:
            if asked.is_set():  # a page is open
                seen.wait(LAST_LOOK)
                time.sleep(OTHERS)
            server.shutdown()
            thread.join()


def _page(key: str) -> str:
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        KEY=json.dumps(key), COLOURS=json.dumps(COLOURS), ORDERS=json.dumps(ORDERS)
    )
