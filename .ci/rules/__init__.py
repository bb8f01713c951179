"""
The project's own lint rules: what ruff, mypy and import-linter cannot say.

`.ci/lint rules` runs them all. A rule is a function that takes the tree, and yields an offence for each thing that is
wrong. What may stay for good is in `lists/exceptions.toml`, with reasons. What is still to be repaired is in
`lists/to_repair.toml`, as a number per file that can only shrink.

- coupling: rule 4: who may assign to an attribute, how far a chain reaches, how wide a record or a call may be
- duplicates: rule 5: no eight equal lines twice
- exceptions: what may break a rule for good, and why
- lists: the words and exceptions that the rules read
- names: rule 3: the words of modules and classes, and that a class name is used once
- packages: rule 6: the list of modules in each package's docstring
- prose: rule 8: phrases that make a reader stumble
- schema: rule 7: one schema version for each release
- sizes: rule 1: entries in a folder, lines in a file
- to_repair: the list that can only shrink
- tree: the files of the project, each read and parsed once
"""
