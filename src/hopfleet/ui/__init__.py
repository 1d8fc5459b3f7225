"""The web page of experiments: a server that reads journals, and a page that needs no build step."""

PORT = 8643
"""The port of the server, unless another one is given."""

TOKEN = "HOPFLEET_UI_TOKEN"
"""Environment variable: a token for programs. Arguments of a process are for all users of the machine to see."""

CODES = "HOPFLEET_UI_CODES"
"""Environment variable: the key of the codes with which the process that started the server opens it."""

PARENT = "HOPFLEET_UI_PARENT"
"""Environment variable: the process with which the server ends."""

SOCKET = "HOPFLEET_UI_SOCKET"
"""Environment variable: the file descriptor of a socket that listens already."""
