"""An ASGI application on a real port, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def served(app: Any, **settings: Any) -> Iterator[str]:
    """Serve until the block ends; yields the address. `settings` are uvicorn's.

    Idle connections live longer than tests pause: after uvicorn's 5 seconds, a request may meet the closing one.
    """
    settings = {"timeout_keep_alive": 120, **settings}
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
