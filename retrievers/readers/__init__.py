"""One reader a file format: bytes to a title, text in Markdown and metadata."""
