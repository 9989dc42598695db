"""
What `GET /` is compared with: aiohttp, on uvloop if that is here, which sends the same bytes.

    python benchmarks/aiohttp_readings.py PORT
"""

from __future__ import annotations

import contextlib
import gc
import sys

from aiohttp import web

from readings import readings_body

BODY = readings_body()


async def readings(_: web.Request) -> web.Response:
    return web.Response(body=BODY, content_type="application/json")


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import asyncio

        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    application = web.Application()
    application.add_routes([web.get("/", readings)])
    gc.collect()
    gc.freeze()
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
