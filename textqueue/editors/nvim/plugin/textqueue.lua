-- Start the language server for TextQueue files, and show which process has claimed a message.
if vim.lsp.enable == nil or vim.fn.executable("sej") == 0 then
  return
end
vim.lsp.enable("textqueue")
vim.api.nvim_create_autocmd("LspAttach", {
  callback = function(event)
    if vim.bo[event.buf].filetype == "textqueue" then
      vim.lsp.inlay_hint.enable(true, { bufnr = event.buf })
    end
  end,
})
