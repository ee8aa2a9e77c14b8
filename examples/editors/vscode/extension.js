// Starts `planc lsp` and lets VS Code talk to it; everything else is in the server.
const { workspace } = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

function activate() {
  const command = workspace.getConfiguration("planc").get("path");
  const server = { command, args: ["lsp"], transport: TransportKind.stdio };
  client = new LanguageClient("planc", "planc", server, { documentSelector: [{ language: "plan" }] });
  return client.start();
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
