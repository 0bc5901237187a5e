"""What a forked interpreter runs as a program: the code in its second argument, under the name in its first."""

import sys

sys.argv, name, text = [sys.argv[1]], *sys.argv[1:]
exec(compile(text, name, "exec"), {"__name__": "__main__", "__file__": name})
