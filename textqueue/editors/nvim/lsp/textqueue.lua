-- Neovim 0.11 and newer: how to start the language server of TextQueue files.
return {
  cmd = { "sej", "tq", "lsp" },
  filetypes = { "textqueue" },
  root_markers = { ".git" },
}
