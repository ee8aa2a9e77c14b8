"""The formatter: a syntax tree and its comments to a document, the document to text."""
