"""Two clients, a hub and a report in one process. In production they are on different machines."""

import hub
import sej
from hub.wire import Client, Copier, Server

for airport, flight in (("EWR", b"UA1545"), ("JFK", b"AA1141")):
    with sej.Writer(f"{airport}/flights") as writer:
        writer.append(flight)

with hub.Store("collected") as store, Server(store, "127.0.0.1:0") as server:
    for airport in ("EWR", "JFK"):
        with Client(server.address, client_id=airport) as client, Copier(f"{airport}/flights", client) as copier:
            print(airport, "copied", copier.run_once())

with hub.Merge("collected", "report") as merge:
    for source, message in merge:
        print(source.client, source.journal_dir, message.offset, message.value.decode())
    merge.commit()
