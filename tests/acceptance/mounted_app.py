"""Source code of an app with pages and WebSockets, which tests mount in a boathook process."""

APP_SOURCE = """
import asyncio, os
from contextlib import asynccontextmanager
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect
from boathook import Boathook, Event, Transaction

hook = Boathook()

async def whole(request):
    body = await request.body()
    return JSONResponse({
        "path": request.url.path, "root": request.scope["root_path"], "actor": request.scope["state"].get("actor"),
        "size": len(body), "opened": getattr(request.state, "opened", None), "client": request.client.host,
        "scheme": request.url.scheme, "pid": os.getpid(), "from": request.scope["path"],
    })

async def broken(request):
    raise RuntimeError("the page fails on purpose")

async def cut(request):
    async def pieces():
        yield b"half"
        raise RuntimeError("the other half is on fire")
    return StreamingResponse(pieces())

async def own_fault(request):
    return PlainTextResponse("my own words", 500)

async def tell(request):
    async with hook.transaction() as tx:
        await hook.publish_live(tx, request.query_params["channel"], {"n": int(request.query_params["n"])})
        if "fail" in request.query_params:
            raise RuntimeError("rolled back")
    return PlainTextResponse("told")

async def big(request):
    async with hook.transaction() as tx:
        try:
            await hook.publish_live(tx, "cars", "x" * 8000)
        except Exception as error:
            return JSONResponse({"kind": type(error).__name__, "error": str(error)})

async def echo(ws):
    await ws.accept()
    try:
        while True:
            await ws.send_text(await ws.receive_text())
    except WebSocketDisconnect as end:
        (Path("ends.txt")).open("a").write(f"{ws.query_params.get('name')} {end.code}\\n")

async def who(ws):
    await ws.accept()
    await ws.send_json({"actor": ws.scope["state"].get("actor"), "offered": ws.scope["subprotocols"],
                        "headers": [name.decode() for name, value in ws.scope["headers"] if b"bhk_" in value]})
    await ws.close(1000, "bye")

async def live(ws):
    heard = hook.subscribe(ws.query_params["channel"])
    await ws.accept()
    await ws.send_text("listening")
    async for message in heard:
        await ws.send_json(message)

async def burning(ws):
    if "late" in ws.query_params:
        await ws.accept()
    raise RuntimeError("the socket is on fire")

async def refusing(ws):
    await ws.close()

async def flood(ws):
    await ws.accept()
    while True:
        await ws.send_bytes(bytes(65536))

async def deaf(ws):
    await ws.accept()
    await asyncio.sleep(600)

@asynccontextmanager
async def life(app):
    Path("life.txt").open("a").write("up\\n")
    yield {"opened": "yes"}
    Path("life.txt").open("a").write("down\\n")

routes = [
    Route("/tell", tell, methods=["POST"]), Route("/big", big, methods=["POST"]),
    Route("/broken", broken), Route("/cut", cut), Route("/own", own_fault),
    WebSocketRoute("/echo", echo), WebSocketRoute("/who", who), WebSocketRoute("/live", live),
    WebSocketRoute("/burning", burning), WebSocketRoute("/refusing", refusing),
    WebSocketRoute("/flood", flood), WebSocketRoute("/deaf", deaf),
    Route("/{rest:path}", whole, methods=["GET", "POST"]),
]

hook.mount("/open", Starlette(routes=routes, lifespan=life), is_open=True)
hook.mount("/closed", Starlette(routes=routes))
hook.mount("/open/inner", Starlette(routes=routes), is_open=True)
hook.mount("/webhooks", Starlette(routes=routes), is_open=True)
hook.mount("/api/mounted", Starlette(routes=routes), is_open=True)

async def plain(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"plain"})

hook.mount("/plain", plain, is_open=True)

@hook.on("stripe", "car.*")
async def moved(event: Event, tx: Transaction) -> None:
    await hook.publish_live(tx, "cars", {"car": event.json["id"], "seen": event.attempt})
"""
"""Source code of the app's module."""
