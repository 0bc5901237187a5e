"""The web page: journals, sharded journals, work queues, hubs and text queues in a browser; ``sej ui``.

::

    browser -- GET, POST --> serving    who may ask: host, token, origin; the headers of every answer
                               |
                             pages      one function for each address: a template and its values
                               |
                            sampler     what may be shown; samples of it, with a short history
                               |
                  sej.cli, sej.queue, hub, shard, textqueue: what the commands print

The browser asks for an open page again and again, and its script replaces the elements that changed.

The page reads; only :mod:`hub.page.changes` writes. It needs the extra ``ui`` (starlette, uvicorn, jinja2), which this
package imports only where it serves. The modules, in the order in which they are best read::

    serving                                          the server and its addresses; who may ask
    pages                                            the pages, and what they share
    sampler                                          what may be shown
    changes                                          what a viewer may change
"""

from __future__ import annotations
