"""Reports: results of many runs in one page of HTML, with every figure and table as files beside it.

`arms` reads and groups results, `summary_table` is the first table, `sections/` has one file per section of the page,
`html` and `drawing` render them, and `report` writes all files.
"""
