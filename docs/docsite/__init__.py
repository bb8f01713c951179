"""What the site has and plain Markdown has not: tables of contents, drawings, recorded terminals."""
