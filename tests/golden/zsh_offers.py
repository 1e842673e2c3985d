# SPDX-License-Identifier: Apache-2.0
"""What an interactive zsh lists when TAB is pressed: python3 zsh_offers.py FUNCTIONS LINE

Prints one word a line, sorted. The shell is a real one on a terminal; a wrapper of `compadd` says which
words it was given that fit.
"""

import os
import pty
import re
import select
import sys
import time

SETUP = r"""
fpath=($FUNCTIONS $fpath)
autoload -Uz compinit; compinit -u -D
PROMPT='' RPROMPT=''; unsetopt beep; zstyle ':completion:*' verbose false
compadd() {
    local -a fit
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)* ]]; then builtin compadd "$@"; return; fi
    builtin compadd -O fit "$@"
    print -rl -- WORD=$^fit
    builtin compadd "$@"
}
complete-words() { zle complete-word; print ENDED; }
zle -C offers complete-word _main_complete
offered() { zle offers; print ENDED; }
zle -N offered
bindkey '^I' offered
print STARTED
"""


def until(terminal, word, seconds=20):
    """What is written until the word comes."""
    text, end = b"", time.monotonic() + seconds
    while word not in text:
        if time.monotonic() > end or not select.select([terminal], [], [], seconds)[0]:
            sys.exit(f"zsh did not say {word.decode()}: {text.decode(errors='replace')}")
        text += os.read(terminal, 65536)
    return text.decode(errors="replace")


def main():
    functions, line = sys.argv[1:]
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(FUNCTIONS=functions, TERM="dumb")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"zsh-offers-{os.getpid()}")
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(SETUP)
        os.write(terminal, f". {path}\n".encode())
        until(terminal, b"STARTED\r")
        os.write(terminal, line.encode() + b"\t")
        text = until(terminal, b"ENDED\r")
        os.write(terminal, b"\x15exit\n")
    finally:
        os.unlink(path)
    words = {word.split(":")[0] for word in re.findall(r"WORD=(\S*)", text)}
    print("\n".join(sorted(word.rstrip("=") for word in words if word)))


main()
