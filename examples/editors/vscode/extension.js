// Starts `planc lsp` and lets VS Code talk to it; everything else is in the server.
const { workspace } = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

function activate() {
  const command = workspace.getConfiguration("planc").get("path");
  const server = { command, args: ["lsp"], transport: TransportKind.stdio };
  // Old texts, such as git's in a comparison of two, get colors only.
  const documentSelector = ["file", "untitled"].map((scheme) => ({ language: "plan", scheme }));
  client = new LanguageClient("planc", "planc", server, { documentSelector });
  return client.start();
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
