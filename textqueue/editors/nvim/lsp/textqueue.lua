-- How Neovim starts the language server of TextQueue files.
return {
  cmd = { "sej", "tq", "lsp" },
  filetypes = { "textqueue" },
  root_markers = { ".git" },
}
