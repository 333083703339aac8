"""The command line: one file a verb, one table of verbs."""
