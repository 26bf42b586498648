"""What makes a shell complete our commands, options and names.

A shell's script asks us, with variables that typer reads, what may follow the words written so far.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import typer

_ASKS: Final = "_BOATHOOK_COMPLETE"
_WORDS: Final = "_TYPER_COMPLETE_ARGS"


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS: Final = {
    Shell.BASH: f"""\
_boathook() {{
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=$COMP_CWORD {_ASKS}=complete_bash "$1" 2>/dev/null))
}}
complete -o default -F _boathook boathook""",
    Shell.ZSH: f"""\
#compdef boathook
_boathook() {{
    eval "$({_WORDS}="${{words[1,$CURRENT]}}" {_ASKS}=complete_zsh boathook 2>/dev/null)"
}}
compdef _boathook boathook""",
    Shell.FISH: f"""\
function __boathook
    {_ASKS}=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] {_WORDS}=(commandline -cp) boathook 2>/dev/null
end
complete --command boathook --no-files --arguments '(__boathook get-args)' --condition '__boathook is-args'""",
}


def print_script(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.", show_default=False)],
) -> None:
    """
    Print the completion script of a shell.

    `boathook --install-completion` puts such a script where the shell in use reads it.
    """
    print(_SCRIPTS[shell])


def completion_words(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the words written so far, where a shell asks what may follow; None where a command is to be run."""
    if _ASKS not in environment:
        return None
    written = environment.get("COMP_WORDS") or environment.get(_WORDS, "")
    return written.split()[1:]
