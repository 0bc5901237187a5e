"""The text format: its grammar and the parser, the mutex variable, and files read in windows."""
