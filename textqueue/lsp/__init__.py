"""The language server for ``.tq`` files: what a document means, and the protocol.

The protocol is in a private module, because it cannot be imported without the extra ``lsp``.
"""
