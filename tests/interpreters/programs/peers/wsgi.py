"""A web application whose requests never end: gunicorn's and uvicorn's threads stand still in it."""

import asyncio
import time


def handle(environ):
    sorted([environ], key=lambda _: time.sleep(1000))


def wsgi(environ, start_response):
    handle(environ)


async def asgi(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.get_running_loop().run_in_executor(None, handle, scope)
