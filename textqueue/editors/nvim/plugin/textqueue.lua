-- Start the language server for TextQueue files, and show which process has claimed a message.
if vim.fn.executable("sej") == 0 then
  return
end
if vim.lsp.enable == nil then -- before Neovim 0.11, which has the list of servers in the directory lsp
  local client = nil
  vim.api.nvim_create_autocmd("FileType", {
    pattern = "textqueue",
    callback = function(event)
      if client == nil or vim.lsp.client_is_stopped(client) then
        local config = dofile(vim.api.nvim_get_runtime_file("lsp/textqueue.lua", false)[1])
        client = vim.lsp.start_client({ name = "textqueue", cmd = config.cmd, root_dir = vim.fn.getcwd() })
      end
      if client ~= nil then
        vim.lsp.buf_attach_client(event.buf, client)
      end
    end,
  })
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
