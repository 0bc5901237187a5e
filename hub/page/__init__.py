"""The web page: journals, sharded journals, work queues, hubs and text queues in a browser; ``sej ui``.

::

    browser -- GET, POST --> guard      who may ask: host, token, origin; the headers of every answer
                               |
                             site       one function for each page: a template and its parts
                               |
               places        sampler    what there is; samples of it, with a short history
                               |
                  sej.cli, sej.queue, hub, shard, textqueue: what the commands print

A page is a template and *parts*: pieces of HTML by the id of their element. The first answer has all of them. After
that the browser listens to a stream of events, and the server sends the parts that differ from those it sent before.
So each page exists once, on the server, and the script in the browser only puts HTML into its place.

The page reads; only :mod:`hub.page.changes` writes. It needs the extra ``ui`` (starlette, uvicorn, jinja2), which this
package imports only where it serves. The modules, in the order in which they are best read::

    command, serving, guard                          sej ui; the server; who may ask
    site, views                                      addresses and events; what pages share, templates
    places, sampler                                  what may be shown, and samples of it
    overview, journal, queues                        the pages
    changes                                          what a viewer may change
"""

from __future__ import annotations
