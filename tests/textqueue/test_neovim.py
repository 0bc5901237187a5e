"""Neovim, without a window: the plugin marks and checks, and its own client talks to the language server.

The tests run if Neovim is installed. Otherwise the last lines of pytest's output say that they did not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import ENV, sej
from tests.textqueue.claiming import plain

SCRIPT = """
local answer = {}
local function see(name, what)
  assert(vim.wait(60000, what, 20), "no " .. name .. " within a minute")
end
local function lines()
  return vim.api.nvim_buf_get_lines(0, 0, -1, false)
end
local function clients()
  return vim.lsp.get_clients and vim.lsp.get_clients({ bufnr = 0 }) or vim.lsp.buf_get_clients(0)
end
local ok, why = pcall(function()
  see("client", function() return #clients() > 0 end)
  see("diagnostics", function() return #vim.diagnostic.get(0) > 0 end)
  answer.filetype = vim.bo.filetype
  answer.problems = {}
  for _, one in ipairs(vim.diagnostic.get(0)) do
    table.insert(answer.problems, { one.lnum, one.severity, one.message })
  end
  local first = { line = 1, character = 0 }
  local params = {
    textDocument = vim.lsp.util.make_text_document_params(),
    range = { start = first, ["end"] = first },
    context = { diagnostics = {} },
  }
  answer.actions = {}
  for _, reply in pairs(vim.lsp.buf_request_sync(0, "textDocument/codeAction", params, 60000)) do
    for _, action in ipairs(reply.result) do
      answer.actions[action.title] = action
    end
  end
  vim.fn.system({ "sej", "tq", "claim", vim.fn.expand("%:p"), "--", "true" })
  see("mark of a worker", function() return vim.tbl_contains(lines(), "=one") end)
  vim.cmd("/^-two/TqFail")
  answer.lines = lines()
  vim.cmd("silent write")
end)
answer.error = not ok and why or nil
vim.fn.writefile({ vim.fn.json_encode(answer) }, vim.env.ANSWER)
vim.cmd("qa!")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    assert sej("tq", "editors", "install", "nvim", "--home", tmp_path).returncode == 0
    bin = tmp_path / "bin"
    bin.mkdir()
    command = bin / "sej"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sej "$@"\n')
    command.chmod(0o755)
    return tmp_path


def neovim(home: Path, path: Path) -> dict[str, Any]:
    """Open a file, run the script in Neovim, and return its answer."""
    (home / "script.lua").write_text(SCRIPT)
    env = {name: value for name, value in ENV.items() if not name.startswith("XDG_")}
    env |= {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "ANSWER": str(home / "answer")}
    command = ["nvim", "--headless", "-n", "-i", "NONE", str(path), "-c", f"luafile {home / 'script.lua'}"]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=240, check=False)
    assert (home / "answer").exists(), (done.stdout + done.stderr).decode()
    answer: dict[str, Any] = json.loads((home / "answer").read_text())
    assert "error" not in answer, answer
    return answer


def test_the_plugin_and_the_client_of_neovim(home: Path) -> None:
    path = home / "jobs.tq"
    path.write_bytes(b"# today\n-one\n-two\n?odd\n")
    answer = neovim(home, path)
    assert answer["filetype"] == "textqueue"
    assert [line for line, _, _ in answer["problems"]] == [3]
    assert {"Mark as done", "Mark as failed"} <= answer["actions"].keys()
    assert answer["lines"][2:] == ["# today", "=one", "!two", "?odd"]
    assert plain(path) == b"# today\n=one\n!two\n?odd\n"
