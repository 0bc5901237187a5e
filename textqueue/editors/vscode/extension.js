// Starts the language server, `sej tq lsp`, for TextQueue files.
"use strict";

const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

async function activate() {
  const command = vscode.workspace.getConfiguration("textqueue").get("command");
  const server = { command, args: ["tq", "lsp"], transport: TransportKind.stdio };
  client = new LanguageClient("textqueue", "TextQueue", server, {
    documentSelector: [{ scheme: "file", language: "textqueue" }],
  });
  try {
    await client.start();
  } catch (error) {
    vscode.window.showWarningMessage(
      `TextQueue: the language server was not started (${error.message}). Colours work without it. ` +
        "Install it with: pip install 'sej-journals[lsp]', or set textqueue.command."
    );
  }
}

function deactivate() {
  return client && client.isRunning() ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
