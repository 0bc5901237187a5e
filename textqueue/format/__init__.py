"""The text format: its grammar, the parser, the mutex variable, and files read in windows."""
