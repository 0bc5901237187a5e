"""The text format: its grammar, the parser, the mutex variable, the line with the number, and files read in windows."""
